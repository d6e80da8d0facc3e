"""The arithmetic of grids of ranks: offset, sizes, strides. It knows no names of axes."""

from __future__ import annotations

import builtins
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Self, final, overload


def checked_range(wanted: builtins.slice, size: int) -> range:
    """Apply a slice to an axis, as in `checked_range(slice(1, None), 4)`: `range(1, 4)`.

    Unlike a list, an axis does not clip: `ValueError` if nothing is left or a bound is outside.
    """
    start = 0 if wanted.start is None else wanted.start
    stop = size if wanted.stop is None else wanted.stop
    step = 1 if wanted.step is None else wanted.step
    if step < 1 or not 0 <= start < stop <= size:
        raise ValueError(f"range {start}:{stop}:{step} is empty or out of bounds for size {size}")
    return range(start, stop, step)


def row_major(sizes: Sequence[int], stride: int = 1) -> list[int]:
    """Strides of a dense grid, the last axis moving by `stride`: `row_major([2, 3])` is [3, 1]."""
    strides = []
    for size in reversed(sizes):
        strides.append(stride)
        stride *= size
    return strides[::-1]


def unravel(index: int, sizes: Sequence[int]) -> list[int]:
    """Coordinates of a row-major index that is known to be in range."""
    found = []
    for size in reversed(sizes):
        index, coordinate = divmod(index, size)
        found.append(coordinate)
    return found[::-1]


class Record:
    """Equality and hash by content."""

    __slots__ = ()

    @abstractmethod
    def _key(self) -> tuple[object, ...]:
        """Everything that makes two of them different."""

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, type(self)):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


@final
class Slice(Record):
    """A strided grid of distinct ranks: `offset + sum(coordinate * stride)`.

    Example: `list(Slice(offset=1, sizes=[2, 2], strides=[4, 2]))` is `[1, 3, 5, 7]`.
    `ValueError` if sizes and strides differ in number, a size is below 1, the offset is below 0, or
    two coordinates would be the same rank.
    """

    __slots__ = ("_offset", "_sizes", "_strides")

    def __init__(self, *, offset: int, sizes: Iterable[int], strides: Iterable[int]) -> None:
        self._offset = offset
        self._sizes = tuple(sizes)
        self._strides = tuple(strides)
        self._check()

    def _check(self) -> None:
        if len(self._sizes) != len(self._strides) or min(self._offset + 1, 1, *self._sizes) < 1:
            raise ValueError(
                f"sizes must match strides and be positive, offset not negative: {self!r}"
            )
        reach = 0
        for stride, size in sorted(zip(self._strides, self._sizes, strict=True)):
            if size > 1 and stride <= reach:
                raise ValueError(f"ranks overlap in {self!r}")
            reach += (size - 1) * stride

    @classmethod
    def new_row_major(cls, sizes: Sequence[int]) -> Self:
        """Ranks 0 to n - 1, the last axis fastest: `new_row_major([2, 3])` has strides [3, 1]."""
        return cls(offset=0, sizes=sizes, strides=row_major(sizes))

    @classmethod
    def from_list(cls, ranks: Iterable[int]) -> list[Self]:
        """Cover the ranks with slices of one axis which, read in turn, give the same list.

        Example: `from_list([0, 1, 2, 8, 10])` is a slice of 0, 1, 2 and one of 8, 10.
        """
        runs: list[range] = []
        for rank in ranks:
            last = runs[-1] if runs else range(0)
            step = rank - last[-1] if last else 0
            if step > 0 and (len(last) == 1 or step == last.step):
                runs[-1] = range(last[0], rank + step, step)
            else:
                runs.append(range(rank, rank + 1))
        return [cls(offset=run[0], sizes=[len(run)], strides=[run.step]) for run in runs]

    @property
    def offset(self) -> int:
        """The first rank."""
        return self._offset

    @property
    def sizes(self) -> list[int]:
        """Lengths of the axes, outermost first."""
        return list(self._sizes)

    @property
    def strides(self) -> list[int]:
        """Distance in rank between neighbours on each axis, outermost first."""
        return list(self._strides)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self._sizes)

    def get(self, index: int) -> int:
        """Return the rank at a row-major index; `IndexError` if there is none."""
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} out of range for {len(self)} ranks")
        return self.nditem(unravel(index, self._sizes))

    def index(self, value: int) -> int:
        """Return the row-major index of a rank, the inverse of `get`; `ValueError` if absent."""
        index = 0
        for coordinate, size in zip(self.coordinates(value), self._sizes, strict=True):
            index = index * size + coordinate
        return index

    def nditem(self, coordinates: Sequence[int]) -> int:
        """Return the rank at coordinates, one for each axis; `IndexError` if out of bounds."""
        if len(coordinates) != self.ndim or not self._within(coordinates):
            raise IndexError(f"index out of range: {list(coordinates)} for sizes {self.sizes}")
        steps = zip(coordinates, self._strides, strict=True)
        return self._offset + sum(at * stride for at, stride in steps)

    def coordinates(self, value: int) -> list[int]:
        """Return the coordinates of a rank, the inverse of `nditem`; `ValueError` if absent."""
        rest = value - self._offset
        found = [0] * self.ndim
        # Ranks are distinct, so a stride outweighs all narrower axes together.
        for axis in sorted(range(self.ndim), key=self._strides.__getitem__, reverse=True):
            if self._sizes[axis] > 1:
                found[axis], rest = divmod(rest, self._strides[axis])
        if rest or not self._within(found):
            raise ValueError(f"rank {value} is not in {self!r}")
        return found

    def _within(self, coordinates: Iterable[int]) -> bool:
        return all(0 <= at < size for at, size in zip(coordinates, self._sizes, strict=True))

    def __len__(self) -> int:
        return math.prod(self._sizes)

    def __iter__(self) -> Iterator[int]:
        ranks = [self._offset]
        for size, stride in zip(self._sizes, self._strides, strict=True):
            ranks = [rank + at * stride for rank in ranks for at in range(size)]
        return iter(ranks)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: builtins.slice) -> tuple[int, ...]: ...
    def __getitem__(self, index: int | builtins.slice) -> int | tuple[int, ...]:
        if isinstance(index, builtins.slice):
            return tuple(self)[index]
        if index < 0:
            raise TypeError(f"a slice has no negative index: {index}")
        return self.get(index)

    def _key(self) -> tuple[object, ...]:
        return self._offset, self._sizes, self._strides

    def __repr__(self) -> str:
        return f"Slice {{ offset: {self._offset}, sizes: {self.sizes}, strides: {self.strides} }}"


NDSlice = Slice
