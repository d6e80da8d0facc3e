"""Process groups of torch.distributed: whether ranks are in step, and how they get there again.

What ranks do in a group is counted by kind: `cpu` or `cuda` for collectives on such tensors, `to 3`
and `from 3` for what is sent to and received from rank 3 of the mesh, `from *` from whoever sends.
"""

from __future__ import annotations

from typing import NamedTuple

from monarch_nb.core.wire.messages.codec import ControlMessage, Request, row


@row
class GroupCounts(NamedTuple):
    """One group of a rank: its members, ranks of the mesh; how much the rank has begun, by kind;
    what it has left before it had ended (empty: nothing)."""

    name: str
    ranks: list[int]
    counts: dict[str, int]
    left: str


@row
class Awaited(NamedTuple):
    """The `number`th operation of a kind in a group, which ends when all of `peers` have begun
    theirs. `kind` is empty where the members wait for one another to make the group."""

    group: str
    kind: str
    number: int
    peers: list[int]


@row
class GroupWait(NamedTuple):
    """A wait for other ranks, by a number of its own: in `what`, for the call or cell that answers
    to port `reply` of process `caller`. It goes on while one of `awaited` may still come to its
    end."""

    number: int
    what: str
    caller: int
    reply: int
    awaited: list[Awaited]


class Standings(NamedTuple):
    """How far one rank is in its groups. `at_rest`: no code of the user's runs or waits there."""

    groups: list[GroupCounts]
    waits: list[GroupWait]
    at_rest: bool


class GetStandings(Request[Standings], verb="group_standings"):
    """To a rank."""


class EndWait(ControlMessage, verb="end_group_wait"):
    """To a rank: what it waits for will not come, so this wait is to raise; `why` in words."""

    number: int
    why: str


class RefuseGroups(ControlMessage, verb="refuse_groups"):
    """To a rank: these groups are out of step, whoever uses them is told so; `why` in words."""

    groups: list[str]
    why: str


class MadeAgain(NamedTuple):
    """`failed`: what it raised, in words."""

    failed: str | None = None


class MakeAgain(Request[MadeAgain], verb="make_groups_again"):
    """To all members, between two cells: connect `groups` anew; forget those in `dropped`."""

    groups: list[str]
    dropped: list[str]


class OutOfStep(ControlMessage, verb="groups_out_of_step"):
    """To the controller, of a rank of a mesh: it has made its first group, or left an operation of
    one before it had ended (`left`)."""

    mesh: int
    left: bool
