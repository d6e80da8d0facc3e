"""What `RankStates` is told, and what it wants done: plain values without behaviour."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from monarch_nb.core.wire.messages.agents import Exited, Heard, Leave, Silent, Spawned, ZygoteFailed
from monarch_nb.core.wire.messages.keeping import ControllerGone

Message = ControllerGone | Exited | Heard | Leave | Silent | Spawned | ZygoteFailed


class Asker(NamedTuple):
    """Whom to answer: a reply port of a process. Port 0 means that nobody waits."""

    process: int
    port: int = 0
    rank: int = 0
    tag: int = 0


# events


class Asked(NamedTuple):
    """`owner` wants these ranks. `commands`: how those are started that are not forked."""

    procs: Sequence[int]
    owner: int
    commands: Mapping[int, str] = MappingProxyType({})


class Forked(NamedTuple):
    """The rank has a process."""

    proc: int
    pid: int


class Ended(NamedTuple):
    """The rank has ended, or never came to be (`reason`)."""

    proc: int
    code: int | None = None
    signal: int | None = None
    reason: str | None = None
    tail: str = ""
    oom: bool = False
    unreachable_s: float | None = None
    """It was not heard for so long and is given up, whether it still exists or not."""


class Watched(NamedTuple):
    """`watcher` wants to know of these."""

    watcher: int
    procs: Sequence[int]


class Pulsed(NamedTuple):
    """The link to the rank is up, or broke."""

    proc: int
    up: bool


class StopAsked(NamedTuple):
    """End these within `grace_s`, then answer; `procs` None: all, and then end the agent."""

    asker: Asker
    procs: Sequence[int] | None
    grace_s: float


class KillAsked(NamedTuple):
    procs: Sequence[int]
    number: int


class ControllerLost(NamedTuple):
    """Nobody drives the ranks; these go on, and what they have spawned."""

    kept: Collection[int]


class Adopted(NamedTuple):
    """Another process is the controller, in place of the one before and as owner of what that had
    spawned."""

    controller: int


class WatcherGone(NamedTuple):
    """A process that looked at ranks, and has no part in them, has ended."""

    watcher: int


class ZygoteLost(NamedTuple):
    """Every rank is about to end, and nobody may see how."""

    text: str


class Tick(NamedTuple):
    """Time has passed."""


Event = (
    Asked | Forked | Ended | Watched | Pulsed | StopAsked | KillAsked
    | ControllerLost | Adopted | WatcherGone | ZygoteLost | Tick
)  # fmt: skip


# effects


class Tell(NamedTuple):
    """Send a control message to a process."""

    process: int
    message: Message


class Answer(NamedTuple):
    """Answer that a request is done."""

    asker: Asker


class Kill(NamedTuple):
    """Signal a rank that has a process."""

    proc: int
    number: int


class Finish(NamedTuple):
    """The agent's work is done."""


Effect = Tell | Answer | Kill | Finish
