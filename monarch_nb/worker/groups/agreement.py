"""How far this rank is in its process groups, and how it gets in step with the others again.

The controller compares what ranks tell (`core/hangs/agreement.py`) and decides. A group is made
again in place: the object stays the same, in PyTorch's tables, in DDP, in a DeviceMesh, in
variables; what connects it is new. What had been begun on the old connections never ends in it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from monarch_nb.core.hangs.collectives import Entry, pending
from monarch_nb.core.wire.messages import groups as messages
from monarch_nb.core.wire.messages.groups import Awaited, GroupCounts, GroupWait
from monarch_nb.worker.groups import c10d, flight_recorder
from monarch_nb.worker.groups.c10d import Group
from monarch_nb.worker.groups.connecting import connect_again
from monarch_nb.worker.groups.process_groups import ProcessGroups, ToOne, Wait
from monarch_nb.worker.groups.waits import abort_groups

if TYPE_CHECKING:
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.worker.cells.queue import CellQueue

IN_CPP: Final = 0
"""The number of a wait of the main thread of which Python knows nothing."""
Turn = tuple[int, int]
"""Who is answered by what a thread does: process and port."""


class Agreement:
    """Tells how far a rank is in its groups, and makes them again.

    `turn_of(thread)` is what a thread works for; `is_at_rest()` whether no code of the user's runs
    or waits.
    """

    def __init__(
        self,
        cells: CellQueue,
        groups: ProcessGroups,
        turn_of: Callable[[int], Turn],
        is_at_rest: Callable[[], bool],
    ) -> None:
        self._cells = cells
        self._groups = groups
        self._turn_of = turn_of
        self._is_at_rest = is_at_rest

    def standings(self, _: messages.GetStandings) -> messages.Standings:
        """Tell how far this rank is. Not for the inbox thread: the recorder may be asked."""
        at_rest = self._is_at_rest()  # before: who rests has begun nothing since
        if c10d.loaded() is None:
            return messages.Standings([], [], at_rest)
        groups = [self._counted(each) for each in list(c10d.world().pg_map)]
        return messages.Standings(groups, list(self._waits()), at_rest)

    def on_end(self, wanted: messages.EndWait, _: Message) -> None:
        if wanted.number == IN_CPP:
            if what := self._stuck():
                self._groups.end_in_cpp(what, wanted.why)
            return
        for wait in list(self._groups.waits.values()):
            if wait.number == wanted.number:
                wait.end(wanted.why)
                self._cut(wait)

    def on_refuse(self, wanted: messages.RefuseGroups, _: Message) -> None:
        self._groups.abandoned.refuse(wanted.groups, wanted.why)

    def on_again(self, wanted: messages.MakeAgain, asked: Message) -> None:
        def make() -> messages.MadeAgain:
            self._make(wanted)
            return messages.MadeAgain()

        self._cells.answer_later(make, messages.MadeAgain, asked)

    def _make(self, wanted: messages.MakeAgain) -> None:
        home = c10d.loaded()
        if home is None:
            return
        for group in _named(wanted.dropped):
            abort_groups([group])
            self._groups.keep([group])
            c10d.drop(home, group)
            self._groups.abandoned.forget(group.group_name)
        for group in _named(wanted.groups):
            abort_groups([group])
            connect_again(self._groups, group)

    def _counted(self, group: Group) -> GroupCounts:
        ranks = c10d.ranks_of(group)
        counts = {}
        for device in group._device_types:
            with contextlib.suppress(RuntimeError):  # a backend that does not count
                counts[device.type] = group._get_backend(device)._get_sequence_number_for_group()
        for (kind, peer), count in self._groups.to_one.get(group.group_name, {}).items():
            counts[_kind(kind, peer, ranks)] = count
        left = self._groups.abandoned.left_in(group.group_name)
        return GroupCounts(group.group_name, ranks, counts, left)

    def _waits(self) -> Iterator[GroupWait]:
        main = threading.main_thread().ident or 0
        for thread, wait in list(self._groups.waits.items()):
            turn = self._turn_of(thread)
            yield GroupWait(wait.number, wait.what, *turn, self._awaited(wait))
        if main not in self._groups.waits and (what := self._stuck()):
            yield GroupWait(IN_CPP, what, *self._turn_of(main), self._recorded())

    def _awaited(self, wait: Wait) -> list[Awaited]:
        with contextlib.suppress(RuntimeError, TimeoutError):  # nobody knows
            if missing := wait.missing():
                return [Awaited("", "", 0, list(missing))]
        group = self._group_of(wait)
        if group is None:
            return self._recorded()
        ranks, me = c10d.ranks_of(group), self._groups.world.rank
        others = [rank for rank in ranks if rank != me]
        if (one := self._to_one(wait)) is not None:
            peers = [ranks[one.peer]] if isinstance(one.peer, int) else others
            return [Awaited(one.group, _kind(one.kind, one.peer, ranks), one.number, peers)]
        device = group._device_types[-1].type
        number = self._counted(group).counts.get(device, 0)
        return [Awaited(group.group_name, device, number, others)]

    def _recorded(self) -> list[Awaited]:
        # of a wait whose group is unknown: all that has been begun and has not ended
        members = {group.group_name: group for group in list(c10d.world().pg_map)}
        entries: dict[str, list[Entry]] = {}
        for written in flight_recorder.recorded(self._groups.timeouts):
            entry = flight_recorder.row(written)
            entries.setdefault(entry.group, []).append(entry)
        found = []
        for name, of_group in entries.items():
            first = pending(of_group)
            if first is not None and (group := members.get(name)) is not None:
                device = group._device_types[-1].type
                found.append(Awaited(name, device, first.seq, c10d.ranks_of(group)))
        return found

    def _stuck(self) -> str:
        return "backward pass" if self._groups.is_stuck_in_backward() else ""

    def _to_one(self, wait: Wait) -> ToOne | None:
        return None if wait.work is None else self._groups.begun_to_one.get(wait.work)

    def _group_of(self, wait: Wait) -> Group | None:
        if (one := self._to_one(wait)) is not None:
            return next(iter(_named([one.group])), None)
        return c10d.group_of(wait.frame)

    def _cut(self, wait: Wait) -> None:
        # one that no slice ends: by closing the connections of its group
        if wait.what in self._groups.blocked and (group := self._group_of(wait)) is not None:
            self._groups.abandoned.broke(wait.what, [group.group_name])
            abort_groups([group])


def _named(names: list[str]) -> list[Group]:
    found = {group.group_name: group for group in list(c10d.world().pg_map)}
    return [found[name] for name in names if name in found]


def _kind(kind: str, peer: object, ranks: list[int]) -> str:
    return f"{kind}{ranks[peer] if isinstance(peer, int) else peer}"
