"""The process groups of this rank: one object, which all that deals with groups is given.

It knows where groups meet, which of them are of no use any more, what the main thread waits in, and
ends such a wait when the rank is interrupted or a member has died.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from monarch_nb.worker.groups import abort, c10d
from monarch_nb.worker.groups.c10d import Group
from monarch_nb.worker.groups.peer_deaths import PeerDeaths
from monarch_nb.worker.groups.timeouts import GroupTimeouts
from monarch_nb.worker.groups.waits import Abandoned
from monarch_nb.worker.status.board_writer import BoardWriter

SETTLE_S: Final = 1.0


@dataclasses.dataclass
class Place:
    """Where the groups of one world meet, and who this process is in it.

    `marks` is the folder in which ranks say that they have left; empty for the world of the cells,
    which nobody leaves.
    """

    path: str
    rank: int
    size: int
    marks: str = ""
    group: int = 0  # all before have met
    limit_s: float = float("inf")  # for peers to come, if the group's timeout is longer
    processes: dict[int, str] = dataclasses.field(default_factory=dict)  # of who has been met

    def gone(self, ranks: list[int]) -> list[int]:
        return [rank for rank in ranks if self.marks and self.mark(rank).exists()]

    def mark(self, rank: int) -> Path:
        return Path(self.marks, f"left-{rank}")


class ProcessGroups:
    """All of this process.

    Waits for other ranks are shown on `board`. `paused(seconds)` says for how long, in the last
    `seconds`, a debugger paused a rank of the mesh: that time does not count.
    """

    def __init__(
        self, home: Place, board: BoardWriter, paused: Callable[[float], float] = lambda _: 0.0
    ) -> None:
        self.board = board
        self.paused = paused
        self.timeouts = GroupTimeouts()
        self.abandoned = Abandoned(lambda: self.keep(c10d.world().pg_map))
        self.deaths = PeerDeaths(self._abort_bereaved)
        self.blocked: list[str] = []
        """What the main thread waits in where no signal is seen."""
        self._places = [home]
        # never let go of: what of theirs has not ended would be waited for
        self._kept: list[Group] = []

    # where groups meet

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

    def move(self, path: str, rank: int, size: int, limit_s: float = float("inf")) -> None:
        """The next groups meet at a new place; the next of all within `limit_s`."""
        self._places[:] = [Place(path, rank, size, limit_s=limit_s)]

    # waits for other ranks

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        waited = self.board.collective(what)
        try:
            yield
        finally:
            self.board.resume(waited)

    def interrupted(self) -> bool:
        """The main thread was interrupted a moment ago: end what it waits for without seeing that.

        Returns whether there was something. Any other thread.
        """
        if c10d.loaded() is None or not self.timeouts.only_gloo:
            return False
        stuck = self.blocked[-1] if self.blocked else ""
        what = stuck or ("backward pass" if abort.is_stuck_in_backward() else "")
        if what:
            self.abandoned.broke(what)
            abort.abort_groups(list(c10d.world().pg_map))
        return bool(what)

    def settle(self) -> None:
        """Let nothing of the groups that there are now be under way: nobody will wait for it."""
        groups = list(c10d.world().pg_map)
        abort.abort_groups(groups)
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

    def processes_of(self, group: Group | None) -> dict[int, str]:
        """By rank of the mesh; of a group that is unknown, or None, all."""
        # a script's ranks leave it alive, and say so themselves
        processes = self.world.processes if self.is_of_cells else {}
        ranks = None if group is None else c10d.world().pg_group_ranks.get(group)
        return {r: p for r, p in processes.items() if ranks is None or r in ranks}

    def _abort_bereaved(self) -> None:
        # nobody is to wait in a group that has lost a member: gloo tells its neighbours only
        for group in list(c10d.world().pg_map):
            if not self.is_kept(group) and self.deaths.among(self.processes_of(group)):
                self.keep([group])
                abort.abort_groups([group])
