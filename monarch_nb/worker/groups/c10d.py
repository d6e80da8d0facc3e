"""PyTorch's process groups: what is used of its objects, and its own tables of groups.

The one module of this box that loads torch. A rank may do without it, and importing it takes a
second: so it is loaded by name, where somebody has a group already or has asked for one.
"""

from __future__ import annotations

import datetime as dt
import importlib
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Final, Protocol

HOME: Final = "torch.distributed.distributed_c10d"
TABLES: Final = (
    "pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "tags_to_pg", "pg_to_tag",
    "pg_coalesce_state",
)  # fmt: skip
_GLOO: Final = "ProcessGroupGloo"


class Work(Protocol):
    """A collective that is under way."""

    def is_completed(self) -> bool: ...
    def wait(self, timeout: dt.timedelta, /) -> object: ...
    def _get_op_type(self) -> int: ...


class Options(Protocol):
    _timeout: dt.timedelta


class Backend(Protocol):
    options: Options

    def rank(self) -> int: ...
    def size(self) -> int: ...
    def recv(self, tensors: list[object], source: int, tag: int, /) -> Work: ...
    def abort(self) -> None: ...
    def _set_default_timeout(self, timeout: dt.timedelta, /) -> None: ...


class Group(Protocol):
    group_name: str
    _device_types: Sequence[object]

    def rank(self) -> int: ...
    def size(self) -> int: ...
    def _get_backend(self, device: object, /) -> Backend: ...


class Store(Protocol):
    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def check(self, keys: list[str], /) -> bool: ...
    def delete_key(self, key: str, /) -> bool: ...


class World(Protocol):
    """PyTorch's tables of the groups of this process."""

    default_pg: Group | None
    group_count: int
    pg_map: Mapping[Group, tuple[str, Store]]
    pg_names: dict[Group, str]
    pg_group_ranks: dict[Group, dict[int, int]]
    pg_backend_config: Mapping[Group, str]
    tags_to_pg: dict[str, list[Group]]


def load(name: str) -> ModuleType:
    """Import a module of PyTorch. By its whole name: some are hidden by functions."""
    return importlib.import_module(name)


def loaded() -> ModuleType | None:
    """Return PyTorch's module of process groups, if anything has loaded it and it is of use
    here."""
    module = sys.modules.get(HOME)
    return module if hasattr(module, "_world") else None


def world() -> World:
    tables: World = load(HOME)._world
    return tables


def empty(c10d: ModuleType) -> None:
    """Take all groups out of PyTorch's sight."""
    for name in TABLES:
        getattr(c10d._world, name).clear()
    getattr(c10d._world, "comms", []).clear()
    c10d._unregister_all_process_groups()
    _without_default(c10d)


def drop_default(c10d: ModuleType) -> None:
    """Take the default group out of PyTorch's sight, and leave the others there."""
    group = c10d._world.default_pg
    for name in TABLES:
        getattr(c10d._world, name).pop(group, None)
    for tagged in c10d._world.tags_to_pg.values():
        tagged[:] = [each for each in tagged if each is not group]
    c10d._unregister_process_group(group.group_name)
    _without_default(c10d)


def _without_default(c10d: ModuleType) -> None:
    c10d._update_default_pg(None)
    vars(c10d)["_default_pg_init_method"] = None
    c10d._world.group_count = 0


def backends_of(group: Group) -> list[Backend]:
    """Return what a group uses on its devices, each once."""
    found = {id(each): each for each in map(group._get_backend, group._device_types)}
    return list(found.values())


def is_gloo(backend: Backend) -> bool:
    return type(backend).__name__ == _GLOO
