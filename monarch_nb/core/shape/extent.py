"""Named grids of ranks: what an axis is called, how long it is, and which rank sits where.

Rule of the file: numbers and labels only. Nothing here knows what a rank is (a process, an actor,
a value), and every object is a value: never changed after it was made, equal by content, picklable.

`Extent` is labels and sizes without ranks, `Point` one place in an extent. `Slice` is the
arithmetic of ranks (offset, sizes, strides); `Shape` and `Region` put labels on it. `Selection`
chooses places of an extent by text.

One `Point` is made per call, so `Point` and `Extent` check next to nothing when made; a bad rank
is found when the point is read.
"""

from __future__ import annotations

import builtins
import json
import math
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, final

from monarch_nb.core.shape.ndslice import NDSlice, Record, Slice, checked_range, unravel

__all__ = ["Extent", "NDSlice", "Point", "Region", "Selection", "Shape", "Slice"]


@final
class Extent(Record, Mapping[str, int]):
    """Labels and sizes of a grid, in order: a mapping from label to size.

    Example: `Extent(["hosts", "gpus"], [2, 8])["gpus"]` is 8. An unknown label is a `KeyError`,
    a different number of labels and sizes a `ValueError`. Hashable; equal only to extents.
    """

    __slots__ = ("_labels", "_sizes")

    def __init__(self, labels: Iterable[str], sizes: Iterable[int]) -> None:
        self._labels = tuple(labels)
        self._sizes = tuple(sizes)
        if len(self._labels) != len(self._sizes):
            raise ValueError(f"{len(self._labels)} labels for {len(self._sizes)} sizes")

    @classmethod
    def from_dict(cls, sizes: Mapping[str, int]) -> Self:
        """Make the extent of `{"gpus": 4}`; the order of the dict is the order of the axes."""
        return cls(sizes, sizes.values())

    @property
    def labels(self) -> list[str]:
        """Names of the axes, outermost first."""
        return list(self._labels)

    @property
    def sizes(self) -> list[int]:
        """Lengths of the axes, outermost first."""
        return list(self._sizes)

    @property
    def nelements(self) -> int:
        """Number of places: the product of the sizes, 1 without axes."""
        return math.prod(self._sizes)

    @property
    def region(self) -> Region:
        """The whole extent as ranks 0 to nelements - 1 in row-major order."""
        return Region(self._labels, Slice.new_row_major(self._sizes))

    def __getitem__(self, label: str) -> int:
        if label not in self._labels:
            raise KeyError(label)
        return self._sizes[self._labels.index(label)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._labels)

    def __len__(self) -> int:
        return len(self._labels)

    def _key(self) -> tuple[object, ...]:
        return self._labels, self._sizes

    def __reduce__(self) -> tuple[type[Extent], tuple[object, ...]]:
        return Extent, self._key()

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{label}: {size}" for label, size in self.items()) + "}"


@final
class Point(Mapping[str, int]):
    """The place of a row-major rank in an extent: a mapping from label to coordinate.

    Example: `Point(5, Extent(["h", "g"], [2, 3]))` is `{'h': 1/2, 'g': 2/3}` and its `["g"]` is 2.
    An unknown label, and any reading when the rank is not in the extent, is a `ValueError`.
    Equal only to points; not hashable.
    """

    __slots__ = ("extent", "rank")

    def __init__(self, rank: int, extent: Extent) -> None:
        self.rank = rank
        self.extent = extent

    def size(self, label: str) -> int:
        """Length of the axis, as in `point.size("gpus")`. `ValueError` if there is no such axis."""
        return self.extent.sizes[self._axis(label)]

    def get(self, key: str, default: Any = None) -> Any:
        """Coordinate of the axis, or the default if there is no such axis: `point.get("gpus")`."""
        if key not in self:
            return default
        return self[key]

    def _axis(self, label: str) -> int:
        labels = self.extent.labels
        if label not in labels:
            raise ValueError(f"Dimension '{label}' not found")
        return labels.index(label)

    def _coordinates(self) -> list[int]:
        sizes = self.extent.sizes
        if not 0 <= self.rank < math.prod(sizes):
            raise ValueError(f"rank {self.rank} is out of range for extent {self.extent}")
        return unravel(self.rank, sizes)

    def __getitem__(self, label: str) -> int:
        axis = self._axis(label)
        return self._coordinates()[axis]

    def __contains__(self, label: object) -> bool:
        return label in self.extent

    def __iter__(self) -> Iterator[str]:
        return iter(self.extent)

    def __len__(self) -> int:
        return len(self.extent)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Point):
            return NotImplemented
        return self.rank == other.rank and self.extent == other.extent

    __hash__ = None  # type: ignore[assignment]  # as for dict

    def __reduce__(self) -> tuple[type[Point], tuple[object, ...]]:
        return Point, (self.rank, self.extent)

    def __repr__(self) -> str:
        rows = zip(self.extent.items(), self._coordinates(), strict=True)
        return "{" + ", ".join(f"'{label}': {at}/{size}" for (label, size), at in rows) + "}"


@final
class Shape(Record):
    """A `Slice` whose axes have names.

    Example: `Shape(["h", "g"], Slice.new_row_major([2, 3])).at("h", 1).ranks()` is `[3, 4, 5]`.
    `ValueError` if labels repeat or are not one for each axis.
    """

    __slots__ = ("_labels", "_ndslice")

    def __init__(self, labels: Iterable[str], slice: Slice) -> None:  # noqa: A002 Monarch's name
        self._labels = tuple(labels)
        self._ndslice = slice
        if len(set(self._labels)) != slice.ndim or len(self._labels) != slice.ndim:
            raise ValueError(f"need {slice.ndim} different labels, not {self.labels}")

    @classmethod
    def unity(cls) -> Self:
        """Return the shape of a single rank, without axes: `len(Shape.unity())` is 1."""
        return cls((), Slice.new_row_major(()))

    @property
    def labels(self) -> list[str]:
        """Names of the axes, outermost first."""
        return list(self._labels)

    @property
    def ndslice(self) -> Slice:
        """The ranks, without names."""
        return self._ndslice

    @property
    def extent(self) -> Extent:
        """Labels and sizes."""
        return Extent(self._labels, self._ndslice.sizes)

    @property
    def region(self) -> Region:
        """The same labels and ranks as a `Region`."""
        return Region(self._labels, self._ndslice)

    def ranks(self) -> list[int]:
        """Return every rank, in row-major order of the axes."""
        return list(self._ndslice)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return where a rank sits, as in `{"h": 1, "g": 2}`; `ValueError` if it does not."""
        return dict(zip(self._labels, self._ndslice.coordinates(rank), strict=True))

    def at(self, label: str, index: int) -> Shape:
        """Take one place on an axis and drop the axis: `shape.at("gpus", 1)`.

        `ValueError` for an unknown label or an index too large, `OverflowError` if it is negative.
        """
        axis = self._axis(label)
        if index < 0:
            raise OverflowError(f"can't convert negative int to unsigned: {index}")
        place = checked_range(slice(index, index + 1), self._ndslice.sizes[axis])
        chosen = self._cut(axis, place).ndslice
        labels, sizes, strides = self.labels, chosen.sizes, chosen.strides
        del labels[axis], sizes[axis], strides[axis]
        return Shape(labels, Slice(offset=chosen.offset, sizes=sizes, strides=strides))

    def select(self, label: str, slice: builtins.slice) -> Shape:  # noqa: A002 Monarch's name
        """Keep a range of an axis: `shape.select("gpus", slice(0, 4, 2))`. `ValueError` as `at`."""
        axis = self._axis(label)
        return self._cut(axis, checked_range(slice, self._ndslice.sizes[axis]))

    def index(self, **coordinates: int) -> Shape:
        """Do `at` for several axes: `shape.index(hosts=0, gpus=3)`. Errors as `at`."""
        shape = self
        for label, index in coordinates.items():
            shape = shape.at(label, index)
        return shape

    def _axis(self, label: str) -> int:
        if label not in self._labels:
            raise ValueError(f"Shape does not have dimension labeled '{label}'")
        return self._labels.index(label)

    def _cut(self, axis: int, places: range) -> Shape:
        old = self._ndslice
        sizes, strides = old.sizes, old.strides
        offset = old.offset + places.start * strides[axis]
        sizes[axis] = len(places)
        strides[axis] *= places.step
        return Shape(self._labels, Slice(offset=offset, sizes=sizes, strides=strides))

    def __len__(self) -> int:
        return len(self._ndslice)

    def _key(self) -> tuple[object, ...]:
        return self._labels, self._ndslice

    def __str__(self) -> str:
        return "{" + ",".join(f"{label}={size}" for label, size in self.extent.items()) + "}"

    def __repr__(self) -> str:
        return f"Shape {{ labels: {json.dumps(self.labels)}, slice: {self._ndslice!r} }}"


@final
class Region(Record):
    """Labelled ranks taken out of a larger space of ranks (the base).

    Example: `Extent(["g"], [4]).region.as_shape().at("g", 2).region.slice().get(0)` is 2.
    Errors as `Shape`.
    """

    __slots__ = ("_shape",)

    def __init__(self, labels: Iterable[str], slice: Slice) -> None:  # noqa: A002 Monarch's name
        self._shape = Shape(labels, slice)

    @property
    def labels(self) -> list[str]:
        """Names of the axes, outermost first."""
        return self._shape.labels

    def slice(self) -> Slice:
        """Return the ranks, without names."""
        return self._shape.ndslice

    def as_shape(self) -> Shape:
        """Return the same labels and ranks as a `Shape`."""
        return self._shape

    def point_of_base_rank(self, rank: int) -> Point:
        """Return where a rank of the base sits in this region; `ValueError` if it does not."""
        return Point(self.slice().index(rank), self._shape.extent)

    def _key(self) -> tuple[object, ...]:
        return (self._shape,)

    def __repr__(self) -> str:
        return repr(self._shape).replace("Shape", "Region", 1)


@final
class Selection(Record):
    """Places of an extent chosen by text, one piece for each axis and commas between.

    A piece is `*` (all), `?` (one at random, drawn at each evaluation), `3` (one) or a range such
    as `0:4` or `::2`. Axes without a piece are taken whole.

    Example: `Selection.from_string("*, 0:2").ranks(Extent(["h", "g"], [2, 4]))` is `[0, 1, 4, 5]`.
    """

    __slots__ = ("_pieces", "_rest")
    _PIECE = re.compile(r"\*|\?|[0-9]+|[0-9]*:[0-9]*(:[0-9]*)?")

    def __init__(self, pieces: Iterable[str] = (), rest: str = "*") -> None:
        self._pieces = tuple(pieces)
        self._rest = rest

    @classmethod
    def from_string(cls, text: str) -> Self:
        """Read a selection; `ValueError` for a piece that means nothing."""
        pieces = [piece.strip() for piece in text.split(",")]
        for piece in pieces:
            if not cls._PIECE.fullmatch(piece):
                raise ValueError(f"cannot read '{piece}' in selection '{text}'")
        return cls(pieces)

    @classmethod
    def all(cls) -> Self:
        """Return every place."""
        return cls()

    @classmethod
    def any(cls) -> Self:
        """Draw one place at random, each time it is evaluated."""
        return cls(rest="?")

    def ranks(self, extent: Extent) -> list[int]:
        """Return the chosen row-major ranks; `ValueError` for a piece outside its axis."""
        missing = len(extent) - len(self._pieces)
        if missing < 0:
            raise ValueError(f"{self!r} has more pieces than {extent} has axes")
        ranks = [0]
        pieces = (*self._pieces, *[self._rest] * missing)
        for piece, size in zip(pieces, extent.sizes, strict=True):
            picks = self._picks(piece, size)
            ranks = [rank * size + at for rank in ranks for at in picks]
        return ranks

    @staticmethod
    def _picks(piece: str, size: int) -> Sequence[int]:
        if piece == "*":
            return range(size)
        if piece == "?":
            return [random.randrange(size)]  # noqa: S311 spreads load, guards no secret
        bounds = [int(bound) if bound else None for bound in piece.split(":")]
        if len(bounds) == 1:
            bounds.append(int(piece) + 1)
        return checked_range(slice(*bounds), size)

    def _key(self) -> tuple[object, ...]:
        return self._pieces, self._rest

    def __repr__(self) -> str:
        return f"Selection('{', '.join(self._pieces) or self._rest}')"
