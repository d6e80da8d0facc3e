"""Process groups that are made by whoever asks for them first: the default group of
`torch.distributed`, and those of some ranks of the mesh.

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
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from monarch_nb.worker.groups import c10d
from monarch_nb.worker.groups.c10d import Group
from monarch_nb.worker.groups.meeting import rendezvous
from monarch_nb.worker.groups.process_groups import Place, ProcessGroups

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


def backend(*, shares_gpus: bool) -> str:
    """Return the backend of groups that nobody has chosen one for: NCCL wants a GPU for each."""
    if shares_gpus or not c10d.load("torch").cuda.is_available():
        return "gloo"
    return "cpu:gloo,cuda:nccl"


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
        """Have PyTorch ask here. Nothing where it was built without process groups."""
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
                chosen = backend(shares_gpus=self._groups.shares_gpus)
                _attempt(make, chosen, timeout=TIMEOUT)
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
                all_apart = all(name.startswith(rendezvous.APART) for name in others)
                if default is not None and is_ours and all_apart:
                    self._groups.keep([default])
                    self._made = None
                    c10d.drop_default(c10d.load(c10d.HOME))
                elif default is not None and self._groups.is_of_cells:
                    raise ValueError(_TWICE)
                if self._groups.shares_gpus and not args and options.get("backend") is None:
                    options["backend"] = backend(shares_gpus=True)
                return _attempt(init, *args, **options)

        return init_process_group


def _attempt(init: Init, *args: object, **options: object) -> object:
    # PyTorch counts a group before it is made, and ranks that count differently never find each
    # other again: one that fails, or is interrupted wherever it is, is not counted
    try:
        return init(*args, **options)
    except BaseException:
        world = c10d.world()
        if world.default_pg is None:
            world.group_count = 0
        raise


class AxisGroups:
    """Groups of some ranks, made when first asked for, then kept; a script or a heal has its own.

    Only the members call, in any thread; nobody else is needed, the default group neither. They
    meet in the mesh's store under a name that follows from their ranks, the same on all of them.
    PyTorch knows the groups as those of `new_group`: functional collectives and DTensor find them.
    """

    def __init__(self, groups: ProcessGroups) -> None:
        self._groups = groups
        self._lock = threading.Lock()
        self._making: dict[str, threading.Lock] = {}

    def of(
        self,
        ranks: Sequence[int],
        owner: str = "",
        timeout: float | None = None,
        chosen: str | None = None,
    ) -> Group:
        """Return the `ProcessGroup` of exactly these ranks; wait for them the first time.

        `chosen` is the backend; None: as for any group that nobody has chosen one for.

        `timeout` in seconds is for that and for each of its collectives from now on; None: as it
        is, 60 at first. Each `owner` has its own: collectives of two must not mix, in whatever
        order they come.

        Raises `ValueError` where this rank is none of them or one is named twice, `TimeoutError`
        naming those that did not come.
        """
        members = sorted(ranks)
        _check(members, self._groups.world)
        name = rendezvous.APART + ",".join(map(str, members)) + (f" of {owner}" if owner else "")
        with self._lock:
            making = self._making.setdefault(name, threading.Lock())
        with making:  # two groups at once must not wait for each other: a lock for each
            limit = TIMEOUT if timeout is None else dt.timedelta(seconds=timeout)
            chosen = chosen or backend(shares_gpus=self._groups.shares_gpus)
            found = _known(name) or self._make(name, members, limit, chosen)
            if timeout is not None:
                self._groups.timeouts.set_timeout(name, found, limit)
            return found

    def _make(self, name: str, members: list[int], timeout: dt.timedelta, chosen: str) -> Group:
        home, world = c10d.load(c10d.HOME), self._groups.world
        store = rendezvous.meet(self._groups, name, members, timeout, f"the group of {name}")
        made: tuple[Group, object] = home._new_process_group_helper(
            len(members), members.index(world.rank), members, home.Backend(chosen), store,
            name, timeout=timeout, group_desc=name,
        )  # fmt: skip
        c10d.world().pg_group_ranks[made[0]] = {each: index for index, each in enumerate(members)}
        return made[0]


def _check(members: list[int], world: Place) -> None:
    if len(set(members)) != len(members):
        raise ValueError(f"a rank is named twice in the group of ranks {members}")
    if world.rank not in members:
        raise ValueError(
            f"rank {world.rank} is not in the group of ranks {members}: only its members use it"
        )
    if members[0] < 0 or members[-1] >= world.size:
        raise ValueError(f"ranks {members}: this mesh has the ranks 0 to {world.size - 1}")


def _known(name: str) -> Group | None:
    names = list(c10d.world().pg_names.items())
    return next((group for group, each in names if each == name), None)
