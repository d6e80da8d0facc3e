"""PyTorch's process groups: what is used of its objects, and its own tables of groups.

The one module of this box that loads torch. A rank may do without it, and importing it takes a
second: so it is loaded by name, where somebody has a group already or has asked for one.
"""

from __future__ import annotations

import datetime as dt
import importlib
import sys
from collections.abc import Mapping, Sequence
from types import FrameType, ModuleType
from typing import Final, Protocol

HOME: Final = "torch.distributed.distributed_c10d"
TABLES: Final = (
    "pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "tags_to_pg", "pg_to_tag",
    "pg_coalesce_state",
)  # fmt: skip
DEFAULT_NAME: Final = "0"
"""So PyTorch names the default group."""
_GLOO: Final = "ProcessGroupGloo"


class Work(Protocol):
    """A collective that is under way."""

    def is_completed(self) -> bool: ...
    def wait(self, timeout: dt.timedelta, /) -> object: ...
    def _get_op_type(self) -> int: ...


class Device(Protocol):
    """Where a tensor lies: its `type` is cpu or cuda."""

    type: str


class Options(Protocol):
    _timeout: dt.timedelta
    global_ranks_in_group: list[int]
    group_name: str


class Backend(Protocol):
    options: Options

    def rank(self) -> int: ...
    def size(self) -> int: ...
    def recv(self, tensors: list[object], source: int, tag: int, /) -> Work: ...
    def abort(self) -> None: ...
    def _get_sequence_number_for_group(self) -> int: ...
    def _set_default_timeout(self, timeout: dt.timedelta, /) -> None: ...


class Group(Protocol):
    group_name: str
    group_desc: str
    _device_types: Sequence[Device]

    def rank(self) -> int: ...
    def size(self) -> int: ...
    def _get_backend(self, device: Device, /) -> Backend: ...
    def _register_backend(self, device: Device, kind: object, backend: Backend, /) -> None: ...
    def _set_group_name(self, name: str, /) -> None: ...
    def _set_group_desc(self, text: str, /) -> None: ...


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


_THROUGH: Final = {HOME, "torch.distributed.c10d_logger"}  # whose wrapper each function has


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
    drop(c10d, c10d._world.default_pg)


def drop(c10d: ModuleType, group: Group) -> None:
    """Take a group out of PyTorch's sight."""
    is_default = group is c10d._world.default_pg
    for name in TABLES:
        getattr(c10d._world, name).pop(group, None)
    for tagged in c10d._world.tags_to_pg.values():
        tagged[:] = [each for each in tagged if each is not group]
    c10d._unregister_process_group(group.group_name)
    if is_default:
        _without_default(c10d)


def _without_default(c10d: ModuleType) -> None:
    c10d._update_default_pg(None)
    vars(c10d)["_default_pg_init_method"] = None
    c10d._world.group_count = 0


def group_of(frame: FrameType | None) -> Group | None:
    """Return the group of the function of PyTorch's that this is a frame of, or of what called
    it."""
    takes_default = False
    while frame is not None and frame.f_globals.get("__name__") in _THROUGH:
        names = frame.f_locals
        group: Group | None = names.get("group")
        if group is not None:
            return group
        takes_default = takes_default or "group" in names
        frame = frame.f_back
    return world().default_pg if takes_default else None


def name_of(frame: FrameType | None) -> str:
    """Return the collective that the user has called; of a `Work`, only that it is waited for."""
    name = "wait"
    while frame is not None and (home := frame.f_globals.get("__name__")) in _THROUGH:
        if home == HOME:
            name = frame.f_code.co_name
        frame = frame.f_back
    return name


def ranks_of(group: Group) -> list[int]:
    """Return the ranks of the world that are members, in the order of the group."""
    found = world().pg_group_ranks.get(group)
    return list(range(group.size())) if not found else sorted(found, key=lambda rank: found[rank])


def backends_of(group: Group) -> list[Backend]:
    """Return what a group uses on its devices, each once."""
    found = {id(each): each for each in map(group._get_backend, group._device_types)}
    return list(found.values())


def is_gloo(backend: Backend) -> bool:
    return type(backend).__name__ == _GLOO


def prefixed(store: Store, name: str) -> Store:
    made: Store = load("torch.distributed").PrefixStore(f"{name}/", store)
    return made


def own_store() -> Store:
    """Return one that nobody else has."""
    made: Store = load("torch.distributed").HashStore()
    return made


def barrier(group: Group) -> None:
    """Wait until all members have come to this. Raises what PyTorch does."""
    load("torch.distributed").barrier(group=group)


def gathered(group: Group, numbers: list[int]) -> list[list[int]]:
    """Return the numbers of each member, in order. Waits for all. Raises what PyTorch does."""
    torch = load("torch")
    found = [torch.empty(len(numbers), dtype=torch.int64) for _ in range(group.size())]
    load("torch.distributed").all_gather(found, torch.tensor(numbers), group=group)
    return [each.tolist() for each in found]


def backend_kind(number: int) -> object:
    """Return a kind of backends of this number; PyTorch has names for the first few."""
    kind: object = load("torch._C._distributed_c10d").ProcessGroup.BackendType(number)
    return kind


def gloo(group: Group, store: Store, timeout: dt.timedelta) -> Backend:
    """Connect the members of a group by gloo. Waits for them."""
    cls = load("torch._C._distributed_c10d").ProcessGroupGloo
    made: Backend = cls(store, group.rank(), group.size(), timeout=timeout)
    made.options.global_ranks_in_group = ranks_of(group)
    made.options.group_name = group.group_name
    return made


def nccl(group: Group, store: Store, timeout: dt.timedelta) -> Backend:
    """Connect the members of a group by NCCL, at the first collective."""
    cls = load("torch._C._distributed_c10d").ProcessGroupNCCL
    options = cls.Options()
    options._timeout = timeout
    options.global_ranks_in_group, options.group_name = ranks_of(group), group.group_name
    made: Backend = cls(store, group.rank(), group.size(), options)
    return made


def device(kind: str) -> Device:
    found: Device = load("torch").device(kind)
    return found


def call_by(group: Group, kind: str, config: str) -> None:
    """Have PyTorch's tables say what a group uses."""
    tables = load(HOME)._world
    tables.pg_map[group] = kind, tables.pg_map[group][1]
    tables.pg_backend_config[group] = config


def like(old: Backend, store: Store) -> Backend:
    """Make a backend of the kind of another, with the same options."""
    made: Backend = type(old)(store, old.rank(), old.size(), old.options)  # type: ignore[call-arg]  # a class of PyTorch's
    return made
