"""Connections of a group that are made again in place: the group stays the same object, in
PyTorch's tables, in DDP, in a DeviceMesh, in variables. What was begun on the old ones never ends.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

from monarch_nb.core.wire.messages.elastic import GroupMade
from monarch_nb.worker.groups import c10d
from monarch_nb.worker.groups.c10d import Backend, Group, Store
from monarch_nb.worker.groups.meeting import rendezvous
from monarch_nb.worker.groups.timeouts import SLACK

if TYPE_CHECKING:
    from monarch_nb.worker.groups.process_groups import ProcessGroups

MEET: Final = dt.timedelta(seconds=20)
_ALONE: Final = "FakeProcessGroup"


def connect_again(groups: ProcessGroups, group: Group) -> None:
    """Give a group new connections, when all of its members are there. Raises what PyTorch does,
    and `TimeoutError` naming the ranks that did not come."""
    name, ranks = group.group_name, c10d.ranks_of(group)
    what = f"the new connections of process group {name!r}"
    store = rendezvous.meet(groups, f"{name} again", ranks, MEET, what)
    old = {id(each): each for each in c10d.backends_of(group)}
    new = {
        key: _made(groups, group, backend, c10d.prefixed(store, f"{index}"))
        for index, (key, backend) in enumerate(old.items())
    }
    kinds = {key: groups.new_kind(name) for key in new}
    for device in list(group._device_types):
        key = id(group._get_backend(device))
        group._register_backend(device, c10d.backend_kind(kinds[key]), new[key])
    group._set_group_name(name)
    group._set_group_desc(group.group_desc)
    groups.renewed(group, old.values())


def _made(groups: ProcessGroups, group: Group, old: Backend, store: Store) -> Backend:
    if c10d.is_gloo(old):
        timeout = groups.timeouts.timeout(group.group_name)
        return c10d.gloo(group, store, (timeout or MEET) + SLACK)
    old.abort()
    return c10d.like(old, store)


def made(groups: ProcessGroups, group: Group) -> GroupMade:
    """Describe a group to a process that has to make the same."""
    world = c10d.world()
    kinds = {device.type: _kind(group._get_backend(device)) for device in group._device_types}
    kind, config = world.pg_map[group][0], world.pg_backend_config[group]
    name = group.group_name
    by_itself = name == c10d.DEFAULT_NAME or name.startswith(rendezvous.APART)
    timeout_s = (groups.timeouts.timeout(name) or MEET).total_seconds()
    ranks = c10d.ranks_of(group)
    return GroupMade(name, ranks, str(kind), str(config), kinds, timeout_s, by_itself)


def is_alone(group: Group) -> bool:
    """Tell whether a group connects nobody."""
    return any(type(each).__name__ == _ALONE for each in c10d.backends_of(group))


def connect_for_real(groups: ProcessGroups, group: Group, like: GroupMade) -> None:
    """Connect a group that was made while nobody was there, when its members connect again.

    Raises what PyTorch does, and `TimeoutError` naming the ranks that did not come.
    """
    name, ranks = group.group_name, c10d.ranks_of(group)
    store = rendezvous.meet(groups, f"{name} again", ranks, MEET, f"process group {name!r}")
    made: dict[str, Backend] = {}
    for kind in dict.fromkeys(like.backends.values()):
        made[kind] = _new(group, like, kind, c10d.prefixed(store, f"{len(made)}"))
    numbers = {kind: c10d.backend_kind(groups.new_kind(name)) for kind in made}
    # where the others have nothing, what connects nobody is replaced as well
    every = dict.fromkeys((each.type for each in group._device_types), next(iter(made)))
    for device, kind in (every | like.backends).items():
        group._register_backend(c10d.device(device), numbers[kind], made[kind])
    group._set_group_name(name)
    group._set_group_desc(group.group_desc)
    c10d.call_by(group, like.kind, like.config)
    groups.timeouts.add(name, group)
    groups.renewed(group, [])


def _new(group: Group, like: GroupMade, kind: str, store: Store) -> Backend:
    timeout = dt.timedelta(seconds=like.timeout_s)
    if kind == "gloo":
        return c10d.gloo(group, store, timeout + SLACK)
    return c10d.nccl(group, store, timeout)


def _kind(backend: Backend) -> str:
    return "gloo" if c10d.is_gloo(backend) else "nccl"
