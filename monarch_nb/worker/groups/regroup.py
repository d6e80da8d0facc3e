"""Out of process groups that are of no use any more, into a new one: `%mesh regroup` on a rank.

Rule: nothing of the old groups is waited for. What blocks in one, or was left in it, would hang the
thread that lets go of it; so gloo's groups are kept for good, and others are aborted. Two steps, so
that no rank waits for one that cannot come: all leave, then all meet. Done between two cells.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import TYPE_CHECKING, Final

from monarch_nb.core.wire.messages import status
from monarch_nb.worker.groups import c10d
from monarch_nb.worker.groups.c10d import Group, World, backends_of, is_gloo
from monarch_nb.worker.groups.process_groups import ProcessGroups
from monarch_nb.worker.groups.waits import abort_groups

if TYPE_CHECKING:
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.worker.cells.queue import CellQueue

MEET_S: Final = 20.0
_PLAIN: Final = frozenset({"gloo", "nccl", "mpi", "ucc", "xccl"})


class Regrouping:
    """All process groups of a rank: left, and made again."""

    def __init__(self, cells: CellQueue, groups: ProcessGroups) -> None:
        self._cells = cells
        self._groups = groups
        self._had: status.DefaultGroup | None = None  # before it was left, until there is another

    def on_leave(self, _: status.LeaveGroups, asked: Message) -> None:
        self._cells.answer_later(self._leave, lambda why: status.LeftGroups(failed=why), asked)

    def on_meet(self, wanted: status.MeetAgain, asked: Message) -> None:
        def meet() -> status.Met:
            self._meet(wanted)
            return status.Met()

        self._cells.answer_later(meet, status.Met, asked)

    def before_heal(self) -> None:
        """End the default group; where something of it was abandoned, by forgetting it."""
        if c10d.loaded() is None or not c10d.world().pg_map:
            return
        world, groups = c10d.world(), self._groups
        group = world.default_pg
        is_broken = groups.abandoned or (group is not None and groups.is_kept(group))
        if group is None or is_broken or len(world.pg_map) > 1:
            self._leave()
        else:
            self._had = self._described(group, _backend(world, group))

    def heal(self, path: str, rank: int, size: int) -> None:
        """Leave the old group, meet at a new place: some peers are new, or gone for good."""
        home = c10d.loaded()
        if home is not None and home.is_initialized():
            home.destroy_process_group()
        self._groups.move(path, rank, size)

    def _leave(self) -> status.LeftGroups:
        home = c10d.loaded()
        if home is None or not c10d.world().pg_map:
            return status.LeftGroups(self._had)
        world = c10d.world()
        group, every = world.default_pg, list(world.pg_map)
        self._had = None if group is None else self._described(group, _backend(world, group))
        _abort(every)
        self._groups.keep(every)
        c10d.empty(home)
        return status.LeftGroups(self._had, len(every) - (group is not None))

    def _meet(self, wanted: status.MeetAgain) -> None:
        home = self._groups.home
        self._groups.move(wanted.store, home.rank, home.size, limit_s=MEET_S)
        if wanted.had is not None:
            backend, timeout_s = wanted.had
            options = {} if timeout_s is None else {"timeout": dt.timedelta(seconds=timeout_s)}
            init = c10d.load("torch.distributed").init_process_group
            init(backend, **options)
        self._had = None

    def _described(self, group: Group, backend: str) -> status.DefaultGroup | None:
        # None for a group that is not that of the mesh: nobody knows how to make it again
        home = self._groups.home
        if (group.rank(), group.size()) != (home.rank, home.size):
            return None
        timeout = self._groups.timeouts.timeout(group.group_name)
        timeout_s = None if timeout is None else timeout.total_seconds()
        return status.DefaultGroup(backend, timeout_s)


def _backend(world: World, group: Group) -> str:
    name = world.pg_map[group][0]
    return str(name if name in _PLAIN else world.pg_backend_config[group])


def _abort(every: list[Group]) -> None:
    abort_groups(every)
    for group in every:
        for backend in backends_of(group):
            if not is_gloo(backend):
                with contextlib.suppress(Exception):  # its peers may be gone
                    backend.abort()
