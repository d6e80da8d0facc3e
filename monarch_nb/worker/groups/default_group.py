"""The default group of `torch.distributed` is made by whoever asks for it first.

So `dist.all_reduce(x)` is all that a cell or an endpoint says. What only asks who this rank is
waits for nobody; `is_initialized()` stays False until the group is there, and the user's own
`init_process_group` counts, also after the group was made here. A script makes its groups itself,
as under torchrun.

PyTorch's modules have imported the functions by name, so their code is replaced and not they.
"""

from __future__ import annotations

import datetime as dt
import functools
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from monarch_nb.worker.groups import c10d, rendezvous
from monarch_nb.worker.groups.c10d import Group
from monarch_nb.worker.groups.process_groups import ProcessGroups

TIMEOUT: Final = dt.timedelta(seconds=60)
_ONLY_ASK: Final = frozenset({"get_rank", "_get_group_size", "_new_process_group_helper"})
_CHECKPOINT: Final = "torch.distributed.checkpoint"

_TWICE: Final = (
    "trying to initialize the default process group twice! The mesh has one already: leave out "
    "init_process_group, or call torch.distributed.destroy_process_group() on all ranks before it"
)

Init = Callable[..., object]


class Member:
    """Stands for the default group where only these two are asked."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size


def backend() -> str:
    """Of groups that nobody has chosen one for."""
    return "cpu:gloo,cuda:nccl" if c10d.load("torch").cuda.is_available() else "gloo"


# the code of PyTorch's functions: it runs with the globals of their module, in which `install` puts
# what finds the groups of this process

if TYPE_CHECKING:

    class GroupMember:
        WORLD: Group | None

    def _default_group_of_mesh() -> Group | Member: ...
    def _mesh_wants_group() -> bool: ...


def _get_default_group() -> Group | Member:
    if GroupMember.WORLD is None:
        return _default_group_of_mesh()
    return GroupMember.WORLD


def _is_initialized() -> bool:
    return GroupMember.WORLD is not None or _mesh_wants_group()


class DefaultGroup:
    """That of the mesh, made at the first use."""

    def __init__(self, groups: ProcessGroups) -> None:
        self._groups = groups
        self._lock = threading.RLock()
        self._made: Group | None = None  # here, if it is still the one

    def install(self) -> None:
        """Have PyTorch ask here. Nothing where torch is not loaded."""
        if (home := c10d.loaded()) is None:
            return
        init = self._after_ours(home.init_process_group)
        vars(home).update(
            _default_group_of_mesh=self._default,
            _mesh_wants_group=self._is_wanted,
            init_process_group=init,
        )
        home._get_default_group.__code__ = _get_default_group.__code__
        home.is_initialized.__code__ = _is_initialized.__code__
        vars(c10d.load("torch.distributed"))["init_process_group"] = init

    def _default(self) -> Group | Member:
        if not self._groups.is_of_cells:
            raise ValueError(
                "Default process group has not been initialized, "
                "please make sure to call init_process_group."
            )
        if sys._getframe(2).f_code.co_name in _ONLY_ASK:
            world = self._groups.world
            return Member(world.rank, world.size)
        return self._made_now()

    def _is_wanted(self) -> bool:
        # a checkpoint that finds no group would have each rank write all of it, over the others
        asker = str(sys._getframe(2).f_globals.get("__name__", ""))
        if not asker.startswith(_CHECKPOINT) or not self._groups.is_of_cells:
            return False
        self._made_now()
        return True

    def _made_now(self) -> Group:
        world = c10d.world()
        with self._lock:  # an actor and a cell may ask at once
            if world.default_pg is None:
                make: Init = c10d.load(c10d.HOME).init_process_group.__wrapped__
                make(backend(), timeout=TIMEOUT)
                self._made = world.default_pg
            assert world.default_pg is not None
            return world.default_pg

    def _after_ours(self, init: Init) -> Init:
        # A program that makes its group may come after a cell that needed none
        @functools.wraps(init)
        def init_process_group(*args: object, **options: object) -> object:
            world = c10d.world()
            with self._lock:
                default = world.default_pg
                others = [name for group, name in world.pg_names.items() if group is not default]
                is_ours = default is not None and self._made == default
                if default is not None and is_ours and all(map(_is_apart, others)):
                    self._groups.keep([default])
                    self._made = None
                    c10d.drop_default(c10d.load(c10d.HOME))
                elif default is not None and self._groups.is_of_cells:
                    raise ValueError(_TWICE)
                return init(*args, **options)

        return init_process_group


def _is_apart(name: str) -> bool:
    return name.startswith(rendezvous.APART)
