"""One elastic loop as the controller sees it: who is lost, who waits, who is told what. Pure.

Ranks take a step only once all of them are prepared for it, which they find out among themselves
by a collective. When one dies in the midst of that, some may have taken the step and others not
know. After a loss all that live park, and say how far they are. If one of them, or who has died,
may have taken the oldest step that one is in, the others take it too: they are prepared for it, and
nobody is behind then. Otherwise nobody has taken it. The ones that were lost come back as
newcomers, and when everybody is there all are given their orders. They say when they are ready, and
go on together. A loss in between begins that again.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from monarch_nb.core.elastic.keepers import keepers
from monarch_nb.core.errors.folding import rank_words
from monarch_nb.core.wire.messages.elastic import (
    GO,
    RAISE,
    RECOVER,
    SKIP,
    TAKE,
    GroupMade,
    Kept,
    Member,
    Newcomer,
    Orders,
    ParkRank,
    Verdict,
)

MAX_RECOVERIES: Final = 6
"""Without a step in between. Then the loop ends: something is wrong that a new process does not
mend."""
KEPT_SNAPSHOTS: Final = 2
"""Of each rank: while one is on its way, the one before is whole."""
KEPT_STEPS: Final = 3
"""What a rank held is known before so many of its last steps: ranks differ by one at most."""
_TOO_OFTEN: Final = "it was mended {} times, and step {} has not been taken"
_HAVE_LEFT: Final = "{} left the loop before"
_NOT_MADE: Final = (
    "the new process of rank {} has not made process group {!r}. It runs the cells that define "
    "what the loop uses: make the group in one of them, or in the cell of the loop"
)
_NOBODY_HAS: Final = "nobody has what {} had in memory: who had a copy is lost too"
_OTHER_START: Final = "the ranks begin at different steps: {}"
_OUT_OF_STEP: Final = "the ranks are in different steps: {}"


class Phase(enum.Enum):
    BEGINS = "begins"
    RUNS = "runs"
    RECOVERS = "recovers"
    OVER = "over"


class Told(NamedTuple):
    """An answer to what a rank has asked."""

    rank: int
    answer: Orders | Verdict


@dataclass
class LoopRecord:
    """A loop on these ranks; `processes` are theirs now, on these `hosts`."""

    processes: dict[int, int]
    hosts: dict[int, int]
    phase: Phase = Phase.BEGINS
    step: int = 0
    """At which all began, or went on after the last loss."""
    generation: int = 0
    lost: set[int] = field(default_factory=set)
    """Ranks that have no process that has come to the loop."""
    recoveries: int = 0
    _starts: dict[int, int] = field(default_factory=dict)
    _first_parts: dict[int, int] = field(default_factory=dict)
    _later_parts: dict[int, int] = field(default_factory=dict)
    """Of the model, by rank: at the begin, and after the first optimizer step, from when on ranks
    that have the same go on to have the same."""
    _made: dict[int, list[str]] = field(default_factory=dict)  # groups of newcomers
    _waiting: dict[int, ParkRank | None] = field(default_factory=dict)
    """Who waits for orders: has parked, or has come anew."""
    _new: set[int] = field(default_factory=set)
    """Ranks whose processes have not got the state yet."""
    _ready: set[int] = field(default_factory=set)
    _ordered: bool = False
    _is_even: bool = False
    """Whoever could take the step of the loss has been told to. No other can be taken meanwhile."""
    _held: dict[int, dict[int, dict[str, str]]] = field(default_factory=dict)  # by rank, by step
    _snapshots: dict[int, list[int]] = field(default_factory=dict)  # of which something is held
    _reached: int = -1
    """The step in which ranks were at the last loss."""
    _left: dict[int, bool] = field(default_factory=dict)
    """Who has left; True: finished."""
    _may_be_fewer: set[int] = field(default_factory=set)
    _fewer: bool = False  # than have begun
    _shrinks: bool = False  # in this recovery
    _why: str = ""
    _fails: str = ""
    """Why it will end as soon as all that live have parked."""

    @property
    def ranks(self) -> set[int]:
        return set(self.processes)

    @property
    def _parts(self) -> dict[int, int]:
        # until all have told it nobody has taken a second step
        told = self._later_parts
        return told if told.keys() >= self.ranks else self._first_parts

    @property
    def can_be_mended(self) -> bool:
        """Tell whether a rank that dies now will be replaced: all have begun, and none has left."""
        return self.phase in (Phase.RUNS, Phase.RECOVERS) and not self._left

    @property
    def wants_processes(self) -> bool:
        """Tell whether it waits for new processes of the ranks that are lost."""
        return self.phase is Phase.RECOVERS and not self._fails

    @property
    def awaited(self) -> set[int]:
        """Ranks that have a process, and have not parked though one is lost."""
        if self.phase is not Phase.RECOVERS or self._ordered:
            return set()
        return self.ranks - self.lost - self._waiting.keys()

    def hung(self) -> list[int]:
        """Return who has not stopped, while others have."""
        if self.phase is not Phase.RUNS or not self._waiting:
            return []
        return sorted(self.ranks - self._waiting.keys())

    def begin(
        self,
        rank: int,
        step: int,
        held: Mapping[str, str],
        groups: Sequence[str],
        part: int = 0,
        may_be_fewer: bool = False,
    ) -> list[Told]:
        """A rank has come to the loop, with this part of the model, and has made these groups."""
        self._may_be_fewer.add(rank) if may_be_fewer else self._may_be_fewer.discard(rank)
        if self.phase is Phase.OVER:
            return [Told(rank, Orders(SKIP, step=self.step))]
        if self.phase is Phase.RECOVERS:
            self.lost.discard(rank)
            self._new.add(rank)
            self._waiting[rank] = None
            self._made[rank] = list(groups)
            return self._order()
        self._starts[rank] = step
        self._first_parts[rank] = part
        self._held[rank] = {step: dict(held)}
        return self._start()

    def _start(self) -> list[Told]:
        if self._starts.keys() < self.ranks:
            return []
        found = sorted(set(self._starts.values()))
        if len(found) > 1:
            return self._fail(_OTHER_START.format(", ".join(map(str, found))), self.ranks)
        self.phase, self.step = Phase.RUNS, found[0]
        return self._told(Orders(GO, step=self.step))

    def _told(self, orders: Orders) -> list[Told]:
        kept_by = keepers(self._parts, self.hosts)
        wards: dict[int, list[Member]] = {rank: [] for rank in self.ranks}
        for rank, keeper in kept_by.items():
            wards[keeper].append(Member(rank, self.processes[rank]))
        members = [Member(rank, self.processes[rank]) for rank in sorted(self.ranks)]
        orders = orders._replace(
            members=members,
            with_snapshots=bool(kept_by),
            fewer=self._fewer,
            shrinks=self._shrinks,
        )
        of = {rank: self.processes[keeper] for rank, keeper in kept_by.items()}
        return [
            Told(rank, orders._replace(keeper=of.get(rank, 0), wards=wards[rank]))
            for rank, _ in members
        ]

    def hold(
        self,
        rank: int,
        step: int,
        held: Mapping[str, str],
        *,
        is_snapshot: bool = False,
        part: int | None = None,
    ) -> None:
        """Keep what a process in the place of a rank would have to know before a step; what is not
        named is as it was. To its last snapshots and to its begin a loop may go back."""
        if part is not None:
            self._later_parts[rank] = part
        known = self._held[rank]
        known[step] = {**self._held_before(rank, step), **held}
        snapshots = self._snapshots.setdefault(rank, [])
        if is_snapshot:
            snapshots[:] = [*snapshots, step][-KEPT_SNAPSHOTS:]
        later = sorted(known)[1:]
        for old in later[:-KEPT_STEPS]:
            if old not in snapshots:
                del known[old]

    def _held_before(self, rank: int, step: int) -> dict[str, str]:
        known = self._held[rank]
        return known[max((each for each in known if each <= step), default=min(known))]

    def park(self, rank: int, parked: ParkRank) -> list[Told]:
        """A rank has stopped in a step, and waits for orders."""
        if self._left:
            return [Told(rank, self._after_others(parked))]
        if self.phase is Phase.OVER:
            return [Told(rank, Orders(RAISE, why=self._why))]
        self._waiting[rank] = parked
        self._ready.discard(rank)
        all_regroup = self._waiting.keys() >= self.ranks and parked.regroups
        if self._ordered or all_regroup:  # or it could not do what it was ordered
            return self._again()
        return self._order()

    def _after_others(self, parked: ParkRank) -> Orders:
        if parked.is_prepared and any(self._left.values()):
            return Orders(TAKE)
        gone = rank_words(tuple(sorted(self._left)))
        return Orders(RAISE, why="" if parked.why else _HAVE_LEFT.format(gone))

    def give_up(self, rank: int) -> list[Told]:
        """Nobody is lost, and nobody hangs: the error of a rank that has parked is its own."""
        waits = self._waiting.get(rank)
        hangs = any(each.timed_out for each in self._waiting.values() if each and each != waits)
        if self.phase is not Phase.RUNS or waits is None or waits.regroups or hangs:
            return []
        del self._waiting[rank]
        return [Told(rank, Orders(RAISE))]

    def lose(self, rank: int) -> list[Told]:
        """A rank has died."""
        self.lost.add(rank)
        self._new.discard(rank)
        self._waiting.pop(rank, None)
        return self._again()

    def _again(self) -> list[Told]:
        # whoever waits for others is told to park
        waiting = self._ready - self.lost
        self._ready, self._ordered = set(), False
        self.phase = Phase.RECOVERS
        self.generation += 1
        self.recoveries += 1
        return [*(Told(rank, Verdict(good=False)) for rank in sorted(waiting)), *self._order()]

    def replace(self, rank: int, process: int, host: int) -> None:
        """A rank has a new process, which has not come to the loop yet."""
        self.processes[rank] = process
        self.hosts[rank] = host

    def rank_of(self, process: int) -> int | None:
        """Return whose process this is now."""
        return next((rank for rank, each in self.processes.items() if each == process), None)

    def _order(self) -> list[Told]:
        if self.phase is not Phase.RECOVERS or self.awaited:
            return []
        parked = {
            rank: each
            for rank, each in sorted(self._waiting.items())
            if each is not None and rank not in self._new
        }
        if parked and not self._is_even and (told := self._even(parked)):
            return told
        if self._fails:
            return self._fail(self._fails, ())
        if self.lost or self._waiting.keys() < self.ranks:
            return []
        if (why := self._cannot_go_on(parked)) is not None:
            return self._fail(why, self.ranks)
        return self._recover(parked)

    def _even(self, parked: Mapping[int, ParkRank]) -> list[Told]:
        # that all have taken the same steps
        self._is_even = True
        oldest = min(each.step for each in parked.values())
        behind = {rank: each for rank, each in parked.items() if each.step == oldest}
        if not all(each.is_prepared for each in behind.values()):
            return []
        gone = self.ranks - parked.keys()
        if behind == parked and not all(oldest + 1 in self._held[rank] for rank in gone):
            return []  # who has died had not said what it would hold then: it was not prepared
        for rank in behind:
            del self._waiting[rank]
        return [Told(rank, Orders(TAKE)) for rank in behind]

    def _cannot_go_on(self, parked: Mapping[int, ParkRank]) -> str | None:
        if not parked:
            return "no rank is left that has the state of the loop"
        steps = sorted({each.step for each in parked.values()})
        if len(steps) > 1:
            return _OUT_OF_STEP.format(", ".join(map(str, steps)))
        if steps[0] > self._reached:
            self._reached, self.recoveries = steps[0], 1
        if self.recoveries > MAX_RECOVERIES:
            return _TOO_OFTEN.format(MAX_RECOVERIES, self._reached)
        if self._goes_back(parked)[0] is None:
            return self._why_not_back(parked)
        return self._not_made(self._groups_of(parked.values()))

    def _recover(self, parked: Mapping[int, ParkRank]) -> list[Told]:
        step, snapshot = self._goes_back(parked)
        assert step is not None
        self.step, self._ordered, self._waiting = step, True, {}
        turns = itertools.count()
        newcomers = [self._newcomer(rank, step, parked, next(turns)) for rank in sorted(self._new)]
        orders = Orders(
            RECOVER,
            self.generation,
            step,
            snapshot,
            groups=self._groups_of(parked.values()),
            newcomers=newcomers,
        )
        return [
            Told(rank, told._replace(held=self._held_before(rank, step)))
            if rank in self._new and isinstance(told, Orders)
            else Told(rank, told)
            for rank, told in self._told(orders)
        ]

    def _newcomer(
        self, rank: int, step: int, parked: Mapping[int, ParkRank], turn: int
    ) -> Newcomer:
        peers = self._peers(rank, parked)
        if peers:  # each of them in turn
            source = peers[turn % len(peers)]
        else:
            kept = Kept(rank, step)
            source = next(each for each, asked in parked.items() if kept in asked.kept)
        process = self.processes[rank]
        return Newcomer(rank, process, source, self.processes[source], kept=not peers)

    def _peers(self, rank: int, parked: Mapping[int, ParkRank]) -> list[int]:
        # who lives and has the same
        parts = self._parts
        return [each for each in parked if parts[each] == parts[rank]]

    def _not_made(self, groups: Sequence[GroupMade]) -> str | None:
        for rank in sorted(self._new):
            for each in groups:
                is_missing = each.name not in self._made[rank] and not each.by_itself
                if rank in each.ranks and is_missing:
                    return _NOT_MADE.format(rank, each.name)
        return None

    def _goes_back(self, parked: Mapping[int, ParkRank]) -> tuple[int | None, bool]:
        asked = parked.values()
        lost = [rank for rank in self._new if not self._peers(rank, parked)]
        if not lost and all(each.can_retry for each in asked):
            return next(iter(asked)).step, False
        common = set.intersection(*(set(each.snapshots) for each in asked))
        for rank in lost:
            common &= {kept.step for each in asked for kept in each.kept if kept.rank == rank}
        return (max(common) if common else None), True

    def _groups_of(self, parked: Iterable[ParkRank]) -> list[GroupMade]:
        # those that can be whole, in one order for all: each waits for the others of a group
        # before it goes to the next
        every = {
            each.name: each
            for one in parked
            for each in one.groups
            if self.ranks.issuperset(each.ranks)
        }
        return [every[name] for name in sorted(every)]

    def _why_not_back(self, parked: Mapping[int, ParkRank]) -> str:
        kept = {each.rank for asked in parked.values() for each in asked.kept}
        gone = [rank for rank in self._new if rank not in kept and not self._peers(rank, parked)]
        if not gone:
            return "the ranks have no snapshot of the same step"
        return _NOBODY_HAS.format(rank_words(tuple(sorted(gone))))

    def ready(self, rank: int, generation: int) -> list[Told]:
        """A rank has done what it was ordered. With the last one all go on."""
        if self.phase is not Phase.RECOVERS or generation != self.generation:
            return [Told(rank, Verdict(good=False))]
        self._ready.add(rank)
        if self._ready < self.ranks:
            return []
        self.phase = Phase.RUNS
        self._new, self._ready, self._ordered, self._is_even = set(), set(), False, False
        self._shrinks = False
        return [Told(each, Verdict(good=True)) for each in sorted(self.ranks)]

    def fail(self, why: str) -> list[Told]:
        """The loop cannot go on: all raise, and whoever comes later. Those that park do so once
        they have taken the same steps: what they have then can be used."""
        if self.phase is not Phase.RECOVERS or self._ordered:
            return self._fail(why, set())
        self._fails = why
        return self._order()

    def go_on_without(self, ranks: Collection[int], why: str) -> list[Told]:
        """Nobody can take the place of these ranks: the others go on, if all can, and if each has
        a copy of what was lost. Else the loop fails."""
        can = self._may_be_fewer >= self.ranks - set(ranks)
        if self._ordered or not can or len(set(self._parts.values())) > 1:
            return self.fail(why)
        for rank in ranks:
            for known in (self.processes, self.hosts, self._held, self._first_parts):
                known.pop(rank, None)
            self._later_parts.pop(rank, None)
            self.lost.discard(rank)
        self._fewer = self._shrinks = True
        return self._order()

    def _fail(self, why: str, extra: Iterable[int]) -> list[Told]:
        waiting = set(self._ready)
        parked = (self._waiting.keys() | self._starts.keys() & set(extra)) - waiting
        self.phase, self._why = Phase.OVER, why
        self._ready, self._waiting = set(), {}
        void = [Told(rank, Verdict(good=False)) for rank in sorted(waiting)]
        return void + [Told(rank, Orders(RAISE, why=why)) for rank in sorted(parked)]

    def leave(self, rank: int, step: int, *, finished: bool) -> list[Told]:
        """A rank has left the loop. When all have, it is over."""
        self._left[rank] = finished
        self.step = max(self.step, step)
        if self._left.keys() >= self.ranks:
            self.phase = Phase.OVER
        if self.phase is not Phase.RECOVERS:
            return []
        # who is lost cannot be brought back: nobody waits for that
        parked = {each: asked for each, asked in sorted(self._waiting.items()) if asked}
        told = [Told(each, self._after_others(asked)) for each, asked in parked.items()]
        self._waiting = dict.fromkeys(self._waiting.keys() - parked.keys())
        return told + self._fail(_HAVE_LEFT.format(rank_words((rank,))), ())
