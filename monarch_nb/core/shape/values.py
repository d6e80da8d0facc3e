"""`ValueMesh`: one value for each rank of a shape, as `call` returns it.

It does not know where values come from. A value that is costly to make (an answer still pickled)
may be handed in as a callable and is made when somebody first looks at it.
"""

from __future__ import annotations

import pprint
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, Self, TypeVar, final

from monarch_nb.core.shape.extent import Point, Shape, Slice
from monarch_nb.core.shape.mesh_trait import ShapedMesh

R = TypeVar("R")


class _Deferred(Generic[R]):
    """A value to be made once, shared by every mesh that was sliced from the first.

    Without a lock (core knows no threads) it may be made twice; all see the one that came first.
    If making raises, the next look tries again.
    """

    __slots__ = ("_box", "_make")

    def __init__(self, make: Callable[[], R]) -> None:
        self._make: Callable[[], R] | None = make
        self._box: list[R] = []

    def value(self) -> R:
        make = self._make  # None only once the box is full
        if make is not None:
            self._box.append(make())
            self._make = None
        return self._box[0]


@final
class ValueMesh(ShapedMesh, Generic[R]):
    """Values laid out like the mesh they came from.

    Example: after `vm = ValueMesh(Extent(["gpus"], [2]).region.as_shape(), ["a", "b"])`,
    `vm[1]`, `vm[{"gpus": 1}]`, `vm[point]` and `vm.item(gpus=1)` are all "b". Iterating gives
    `(Point, value)` pairs. `ValueError` if there is not one value for each rank.
    """

    __slots__ = ("_shape", "_stored")

    def __init__(self, shape: Shape, values: Iterable[R]) -> None:
        stored = list(values)
        if len(stored) != len(shape):
            raise ValueError(
                f"invalid value mesh: expected {len(shape)} ranks, but contains {len(stored)} ranks"
            )
        self._shape = shape
        self._stored: list[Any] = stored

    @classmethod
    def from_indexed(cls, shape: Shape, pairs: Iterable[tuple[int, R]]) -> Self:
        """Build from `(rank, value)` pairs in any order; of equal ranks the last one wins.

        `ValueError` if a rank has no value or is not in the shape.
        """
        found = dict(pairs)
        for rank in found:
            _check_rank(rank, len(shape), ValueError)
        return cls(shape, (found[rank] for rank in sorted(found)))

    @classmethod
    def _lazy(cls, shape: Shape, thunks: Iterable[Callable[[], R]]) -> Self:
        # Build from callables, each called once, when its value is first looked at
        deferred: Iterable[Any] = map(_Deferred, thunks)
        return cls(shape, deferred)

    def __class_getitem__(cls, item: object) -> type[Self]:
        return cls

    @property
    def shape(self) -> Shape:
        """Labels, sizes and base ranks."""
        return self._shape

    def _new_with_shape(self, shape: Shape) -> Self:
        by_rank = dict(zip(self._ndslice, self._stored, strict=True))
        return type(self)(shape, [by_rank[rank] for rank in shape.ndslice])

    def get(self, rank: int) -> R:
        """Return the value at a row-major rank of this mesh; `ValueError` if out of range."""
        _check_rank(rank, len(self._stored), ValueError)
        return self._value(rank)

    def item(self, /, **coordinates: int) -> R:
        """Return the value at coordinates: `vm.item(hosts=0, gpus=3)`, `vm.item()` if it is alone.

        `KeyError` for a missing coordinate or one too many, `IndexError` for one out of range.
        """
        extent = self.extent
        extra = [label for label in coordinates if label not in extent]
        if extra:
            raise KeyError(f"item has extra dimensions: {extra}")
        if not coordinates and len(self) == 1:
            return self._value(0)
        place = [coordinates[label] for label in extent]
        return self._value(Slice.new_row_major(extent.sizes).nditem(place))

    def __getitem__(self, at: int | Mapping[str, int]) -> R:
        """Return the value at a rank, a `Point` or a dict of coordinates; errors as `item`."""
        if isinstance(at, Mapping):
            return self.item(**at)
        _check_rank(at, len(self._stored), IndexError)
        return self._value(at)

    def items(self) -> Iterator[tuple[Point, R]]:
        """Yield `(Point, value)` in rank order."""
        extent = self.extent
        for rank in range(len(self._stored)):
            yield Point(rank, extent), self._value(rank)

    def values(self) -> list[R]:
        """Return the values in rank order."""
        return [self._value(rank) for rank in range(len(self._stored))]

    def _value(self, rank: int) -> R:
        stored = self._stored[rank]
        if isinstance(stored, _Deferred):
            stored = self._stored[rank] = stored.value()
        value: R = stored
        return value

    def __iter__(self) -> Iterator[tuple[Point, R]]:
        return self.items()

    def __reduce__(self) -> tuple[type[Self], tuple[Shape, list[R]]]:
        return type(self), (self._shape, self.values())

    def __repr__(self) -> str:
        body = pprint.pformat(tuple(self), sort_dicts=False)
        return f"ValueMesh({self.extent}):\n{textwrap.indent(body, '  ')}"


def _check_rank(rank: int, count: int, error: type[Exception]) -> None:
    if not 0 <= rank < count:
        raise error(f"rank {rank} is out of range for {count} ranks")
