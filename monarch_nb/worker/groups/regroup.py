"""Out of process groups that are of no use any more, into a new one: `%mesh regroup` on a rank.

Rule: nothing of the old groups is waited for. What blocks in one, or was left in it, would hang the
thread that lets go of it; so gloo's groups are kept for good, and others are aborted. Two steps, so
that no rank waits for one that cannot come: all leave, then all meet. Done between two cells.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from monarch_nb.core.wire.messages.status import (
    DefaultGroup,
    LeaveGroups,
    LeftGroups,
    MeetAgain,
    Met,
)
from monarch_nb.worker.groups import abort, collectives, registry, rendezvous
from monarch_nb.worker.groups.timeouts import backends_of, is_gloo

if TYPE_CHECKING:
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.process.process import Proc
    from monarch_nb.worker.cells.queue import CellQueue

MEET_S: Final = 20.0
_PLAIN: Final = frozenset({"gloo", "nccl", "mpi", "ucc", "xccl"})


class Regrouping:
    """Serves the verbs `leave_groups` and `meet_again`."""

    def __init__(self, proc: Proc, cells: CellQueue, boot: Mapping[str, Any]) -> None:
        self._proc = proc
        self._cells = cells
        self._boot = boot
        self._had: DefaultGroup | None = None  # before it was left, until there is another

    def on_leave(self, _: LeaveGroups, asked: Message) -> None:
        """Forget all groups."""

        def turn(message: Message) -> None:
            try:
                left = self._leave()
            except BaseException as error:  # noqa: BLE001  PyTorch's, told to who has asked
                left = LeftGroups(failed=f"{type(error).__name__}: {error}")
            self._proc.answer(message, left)

        self._cells.later(turn, asked)

    def on_meet(self, wanted: MeetAgain, asked: Message) -> None:
        """Make a default group again."""

        def turn(message: Message) -> None:
            met = Met()
            try:
                self._meet(wanted)
            except BaseException as error:  # noqa: BLE001  PyTorch's, told to who has asked
                met = Met(failed=f"{type(error).__name__}: {error}")
            self._proc.answer(message, met)

        self._cells.later(turn, asked)

    def before_heal(self) -> None:
        """Its group ends; where something of it was left, by being forgotten."""
        c10d = registry.module()
        if c10d is None or not c10d._world.pg_map:
            return
        group = c10d._world.default_pg
        is_broken = collectives.left or group in collectives.held
        if group is None or is_broken or len(c10d._world.pg_map) > 1:
            self._leave()
        else:
            backend = _backend(c10d._world, group)
            self._had = _had(group, backend, self._boot["rank"], self._boot["world_size"])

    def _leave(self) -> LeftGroups:
        left = leave()
        if left is None:
            return LeftGroups(self._had)
        rank, size = self._boot["rank"], self._boot["world_size"]
        self._had = None if left.group is None else _had(left.group, left.backend, rank, size)
        return LeftGroups(self._had, left.others)

    def _meet(self, wanted: MeetAgain) -> None:
        rank, size = self._boot["rank"], self._boot["world_size"]
        rendezvous.move(wanted.store, rank, size, limit_s=MEET_S)
        if wanted.had is not None:
            backend, timeout_s = wanted.had
            options = {} if timeout_s is None else {"timeout": dt.timedelta(seconds=timeout_s)}
            distributed: Any = importlib.import_module("torch.distributed")
            distributed.init_process_group(backend, **options)
        self._had = None


class Left(NamedTuple):
    """What there was: the default group, its backend, and how many other groups."""

    group: Any
    backend: str
    others: int


def leave() -> Left | None:
    """Forget all groups of this process; None: there was none."""
    c10d = registry.module()
    if c10d is None or not c10d._world.pg_map:
        return None
    world = c10d._world
    group, every = world.default_pg, list(world.pg_map)
    backend = "" if group is None else _backend(world, group)
    left = Left(group, backend, len(every) - (group is not None))
    _drop(every)
    registry.empty(c10d)
    return left


def _backend(world: Any, group: Any) -> str:
    """As `init_process_group` takes it."""
    name = world.pg_map[group][0]
    return str(name if name in _PLAIN else world.pg_backend_config[group])


def _drop(every: list[Any]) -> None:
    abort.break_groups(every)
    for group in every:
        for backend in backends_of(group):
            if not is_gloo(backend):
                with contextlib.suppress(Exception):  # its peers may be gone
                    backend.abort()
    collectives.held.extend(every)


def _had(group: Any, backend: str, rank: int, size: int) -> DefaultGroup | None:
    """None for a group that is not that of the mesh: nobody knows how to make it again."""
    if (group.rank(), group.size()) != (rank, size):
        return None
    timeout = collectives.facts.timeout(group.group_name)
    timeout_s = None if timeout is None else timeout.total_seconds()
    return DefaultGroup(backend, timeout_s)
