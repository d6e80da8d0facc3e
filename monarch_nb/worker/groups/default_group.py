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
import importlib
import sys
import threading
from typing import Any, Final

from monarch_nb.worker.groups import collectives, registry, rendezvous

TIMEOUT: Final = dt.timedelta(seconds=60)
_HOOK: Final = "_default_group_of_mesh"
_WANTED: Final = "_mesh_wants_group"
_ONLY_ASK: Final = frozenset({"get_rank", "_get_group_size", "_new_process_group_helper"})
_CHECKPOINT: Final = "torch.distributed.checkpoint"

_TWICE: Final = (
    "trying to initialize the default process group twice! The mesh has one already: leave out "
    "init_process_group, or call torch.distributed.destroy_process_group() on all ranks before it"
)

_lock: Final = threading.RLock()
_made: Final[list[Any]] = []  # the default group that was made here, if it is still the one


class Member:
    """Stands for the default group where only these two are asked."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size

    def rank(self) -> int:
        """Of this process in the world."""
        return self._rank

    def size(self) -> int:
        """How many ranks the world has."""
        return self._size


def install() -> None:
    """From now on. Nothing where torch is not loaded."""
    if (c10d := registry.module()) is None:
        return
    setattr(c10d, _HOOK, _default_group)
    setattr(c10d, _WANTED, _is_wanted)
    c10d._get_default_group.__code__ = _get_default_group.__code__
    c10d.is_initialized.__code__ = _is_initialized.__code__
    distributed: Any = importlib.import_module("torch.distributed")
    distributed.init_process_group = c10d.init_process_group = _after_ours(c10d.init_process_group)


def backend() -> str:
    """Of groups that nobody has chosen one for."""
    torch: Any = importlib.import_module("torch")
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


# the code of PyTorch's functions: it runs with the globals of their module


def _get_default_group() -> Any:
    if GroupMember.WORLD is None:  # type: ignore[name-defined]  # noqa: F821
        return _default_group_of_mesh()  # type: ignore[name-defined]  # noqa: F821
    return GroupMember.WORLD  # type: ignore[name-defined]  # noqa: F821


def _is_initialized() -> bool:
    return GroupMember.WORLD is not None or _mesh_wants_group()  # type: ignore[name-defined]  # noqa: F821


def _default_group() -> Any:
    if not rendezvous.is_of_cells():
        raise ValueError(
            "Default process group has not been initialized, "
            "please make sure to call init_process_group."
        )
    if sys._getframe(2).f_code.co_name in _ONLY_ASK:
        world = rendezvous.world()
        return Member(world.rank, world.size)
    return _made_now()


def _is_wanted() -> bool:
    """A checkpoint that finds no group would have each rank write all of it, over the others."""
    asker = str(sys._getframe(2).f_globals.get("__name__", ""))
    if not asker.startswith(_CHECKPOINT) or not rendezvous.is_of_cells():
        return False
    _made_now()
    return True


def _made_now() -> Any:
    c10d = registry.module()
    with _lock:  # an actor and a cell may ask at once
        if c10d._world.default_pg is None:
            c10d.init_process_group.__wrapped__(backend(), timeout=TIMEOUT)
            _made[:] = [c10d._world.default_pg]
        return c10d._world.default_pg


def _after_ours(init: Any) -> Any:
    """A program that makes its group may come after a cell that needed none."""

    @functools.wraps(init)
    def init_process_group(*args: Any, **options: Any) -> Any:
        c10d = registry.module()
        with _lock:
            default, names = c10d._world.default_pg, c10d._world.pg_names
            others = [name for group, name in names.items() if group is not default]
            if default is not None and _made == [default] and all(map(_is_apart, others)):
                collectives.held.append(_made.pop())
                registry.drop_default(c10d)
            elif default is not None and rendezvous.is_of_cells():
                raise ValueError(_TWICE)
            return init(*args, **options)

    return init_process_group


def _is_apart(name: str) -> bool:
    """Whether a group of this name needs no default group."""
    return name.startswith(rendezvous.APART)
