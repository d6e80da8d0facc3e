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
from collections.abc import Callable
from types import ModuleType

from monarch_nb.worker.groups import c10d
from monarch_nb.worker.groups.c10d import Group
from monarch_nb.worker.groups.process_groups import ProcessGroups


class CellGroups:
    """The groups of the cells, out of the script's sight from now on until `put_back`."""

    def __init__(self, groups: ProcessGroups) -> None:
        self._groups = groups
        self._tables: dict[str, dict[Group, str]] = {}
        self._comms: list[object] = []
        self._default: Group | None = None
        self._count = 0
        self._method: object = None
        self._register: Callable[[str, Group], None] | None = None
        self._held: list[Group] = []
        if (home := c10d.loaded()) is not None:
            self._take(home)

    def _take(self, home: ModuleType) -> None:
        world = home._world
        self._tables = {name: dict(getattr(world, name)) for name in c10d.TABLES}
        self._comms = list(getattr(world, "comms", ()))
        self._default, self._count = world.default_pg, world.group_count
        self._method = home._default_pg_init_method
        self._register = register = home._register_process_group

        def registered(name: str, group: Group) -> None:
            self._held.append(group)
            register(name, group)

        vars(home)["_register_process_group"] = registered
        c10d.empty(home)

    def put_back(self, *, failed: bool) -> None:
        """End what the script has left behind, not waiting for its peers if it has `failed`."""
        home = c10d.loaded()
        if home is None:
            return
        if self._groups.abandoned:
            self._groups.settle()
        _end(home, failed)
        c10d.empty(home)
        if self._register is not None:
            vars(home)["_register_process_group"] = self._register
        world = home._world
        for name, table in self._tables.items():
            getattr(world, name).update(table)
        if self._comms:
            world.comms.extend(self._comms)
        for group, name in self._tables.get("pg_names", {}).items():
            home._register_process_group(name, group)
        home._update_default_pg(self._default)
        vars(home)["_default_pg_init_method"] = self._method
        world.group_count = self._count

    def release(self) -> None:
        self._held.clear()


def _end(home: ModuleType, failed: bool) -> None:
    if home._world.default_pg is None:
        return
    end = home._abort_process_group if failed else home.destroy_process_group
    with contextlib.suppress(Exception):  # peers may be gone: nobody is there to be told
        end()
