"""The process groups of `torch.distributed` that cells have made, kept apart from those of a
script.

PyTorch keeps the groups of a process in tables of its own; while a script runs, those are empty for
it. What it has left in them at its end is destroyed, as the end of its process would do.

Each group that the script makes is held here until its other objects are gone: when a DDP model is
the last to let go of a gloo group, PyTorch joins that group's threads while it holds the GIL, and
they may need it.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Final

from monarch_nb.worker.groups import collectives

_TABLES: Final = (
    "pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "tags_to_pg", "pg_to_tag",
    "pg_coalesce_state",
)  # fmt: skip


class CellGroups:
    """The groups of the cells, out of the script's sight from now on until `put_back`."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[Any, Any]] = {}
        self._comms: list[Any] = []
        self._default: Any = None
        self._count = 0
        self._method: Any = None
        self._register: Any = None
        self._held: list[Any] = []
        if (c10d := module()) is not None:
            self._take(c10d)

    def _take(self, c10d: Any) -> None:
        world = c10d._world
        self._tables = {name: dict(getattr(world, name)) for name in _TABLES}
        self._comms = list(getattr(world, "comms", ()))
        self._default, self._count = world.default_pg, world.group_count
        self._method = c10d._default_pg_init_method
        self._register = c10d._register_process_group
        c10d._register_process_group = self._hold
        empty(c10d)

    def _hold(self, name: str, group: Any) -> None:
        self._held.append(group)
        self._register(name, group)

    def put_back(self, *, failed: bool) -> None:
        """End what the script has left behind, not waiting for its peers if it has `failed`."""
        c10d = module()
        if c10d is None:
            return
        if collectives.left:
            collectives.settle()
        _end(c10d, failed)
        empty(c10d)
        if self._register is not None:
            c10d._register_process_group = self._register
        world = c10d._world
        for name, table in self._tables.items():
            getattr(world, name).update(table)
        if self._comms:
            world.comms.extend(self._comms)
        for group, name in self._tables.get("pg_names", {}).items():
            c10d._register_process_group(name, group)
        c10d._update_default_pg(self._default)
        c10d._default_pg_init_method = self._method
        world.group_count = self._count

    def release(self) -> None:
        """All that used the script's groups is gone."""
        self._held.clear()


def module() -> Any:
    """PyTorch's module of process groups, if anything has loaded it and it is of use here."""
    module = sys.modules.get("torch.distributed.distributed_c10d")
    return module if hasattr(module, "_world") else None


def _end(c10d: Any, failed: bool) -> None:
    if c10d._world.default_pg is None:
        return
    end = c10d._abort_process_group if failed else c10d.destroy_process_group
    with contextlib.suppress(Exception):  # peers may be gone: nobody is there to be told
        end()


def empty(c10d: Any) -> None:
    """Take all groups out of PyTorch's sight."""
    world = c10d._world
    for name in _TABLES:
        getattr(world, name).clear()
    getattr(world, "comms", []).clear()
    c10d._unregister_all_process_groups()
    c10d._update_default_pg(None)
    c10d._default_pg_init_method = None
    world.group_count = 0


def drop_default(c10d: Any) -> None:
    """Take the default group out of PyTorch's sight, and leave the others there."""
    world, group = c10d._world, c10d._world.default_pg
    for name in _TABLES:
        getattr(world, name).pop(group, None)
    for tagged in world.tags_to_pg.values():
        tagged[:] = [each for each in tagged if each is not group]
    c10d._unregister_process_group(group.group_name)
    c10d._update_default_pg(None)
    c10d._default_pg_init_method = None
    world.group_count = 0
