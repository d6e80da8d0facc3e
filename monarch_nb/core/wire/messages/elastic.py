"""Of training loops that go on when a rank dies: what their ranks ask the controller, and its
orders.

A loop is known by the notebook cell it stands in, its `tag`, and by which loop of that cell it is.
Each recovery has a number, the generation; what belongs to an older one is of no use.
"""

from __future__ import annotations

from typing import NamedTuple

from monarch_nb.core.wire.messages.codec import ControlMessage, Request, row

GO = "go"
"""All have begun: run the next step."""
SKIP = "skip"
"""The loop is over: run none of its steps."""
TAKE = "take"
"""All had what they need for the step in which you wait, and others may have taken it: take it."""
RECOVER = "recover"
"""Ranks were replaced: get in step again, then say that you are ready."""
RAISE = "raise"
"""No rank is lost, or the loop cannot go on: the error is the cell's."""


@row
class GroupMade(NamedTuple):
    """A process group and its ranks; what PyTorch's tables call its backend, and what it uses on
    which kind of device. `timeout_s` is for its collectives. `by_itself`: whoever uses it first
    makes it, no code of the user's."""

    name: str
    ranks: list[int]
    kind: str
    config: str
    backends: dict[str, str]
    timeout_s: float = 60.0
    by_itself: bool = False


@row
class Newcomer(NamedTuple):
    """A rank that has a new process, and from whom it gets its state: from one that has the same,
    or that has `kept` its snapshot."""

    rank: int
    process: int
    source: int
    source_process: int
    kept: bool = False


@row
class Kept(NamedTuple):
    """A snapshot of another rank, before this step."""

    rank: int
    step: int


@row
class Member(NamedTuple):
    """A rank of a loop, and its process now."""

    rank: int
    process: int


class Orders(NamedTuple):
    """What a rank does now. `step` is the one that is run next. All go back to their `snapshot` of
    that step, or undo only what they have begun. `held`: what only the process before a newcomer
    knew, by name, as that told it. `members` are all. `with_snapshots`: some have what
    no other has, so all take snapshots. Those of this rank go to the process `keeper` (0: nowhere,
    as others have the same), and those of `wards` come here. `fewer`: than began; `shrinks`: in
    this recovery. `why`: for people."""

    what: str
    generation: int = 0
    step: int = 0
    snapshot: bool = False
    members: list[Member] = []  # noqa: RUF012  a field of a named tuple
    groups: list[GroupMade] = []  # noqa: RUF012
    newcomers: list[Newcomer] = []  # noqa: RUF012
    held: dict[str, str] = {}  # noqa: RUF012
    with_snapshots: bool = False
    keeper: int = 0
    wards: list[Member] = []  # noqa: RUF012
    fewer: bool = False
    shrinks: bool = False
    why: str = ""


class BeginLoop(Request[Orders], verb="elastic_begin"):
    """A rank has come to a loop, at this step; a newcomer has come to it again. Ranks whose `part`
    is equal have the same models now. `may_be_fewer`: it can go on without others."""

    tag: int
    loop: int
    step: int
    held: dict[str, str]
    groups: list[GroupMade]
    part: int = 0
    may_be_fewer: bool = False


class HoldStep(ControlMessage, verb="elastic_hold"):
    """What a process in the place of this one would have to know before this step, and that has
    changed since this one said so last; by name. `is_snapshot`: all may go back to it. `part`: as
    in `BeginLoop`, told once after the first optimizer step; else None."""

    tag: int
    loop: int
    step: int
    held: dict[str, str]
    is_snapshot: bool = False
    part: int | None = None


class ParkRank(Request[Orders], verb="elastic_park"):
    """A rank has stopped in a step, by an error. `is_prepared`: it had all that it needs to take
    the step, and waited for the others to have it too. `timed_out`: others did not come to a
    collective. Without `can_retry` it can only go back to one of its snapshots. `kept` are those
    of other ranks. `regroups`: it is no error, but all have seen that ranks have other parts than
    at the begin, and park for that.
    """

    tag: int
    loop: int
    step: int
    why: str
    can_retry: bool
    snapshots: list[int]
    groups: list[GroupMade]
    is_prepared: bool = False
    timed_out: bool = False
    kept: list[Kept] = []  # noqa: RUF012
    regroups: bool = False


class RankStuck(ControlMessage, verb="elastic_stuck"):
    """A rank cannot leave a collective, though another has died and its connections are closed: it
    cannot park, and is of no use any more."""

    tag: int
    loop: int


class Verdict(NamedTuple):
    """Whether all are ready; else something has happened: park."""

    good: bool


class RankReady(Request[Verdict], verb="elastic_ready"):
    """A rank has done what it was ordered, and waits for the others."""

    tag: int
    loop: int
    generation: int


class EndLoop(ControlMessage, verb="elastic_end"):
    """A rank has left the loop before this step; `finished`: with all others, at its end."""

    tag: int
    loop: int
    step: int
    finished: bool
