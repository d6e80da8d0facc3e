"""Between hosts: what is said over CURVE when one joins another, and what their gateways say."""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from monarch_nb.core.wire.messages.codec import ControlMessage, Done, Request
from monarch_nb.core.wire.messages.keeping import Alone

PROTOCOL: Final = 4
"""Of what is said between hosts; who has another number cannot be talked to."""


class Joined(NamedTuple):
    """The host can be used. `agent` is the process that starts ranks there; at one of `addresses`
    another host may reach it."""

    agent: int
    host: str
    versions: dict[str, str]
    addresses: list[str]


class Join(Request[Joined], verb="join"):
    """A controller wants a host: it says the number that it gives it, and the secret of their
    session. `instead_of`: the number that it had given it, before it gave it up; 0: none."""

    protocol: int
    versions: dict[str, str]
    host: int
    controller: int
    secret: str
    instead_of: int = 0


class Taken(NamedTuple):
    """The host is part of the job now: its number, the controller, and the secret of their
    session."""

    host: int
    controller: int
    secret: str


class Offer(Request[Taken], verb="offer"):
    """A host that was started for a job joins it, as its host `index`; it can be reached by others
    at one of `addresses`."""

    protocol: int
    versions: dict[str, str]
    job: str
    index: int
    name: str
    addresses: list[str]
    host: int = 0  # the number that it has: it was part of the job, and its controller has gone
    alone: Alone | None = None  # what its ranks do meanwhile


OVER: Final = "over"
"""The kind of a refusal: the host that offers itself again is wanted no more, and is to end."""


class LetGo(Request[Done], verb="let_go"):
    """To the head of jobs, from who has the key of its kept meshes: leave their hosts, as `who`,
    for people, drives them from now on."""

    key: str
    who: str


# between a gateway and the agent of its host


class KeptHere(ControlMessage, verb="kept_here"):
    """To a gateway: whether the ranks of its host, and what they say to each other, go on when the
    link to the controller is lost. From its agent; where not, also from the controller's."""

    is_kept: bool


class ControllerLost(ControlMessage, verb="controller_lost"):
    """To the agent of a host, from its gateway: the link to the controller is lost."""


# from gateway to gateway


class Introduce(ControlMessage, verb="introduce"):
    """To the controller's: a process here has something for a process of that host."""

    host: int


class Meet(ControlMessage, verb="meet"):
    """From it: connect to that host, with which this secret is shared from now on."""

    host: int
    secret: str
    addresses: list[str]


class Expect(ControlMessage, verb="expect"):
    """From it: that host will connect, and knows this secret."""

    host: int
    secret: str


class Detour(ControlMessage, verb="detour"):
    """From host to host, through the controller's: the direct way of this `session` is given up, on
    which `received` records have come; the rest goes this way. `answers`: the other end has said so
    before."""

    received: int
    session: str
    answers: bool = False


class HostGone(ControlMessage, verb="host_gone"):
    """From the controller's, to hosts that were introduced to one that is lost."""

    host: int


class GoUnder(ControlMessage, verb="go_under"):
    """From the controller's, to a host: reach it through this other host from now on, if there is
    a link to that."""

    parent: int


class Way(enum.StrEnum):
    """The state of a way through another host: nothing was heard on it lately, or it was
    given up, or its end was closed by the host there, which may have ended."""

    SILENT = "silent"
    LOST = "lost"
    CLOSED = "closed"

    @staticmethod
    def of(silent_s: float | None) -> Way:
        """Return it for a link that was lost, for so long silent if that is why."""
        return Way.CLOSED if silent_s is None else Way.LOST


class WayLost(ControlMessage, verb="way_lost"):
    """From a host that carries records between others: of its link to that host, a `Way`."""

    host: int
    way: str
