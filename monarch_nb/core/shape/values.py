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


class _Unmade(Generic[R]):
    """Values to be made when they are first looked at, shared by every mesh that was sliced from
    the first: `make(place, source)`.

    Without a lock (core knows no threads) one may be made twice; all see the one that came first.
    If making raises, the next look tries again.
    """

    __slots__ = ("_made", "_make", "_sources")

    def __init__(self, sources: Iterable[Any], make: Callable[[int, Any], R]) -> None:
        self._sources = list(sources)
        self._make = make
        self._made: dict[int, R] = {}

    def __len__(self) -> int:
        return len(self._sources)

    def value(self, place: int) -> R:
        source = self._sources[place]  # None only once it is made
        if place not in self._made:
            self._made.setdefault(place, self._make(place, source))
            self._sources[place] = None
        return self._made[place]


@final
class ValueMesh(ShapedMesh, Generic[R]):
    """Values laid out like the mesh they came from.

    Example: after `vm = ValueMesh(Extent(["gpus"], [2]).region.as_shape(), ["a", "b"])`,
    `vm[1]`, `vm[{"gpus": 1}]`, `vm[point]` and `vm.item(gpus=1)` are all "b". Iterating gives
    `(Point, value)` pairs. `ValueError` if there is not one value for each rank.
    """

    __slots__ = ("_shape", "_stored", "_unmade")

    def __init__(self, shape: Shape, values: Iterable[R]) -> None:
        stored = list(values)
        if len(stored) != len(shape):
            raise ValueError(
                f"invalid value mesh: expected {len(shape)} ranks, but contains {len(stored)} ranks"
            )
        self._shape = shape
        self._stored: list[Any] = stored  # the values, or their places among those not made yet
        self._unmade: _Unmade[R] | None = None

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
    def _lazy(cls, shape: Shape, sources: Iterable[Any], make: Callable[[int, Any], R]) -> Self:
        # Each value is made once, when it is first looked at
        unmade = _Unmade(sources, make)
        places: Iterable[Any] = range(len(unmade))
        return cls(shape, places)._of(unmade)

    def _of(self, unmade: _Unmade[R] | None) -> Self:
        self._unmade = unmade
        return self

    def __class_getitem__(cls, item: object) -> type[Self]:
        return cls

    @property
    def shape(self) -> Shape:
        """Labels, sizes and base ranks."""
        return self._shape

    def _new_with_shape(self, shape: Shape) -> Self:
        by_rank = dict(zip(self._ndslice, self._stored, strict=True))
        return type(self)(shape, [by_rank[rank] for rank in shape.ndslice])._of(self._unmade)

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
        stored: Any = self._stored[rank]
        value: R = stored if self._unmade is None else self._unmade.value(stored)
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
