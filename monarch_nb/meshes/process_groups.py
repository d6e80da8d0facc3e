"""Process groups along axes of a mesh, as handles that a controller can hold and send.

Rule: which ranks work together follows from the shape of a mesh, so nobody is asked. A handle
becomes the `torch.distributed.ProcessGroup` where it arrives in a member, and stays a handle
everywhere else. How a group is made is the rank's business (`Membership.group_of`). A torch
`DeviceMesh` is made of the groups of its axes, and nothing is initialised again; after a heal or a
regroup the groups are others, so the next one asked for is another object.
"""

from __future__ import annotations

import functools
import importlib
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, final

from monarch_nb.core.errors.folding import rank_words
from monarch_nb.core.shape.extent import Shape
from monarch_nb.process import current


@dataclass(frozen=True)
class RankIdentity:
    """Which rank of which mesh this process is; `device` is `cpu` or `cuda:<i>`."""

    number: int
    name: str
    rank: int
    shape: Shape
    device: str


GroupOf = Callable[[Sequence[int], str, float | None], Any]
"""The process group of some ranks of the mesh, of which this process is one; another for each
owner, of which "" is everybody. At last its timeout in seconds, None: as it is."""


def _no_groups(ranks: Sequence[int], _: str = "", __: float | None = None) -> NoReturn:
    raise RuntimeError(
        f"ranks {list(ranks)}: process groups are made on ranks of a mesh, not on the controller"
    )


@dataclass(eq=False)
class Membership:
    """Of this process in a mesh: none on the controller. A rank is another after a heal."""

    rank: RankIdentity | None = None
    group_of: GroupOf = _no_groups

    def become(self, rank: RankIdentity) -> None:
        self.rank = rank


@dataclass(frozen=True)
class GroupPart:
    """Some ranks of a mesh of `size` ranks, by the mesh's number and name."""

    number: int
    name: str
    size: int
    shape: Shape

    def member(self) -> RankIdentity | None:
        me = _this_rank()
        if me is None or (me.number, len(me.shape)) != (self.number, self.size):
            return None
        return me if me.rank in self.ranks() else None

    def ranks(self) -> list[int]:
        return self.shape.ranks()


@final
class AxisGroup:
    """The process group of each rank's neighbours along some axes of a mesh: `mesh.group("gpus")`.

    On the controller it is a handle, to be sent to the ranks. In an endpoint, a cell or a function
    that gets it as an argument or a variable it is the `ProcessGroup` itself.

    Example:
        >>> mesh["g"] = mesh.group("gpus")                # doctest: +SKIP
        >>> # %%mesh
        >>> # dist.all_reduce(x, group=g)
    """

    def __init__(
        self, part: GroupPart, dims: tuple[str, ...], timeout: float | None = None
    ) -> None:
        self._part = part
        self._dims = dims
        self._timeout = timeout

    def __reduce__(self) -> tuple[object, ...]:
        return group, (self._part, self._dims, self._timeout)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AxisGroup) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        return self._part.number, self._part.size, *self._part.ranks(), *self._dims

    def __repr__(self) -> str:
        sizes = dict(zip(self._part.shape.labels, self._part.shape.ndslice.sizes, strict=True))
        ranks = math.prod(sizes[dim] for dim in self._dims)
        axes = f"{', '.join(self._dims)}: " if self._dims else ""
        size = "1 rank" if ranks == 1 else f"{ranks} ranks"
        return f"AxisGroup({axes}{size} of mesh {self._part.name!r})"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # asked by copy, pickle and displays, which take no for an answer
            raise AttributeError(name)
        raise RuntimeError(_not_here(self))


def group(part: GroupPart, dims: tuple[str, ...], timeout: float | None) -> Any:
    """Return the `ProcessGroup` of this rank's neighbours, which waits for them the first time; a
    handle where this process is no member.

    Args:
        timeout: in seconds, for the members to meet and for each collective from now on; None: 60,
            or what was said before.

    Raises `ValueError` for a timeout that is none, `TimeoutError` naming the ranks that did not
    come.
    """
    if timeout is not None and not 0 < timeout < math.inf:
        raise ValueError(f"timeout={timeout!r}: seconds, more than none; None means 60")
    me = part.member()
    if me is None:
        return AxisGroup(part, dims, timeout)
    members = neighbours(part.shape, dims, me.rank)
    return current.part(Membership).group_of(members, "", timeout)


def device_mesh(part: GroupPart) -> Any:
    me = part.member()
    if me is None:
        raise RuntimeError(
            f"{_who()} is no rank of this part of mesh {part.name!r} ({rank_words(part.ranks())}): "
            "a torch DeviceMesh is made on its members. Type `mesh.device_mesh()` in a %%mesh cell "
            "on these ranks, or in an endpoint that gets the mesh as an argument"
        )
    return device_mesh_of(part.shape, me.rank, me.device.partition(":")[0])


def device_mesh_of(shape: Shape, rank: int, device: str, owner: str = "") -> Any:
    """Return the `DeviceMesh` of this shape, on a device of this type (`cpu`, `cuda`), with the
    groups of an owner.

    Waits the first time for the other members, of one axis after the other. Raises `ValueError`
    for a shape without axes.
    """
    if not shape.labels:
        raise ValueError(
            f"rank {rank} alone has no axes, a DeviceMesh needs one: keep the axis, as in "
            "mesh.slice(gpus=slice(0, 1))"
        )
    # it advises to flatten axes that a program names apart on purpose
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    group_of = current.part(Membership).group_of
    groups = [group_of(neighbours(shape, (label,), rank), owner, None) for label in shape.labels]
    key = (*shape.labels, *shape.ndslice.sizes, *shape.ranks(), device, owner)
    known, found = _device_meshes.get(key, ([], None))
    if found is None or any(a is not b for a, b in zip(known, groups, strict=True)):
        found = _make_device_mesh(shape, groups, device)
        _device_meshes[key] = (groups, found)
    return found


_device_meshes: Final[dict[object, tuple[list[object], Any]]] = {}


def _make_device_mesh(shape: Shape, groups: list[object], device: str) -> object:
    # torch takes a second to import, and only members of a group need it
    torch = importlib.import_module("torch")
    module = importlib.import_module("torch.distributed.device_mesh")
    return module.DeviceMesh.from_group(
        groups if len(groups) > 1 else groups[0],
        device,
        mesh=torch.tensor(shape.ranks()).reshape(tuple(shape.ndslice.sizes)),
        mesh_dim_names=tuple(shape.labels),
    )


def chosen(labels: Sequence[str], dims: str | Sequence[str] | None) -> tuple[str, ...]:
    """Name the axes that are meant: one, several, or all. Raises `KeyError`."""
    wanted = tuple(labels) if dims is None else (dims,) if isinstance(dims, str) else tuple(dims)
    for dim in wanted:
        if dim not in labels:
            raise KeyError(f"the mesh has no axis {dim!r}; its axes are {', '.join(labels)}")
    return wanted


@functools.lru_cache(maxsize=4096)
def neighbours(shape: Shape, axes: tuple[str, ...], rank: int) -> tuple[int, ...]:
    """Return the ranks that differ from this one in these coordinates only, in their order."""
    mine = shape.coordinates(rank)
    others = [label for label in shape.labels if label not in axes]
    return tuple(
        each
        for each in shape.ranks()
        if all(shape.coordinates(each)[label] == mine[label] for label in others)
    )


def _this_rank() -> RankIdentity | None:
    runtime = current.running()
    if runtime is None:
        return None
    membership: Membership = runtime.parts[Membership]
    return membership.rank


def _who() -> str:
    me = _this_rank()
    return "the controller" if me is None else f"rank {me.rank} of mesh {me.name!r}"


def _not_here(handle: AxisGroup) -> str:
    if _this_rank() is None:
        return (
            f"{handle} is a handle here: collectives run on the ranks. Send it to them, "
            '`mesh["g"] = mesh.group(...)` or as an argument of an endpoint, and use it there'
        )
    ranks = rank_words(handle._part.ranks())
    return f"{_who()} is not in {handle} ({ranks}): only its members use it"
