"""Out of process groups that are of no use any more, into a new one: `%mesh regroup` on a rank.

Rule: nothing of the old groups is waited for. What blocks in one, or was left in it, would hang the
thread that lets go of it; so gloo's groups are kept for good, and others are aborted. Two steps, so
that no rank waits for one that cannot come: all leave, then all meet. Done between two cells.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypedDict

from monarch_nb.worker.groups import abort, c10d
from monarch_nb.worker.groups.c10d import Group, World, backends_of, is_gloo
from monarch_nb.worker.groups.process_groups import ProcessGroups

if TYPE_CHECKING:
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.process.process import Proc
    from monarch_nb.worker.cells.queue import CellQueue

MEET_S: Final = 20.0
_PLAIN: Final = frozenset({"gloo", "nccl", "mpi", "ucc", "xccl"})

Body = dict[str, Any]


class GroupSettings(TypedDict):
    backend: str
    timeout_s: float | None


class Regrouping:
    """Serves the verbs `leave_groups` and `meet_again`."""

    def __init__(self, proc: Proc, cells: CellQueue, groups: ProcessGroups) -> None:
        self._proc = proc
        self._cells = cells
        self._groups = groups
        self._had: GroupSettings | None = None  # before it was left, until there is another
        proc.verbs["leave_groups"] = lambda body, message: self._later(self._leave, body, message)
        proc.verbs["meet_again"] = lambda body, message: self._later(self._meet, body, message)

    def before_heal(self) -> None:
        """End the default group; where something of it was abandoned, by forgetting it."""
        if c10d.loaded() is None or not c10d.world().pg_map:
            return
        world, groups = c10d.world(), self._groups
        group = world.default_pg
        is_broken = groups.abandoned or (group is not None and groups.is_kept(group))
        if group is None or is_broken or len(world.pg_map) > 1:
            self._leave({})
        else:
            self._had = self._described(group, _backend(world, group))

    def heal(self, path: str, rank: int, size: int) -> None:
        """Some peers are new, or gone for good: leave the old group, meet at a new place."""
        home = c10d.loaded()
        if home is not None and home.is_initialized():
            home.destroy_process_group()
        self._groups.move(path, rank, size)

    def _later(self, step: Callable[[Body], Body], body: Body, asked: Message) -> None:
        def turn(message: Message) -> None:
            try:
                answer = {"ok": True, **step(body)}
            except BaseException as error:  # noqa: BLE001  PyTorch's, told to who has asked
                answer = {"failed": f"{type(error).__name__}: {error}"}
            self._proc.answer(message, answer)

        self._cells.later(turn, asked)

    def _leave(self, _: Body) -> Body:
        home = c10d.loaded()
        if home is None or not c10d.world().pg_map:
            return {"had": self._had, "others": 0}
        world = c10d.world()
        group, every = world.default_pg, list(world.pg_map)
        self._had = None if group is None else self._described(group, _backend(world, group))
        _abort(every)
        self._groups.keep(every)
        c10d.empty(home)
        return {"had": self._had, "others": len(every) - (group is not None)}

    def _meet(self, body: Body) -> Body:
        home = self._groups.home
        self._groups.move(body["store"], home.rank, home.size, limit_s=MEET_S)
        if body["had"] is not None:
            timeout_s = body["had"]["timeout_s"]
            options = {} if timeout_s is None else {"timeout": dt.timedelta(seconds=timeout_s)}
            init = c10d.load("torch.distributed").init_process_group
            init(body["had"]["backend"], **options)
        self._had = None
        return {}

    def _described(self, group: Group, backend: str) -> GroupSettings | None:
        """None for a group that is not that of the mesh: nobody knows how to make it again."""
        home = self._groups.home
        if (group.rank(), group.size()) != (home.rank, home.size):
            return None
        timeout = self._groups.timeouts.timeout(group.group_name)
        timeout_s = None if timeout is None else timeout.total_seconds()
        return {"backend": backend, "timeout_s": timeout_s}


def _backend(world: World, group: Group) -> str:
    name = world.pg_map[group][0]
    return str(name if name in _PLAIN else world.pg_backend_config[group])


def _abort(every: list[Group]) -> None:
    abort.abort_groups(every)
    for group in every:
        for backend in backends_of(group):
            if not is_gloo(backend):
                with contextlib.suppress(Exception):  # its peers may be gone
                    backend.abort()
