"""The process groups of this rank: one object, which all that deals with groups is given.

It knows where groups meet, which of them are of no use any more, what the main thread waits in, and
ends such a wait when the rank is interrupted or a member has died.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Final, NamedTuple

from monarch_nb.worker.groups import c10d, flight_recorder
from monarch_nb.worker.groups.c10d import Backend, Group, Store
from monarch_nb.worker.groups.meeting.deaths import Peer, PeerDeaths
from monarch_nb.worker.groups.meeting.keys import Keys
from monarch_nb.worker.groups.timeouts import GroupTimeouts
from monarch_nb.worker.groups.waits import (
    Abandoned,
    abort_groups,
    backward_frame,
    is_in,
)
from monarch_nb.worker.status.board_writer import BoardWriter, Waited

if TYPE_CHECKING:
    from monarch_nb.process.process import Proc

SETTLE_S: Final = 1.0
STUCK_S: Final = 1.5
"""A collective that DDP has begun so long ago is why `backward` does not end."""
LOOK_S: Final = 0.1
"""How often it is looked whether an interrupted backward pass is stuck."""
TO: Final = "to "
FROM: Final = "from "
ANYBODY: Final = "*"
FIRST_KIND: Final = 64
"""Kinds of backends of PyTorch's own are smaller numbers. A group keeps a backend for each kind for
ever, and uses that of the kind which was registered last for a device."""
LAST_KIND: Final = 255


@dataclasses.dataclass
class Place:
    """Where the groups of one world meet, by its name in the store of the mesh, and who this
    process is in it. `can_be_left`: ranks leave it, that of a script; nobody leaves the cells'."""

    name: str
    rank: int
    size: int
    can_be_left: bool = False
    group: int = 0  # all before have met
    limit_s: float = float("inf")  # for peers to come, if the group's timeout is longer
    processes: dict[int, Peer] = dataclasses.field(default_factory=dict)  # of who has been met


class ToOne(NamedTuple):
    """The `number`th message of this rank to (`TO`) or from (`FROM`) a member of a group, by its
    rank there, or `ANYBODY`."""

    group: str
    kind: str
    peer: object
    number: int


class Wait:
    """A wait for other ranks: in `what`, called by `frame` of PyTorch's, for `work` if that is
    known; or for `missing` ranks to come where a group is made. `ended`: why it is of no use any
    more; empty: it is."""

    __slots__ = ("depth", "ended", "frame", "missing", "number", "shown", "what", "work")

    def __init__(
        self,
        number: int,
        what: str,
        frame: FrameType | None,
        shown: Waited | None,
        work: object | None = None,
    ) -> None:
        self.number = number
        self.what = what
        self.frame = frame
        self.work = work
        self.shown = shown
        self.missing: Callable[[], Sequence[int]] = tuple
        self.ended = ""
        self.depth = 0  # of waits within

    def within(self) -> Wait:
        """Return itself, for a wait inside it."""
        self.depth += 1
        return self

    def is_over(self) -> bool:
        """Count an end; tell whether it was its own, and not that of a wait inside it."""
        self.depth -= 1
        return self.depth < 0

    def misses(self, missing: Callable[[], Sequence[int]]) -> None:
        """Have this looked up when somebody asks who is missing."""
        self.missing = missing

    def end(self, why: str) -> None:
        """Have it raise, soon. Any thread."""
        self.ended = why


class ProcessGroups:
    """All of this process.

    `owner` is the process that owns the mesh and keeps the keys under which ranks meet. Waits for
    other ranks are shown on `board`. `paused(seconds)` says for how long, in the last
    `seconds`, a debugger paused a rank of the mesh: that time does not count. `tell(left)` is
    called when the first group is made, and with True when an operation was left before its end.
    `shares_gpus`: ranks of the mesh have the same GPU, which NCCL refuses.
    """

    def __init__(
        self,
        home: Place,
        board: BoardWriter,
        proc: Proc,
        owner: int,
        paused: Callable[[float], float] = lambda _: 0.0,
        tell: Callable[[bool], None] = lambda _: None,
        *,
        shares_gpus: bool = False,
    ) -> None:
        self.shares_gpus = shares_gpus
        self.proc = proc
        self.board = board
        self.paused = paused
        self.tell = tell
        self.timeouts = GroupTimeouts()
        self.abandoned = Abandoned(lambda: self.keep(c10d.world().pg_map), self._tell_left)
        self.deaths = PeerDeaths(proc, self._abort_bereaved)
        self.waits: dict[int, Wait] = {}
        """By thread."""
        self.to_one: dict[str, dict[tuple[str, object], int]] = {}
        """How much was sent to and received from single ranks of a group, by the group's name."""
        self.begun_to_one: weakref.WeakKeyDictionary[object, ToOne] = weakref.WeakKeyDictionary()
        """By what it is waited for with."""
        self._kinds: dict[str, int] = {}  # the last of each group
        self._ended_in_cpp = ""
        self._numbers = itertools.count(1)
        self.blocked: list[str] = []
        """What the main thread waits in where no signal is seen."""
        self._owner = owner
        self._places = [home]
        self.is_alone = False
        """Groups are made as if all were there: nobody is met."""
        self._is_one = False
        self.bereaved = 0
        """How often groups were closed because a member had died."""
        self.bereaved_ns = 0
        """When they were, the last time (`time.time_ns`)."""
        # never let go of: what of theirs has not ended would be waited for
        self._kept: list[Group] = []
        self._kept_backends: list[Backend] = []
        self._kept_stores: list[Store] = []

    # where groups meet

    def begin_alone(self) -> None:
        self.is_alone = True

    def end_alone(self) -> None:
        self.is_alone = False

    def use_as_one(self, *, is_one: bool) -> None:
        """Let groups be closed also when a member of another one has died: ranks that have met it
        go on nowhere."""
        self._is_one = is_one

    @property
    def home(self) -> Place:
        return self._places[0]

    @property
    def world(self) -> Place:
        return self._places[-1]

    @property
    def is_of_cells(self) -> bool:
        """Whether the world is the mesh's, and not that of a script."""
        return len(self._places) == 1

    @contextlib.contextmanager
    def meeting_at(self, place: Place) -> Iterator[None]:
        self._places.append(place)
        try:
            yield
        finally:
            self._places.pop()

    def move(self, name: str, rank: int, size: int, limit_s: float = float("inf")) -> None:
        """Let the next groups meet at a new place; the next of all within `limit_s`."""
        self._places[:] = [Place(name, rank, size, limit_s=limit_s)]

    def keys(self, place: Place) -> Keys:
        """Return those of a place."""
        return Keys(self.proc, lambda: self._owner, place.name)

    def belong_to(self, owner: int) -> None:
        """Have another process keep the keys from now on."""
        self._owner = owner

    def keep_store(self, store: Store) -> None:
        self._kept_stores.append(store)

    # waits for other ranks

    def begin_wait(
        self, what: str, frame: FrameType | None = None, work: object | None = None
    ) -> Wait:
        """Show that this thread waits for other ranks, until `end_wait`."""
        thread = threading.get_ident()
        if (outer := self.waits.get(thread)) is not None:
            return outer.within()
        wait = Wait(next(self._numbers), what, frame, self.board.collective(what), work)
        self.waits[thread] = wait
        return wait

    def end_wait(self, wait: Wait) -> None:
        if not wait.is_over():
            return
        del self.waits[threading.get_ident()]
        self.board.resume(wait.shown)

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[Wait]:
        """Do as these two."""
        wait = self.begin_wait(what)
        try:
            yield wait
        finally:
            self.end_wait(wait)

    def interrupted(self) -> bool:
        """End what the main thread, just interrupted, waits for without seeing that; a backward
        pass once it is stuck.

        Returns whether there is something. Any other thread.
        """
        if c10d.loaded() is None or not self.timeouts.only_gloo:
            return False
        if self.blocked:
            self._break_all(self.blocked[-1])
            return True
        if (frame := backward_frame()) is None:
            return False
        ending = threading.Thread(
            target=self._end_backward, args=(frame,), name="monarch-backward", daemon=True
        )
        ending.start()
        return True

    def _end_backward(self, frame: FrameType) -> None:
        # others, interrupted too, may have left what it will come to wait for
        while is_in(frame):
            if self.is_stuck_in_backward():
                self._break_all("backward pass")
                return
            time.sleep(LOOK_S)

    def is_stuck_in_backward(self, for_s: float = STUCK_S) -> bool:
        """Return whether the main thread is in a backward pass that has waited so long for a
        collective of gloo."""
        return self.is_in_backward_since(time.time_ns() - int(for_s * 1e9))

    def is_in_backward_since(self, before_ns: int) -> bool:
        """Return whether the main thread is in a backward pass, and a collective of gloo that was
        begun before then (`time.time_ns`) has not ended."""
        if backward_frame() is None:
            return False
        return any(
            not each["retired"] and each["time_created_ns"] < before_ns
            for each in flight_recorder.recorded(self.timeouts)[-flight_recorder.LAST :]
            if each["profiling_name"].startswith("gloo:")
        )

    def end_in_cpp(self, what: str, why: str) -> None:
        """End a wait of the main thread in C++: `explained` says why. Any other thread."""
        self._ended_in_cpp = f"{what}: {why}"
        self._break_all(what)

    def explained(self, error: BaseException) -> BaseException:
        """Note why a wait in C++ was ended, on the error that came of it."""
        why, self._ended_in_cpp = self._ended_in_cpp, ""
        if why and isinstance(error, RuntimeError):
            error.add_note(why)
        return error

    def _break_all(self, what: str) -> None:
        # ends what waits in C++, by closing the connections of all groups
        groups = list(c10d.world().pg_map)
        self.abandoned.broke(what, [each.group_name for each in groups])
        abort_groups(groups)

    def tell_again(self) -> None:
        """Tell a new controller what the one before was told."""
        if c10d.loaded() is not None and c10d.world().pg_map:
            self.tell(bool(self.abandoned))

    def _tell_left(self) -> None:
        if self.is_of_cells:
            self.tell(True)

    def settle(self) -> None:
        """Let nothing of the groups that there are now be under way, as nobody will wait for it;
        then they need not be kept."""
        groups = list(c10d.world().pg_map)
        if self.abandoned:
            abort_groups(groups)
        deadline = time.monotonic() + SETTLE_S
        while self.abandoned.is_under_way() and time.monotonic() < deadline:
            time.sleep(0.005)
        if not self.abandoned.is_under_way():
            self._kept = [each for each in self._kept if all(each is not group for group in groups)]
            self.abandoned.forget()

    # groups of no use

    def keep(self, groups: Iterable[Group]) -> None:
        self._kept.extend(group for group in groups if group not in self._kept)

    def is_kept(self, group: Group) -> bool:
        return group in self._kept

    def new_kind(self, group: str) -> int:
        """Return the number of a kind of backends that a group has not had. Raises `RuntimeError`
        when it has had all."""
        found = self._kinds[group] = self._kinds.get(group, FIRST_KIND - 1) + 1
        if found > LAST_KIND:
            many = LAST_KIND - FIRST_KIND + 1
            raise RuntimeError(f"process group {group!r} was connected again {many} times")
        return found

    def renewed(self, group: Group, old: Iterable[Backend]) -> None:
        """Note that a group has new connections; its `old` ones are never let go of."""
        self._kept_backends.extend(old)
        self._kept = [each for each in self._kept if each is not group]
        self.to_one.pop(group.group_name, None)
        self.abandoned.forget(group.group_name)
        self.timeouts.renewed(group.group_name)

    def peers(self) -> list[int]:
        """Return the processes of this host that this one has met; none in a world where ranks
        have met in a way of their own."""
        home = Peer.myself(self.proc.id).home
        return [each.pid for each in self.world.processes.values() if each.home == home]

    def processes_of(self, group: Group | None) -> dict[int, Peer]:
        """Return processes by rank of the mesh; of a group that is unknown, or None, all."""
        # a script's ranks leave it alive, and say so themselves
        processes = self.world.processes if self.is_of_cells else {}
        ranks = None if group is None else c10d.world().pg_group_ranks.get(group)
        return {r: p for r, p in processes.items() if ranks is None or r in ranks}

    def expect(self, processes: Mapping[int, int]) -> None:
        """Know who is to be met, process by rank: what waits for one that has died ends."""
        known = self.world.processes
        new = {
            rank: Peer(process, 0, "")
            for rank, process in processes.items()
            if rank not in known or known[rank].process != process
        }
        known.update(new)
        self.deaths.watch(new.values())

    def _abort_bereaved(self) -> None:
        # nobody is to wait in a group that has lost a member: gloo tells its neighbours only
        all_are = self._is_one and bool(self.deaths.among(self.processes_of(None)))
        for group in list(c10d.world().pg_map):
            is_bereaved = all_are or self.deaths.among(self.processes_of(group))
            if not self.is_kept(group) and is_bereaved:
                self.bereaved += 1  # before what it waits for ends
                self.keep([group])
                abort_groups([group])
                self.bereaved_ns = time.time_ns()
