"""Process groups along axes of a mesh, as handles that a controller can hold and send.

Rule: which ranks work together follows from the shape of a mesh, so nobody is asked. A handle
becomes the `torch.distributed.ProcessGroup` where it arrives in a member, and stays a handle
everywhere else. How a group is made is the rank's business (`Runtime.group_of`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, final

from monarch_nb.core.errors.folding import rank_words
from monarch_nb.core.shape.extent import Shape
from monarch_nb.process import current


@dataclass(frozen=True)
class Seat:
    """Which rank of which mesh this process is; `device` is `cpu` or `cuda:<i>`."""

    number: int
    name: str
    rank: int
    shape: Shape
    device: str


@dataclass(frozen=True)
class Part:
    """Some ranks of a mesh of `size` ranks, by the mesh's number and name."""

    number: int
    name: str
    size: int
    shape: Shape

    def seat(self) -> Seat | None:
        """That of this process, if it is one of these ranks."""
        seat = _seat()
        is_of_mesh = seat is not None and (seat.number, len(seat.shape)) == (self.number, self.size)
        return seat if is_of_mesh and seat is not None and seat.rank in self.ranks() else None

    def ranks(self) -> list[int]:
        """In the whole mesh."""
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

    def __init__(self, part: Part, dims: tuple[str, ...], timeout: float | None = None) -> None:
        self._part = part
        self._dims = dims
        self._timeout = timeout

    def __reduce__(self) -> tuple[Any, ...]:
        return group, (self._part, self._dims, self._timeout)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AxisGroup) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self._part.number, self._part.size, *self._part.ranks(), *self._dims

    def __repr__(self) -> str:
        sizes = dict(zip(self._part.shape.labels, self._part.shape.ndslice.sizes, strict=True))
        ranks = math.prod(sizes[dim] for dim in self._dims)
        axes = f"{', '.join(self._dims)}: " if self._dims else ""
        size = "1 rank" if ranks == 1 else f"{ranks} ranks"
        return f"AxisGroup({axes}{size} of mesh {self._part.name!r})"

    def __getattr__(self, name: str) -> NoReturn:
        """What torch would do with a group here."""
        if name.startswith("_"):  # asked by copy, pickle and displays, which take no for an answer
            raise AttributeError(name)
        raise RuntimeError(_not_here(self))


def group(part: Part, dims: tuple[str, ...], timeout: float | None) -> Any:
    """The `ProcessGroup` of this rank's neighbours, which waits for them the first time; a handle
    where this process is no member.

    Args:
        timeout: in seconds, for the members to meet and for each collective from now on; None: 60,
            or what was said before.

    Raises `ValueError` for a timeout that is none, `TimeoutError` naming the ranks that did not
    come.
    """
    if timeout is not None and not 0 < timeout < math.inf:
        raise ValueError(f"timeout={timeout!r}: seconds, more than none; None means 60")
    seat = part.seat()
    if seat is None:
        return AxisGroup(part, dims, timeout)
    members = neighbours(part.shape, dims, seat.rank)
    return current.runtime().group_of(members, "", timeout)


def device_mesh(part: Part) -> Any:
    """See `ProcMesh.device_mesh`."""
    from monarch_nb.meshes import device_meshes

    seat = part.seat()
    if seat is None:
        raise RuntimeError(
            f"{_who()} is no rank of this part of mesh {part.name!r} ({rank_words(part.ranks())}): "
            "a torch DeviceMesh is made on its members. Type `mesh.device_mesh()` in a %%mesh cell "
            "on these ranks, or in an endpoint that gets the mesh as an argument"
        )
    return device_meshes.of(part.shape, seat.rank, seat.device.partition(":")[0])


def chosen(labels: Sequence[str], dims: str | Sequence[str] | None) -> tuple[str, ...]:
    """The axes that are meant: one, several, or all. `KeyError` for one that is not there."""
    wanted = tuple(labels) if dims is None else (dims,) if isinstance(dims, str) else tuple(dims)
    for dim in wanted:
        if dim not in labels:
            raise KeyError(f"the mesh has no axis {dim!r}; its axes are {', '.join(labels)}")
    return wanted


@functools.lru_cache(maxsize=4096)
def neighbours(shape: Shape, axes: tuple[str, ...], rank: int) -> tuple[int, ...]:
    """The ranks that differ from this one in these coordinates only, in their order."""
    mine = shape.coordinates(rank)
    others = [label for label in shape.labels if label not in axes]
    return tuple(
        each
        for each in shape.ranks()
        if all(shape.coordinates(each)[label] == mine[label] for label in others)
    )


def _seat() -> Seat | None:
    runtime = current.running()
    return None if runtime is None else runtime.seat


def _who() -> str:
    seat = _seat()
    return "the controller" if seat is None else f"rank {seat.rank} of mesh {seat.name!r}"


def _not_here(handle: AxisGroup) -> str:
    if _seat() is None:
        return (
            f"{handle} is a handle here: collectives run on the ranks. Send it to them, "
            '`mesh["g"] = mesh.group(...)` or as an argument of an endpoint, and use it there'
        )
    ranks = rank_words(handle._part.ranks())
    return f"{_who()} is not in {handle} ({ranks}): only its members use it"
