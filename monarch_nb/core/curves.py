"""Curves of what ranks measure: many points in, a few hundred out, however long it goes on.

Rules of the file: no curve has more points than its capacity. One that is full halves its
resolution: steps are put together in bins of a width that is a power of two. A bin keeps the
extremes of what fell into it, so that a spike of one rank in one step stays visible. A value that
is no finite number is a gap. Whoever writes is one thread; readers need no lock.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

from monarch_nb.errors import RemoteProtocolError

CAPACITY: Final = 512
MAX_STEP: Final = 1 << 53
"""Steps beyond could not be told from their neighbours in JSON."""


class Sample(NamedTuple):
    """One value at a step, or `weight` of them that were put together where there were too many."""

    step: int
    mean: float
    low: float
    high: float
    weight: int = 1

    @staticmethod
    def of(step: int, value: float) -> Sample:
        """Make the sample of one value; one that is not finite counts as none."""
        if math.isfinite(value):
            return Sample(step, value, value, value)
        return Sample(step, math.nan, math.nan, math.nan, 0)

    @staticmethod
    def over(steps: Sequence[int], values: Sequence[float]) -> Sample:
        """Make the sample of several values, at the last of their steps."""
        step, total = max(steps), sum(values)
        if not math.isfinite(total):  # a gap among them, or too large for a sum
            values = [value for value in values if math.isfinite(value)]
            if not values:
                return Sample.of(step, math.nan)
        count, low, high = len(values), min(values), max(values)
        mean = total / count if math.isfinite(total) else sum(each / count for each in values)
        return Sample(step, min(max(mean, low), high), low, high, count)


def thinned(steps: Sequence[int], values: Sequence[float], most: int) -> list[Sample]:
    """Return so many samples at most; neighbours are put together where there are more."""
    if len(steps) <= most:
        return list(map(Sample.of, steps, values))
    stride = -(-len(steps) // most)
    cuts = [slice(start, start + stride) for start in range(0, len(steps), stride)]
    return [Sample.over(steps[cut], values[cut]) for cut in cuts]


Point = tuple[int, float | None, float | None, float | None, int]
"""step, mean, low, high, count; None where there is no finite value."""


@dataclass(slots=True, eq=False)
class _Bin:
    # What fell into one stretch of steps

    key: int
    step: int  # the last of them
    mean: float = math.nan
    low: float = math.nan
    high: float = math.nan
    count: int = 0
    mark: int = 0  # the version of the curve at which it has last changed

    def add(self, sample: Sample, mark: int) -> None:
        step, mean, low, high, weight = sample
        self.mark = mark  # before the rest: a reader meanwhile looks again
        self.step = max(self.step, step)
        if not weight:
            return
        if not self.count:
            self.mean, self.low, self.high, self.count = mean, low, high, weight
            return
        total = self.count + weight
        both = (self.mean * self.count + mean * weight) / total  # 3.5 of 2, 3, 4, 5 in any order
        if not math.isfinite(both):
            both = self.mean * (self.count / total) + mean * (weight / total)
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.mean = min(max(both, self.low), self.high)  # rounding
        self.count = total

    def sample(self) -> Sample:
        return Sample(self.step, self.mean, self.low, self.high, self.count)

    def point(self) -> Point:
        if not self.count:
            return self.step, None, None, None, 0
        return self.step, self.mean, self.low, self.high, self.count


class Fold:
    """The values of all ranks by step.

    Args:
        capacity: points, 4 at least: steps below and above 0 are never put together.

    Example:
        >>> fold = Fold()
        >>> fold.add(Sample.of(0, 1.0))
        >>> fold.add(Sample.of(0, 3.0))
        >>> fold.points
        [(0, 2.0, 1.0, 3.0, 2)]
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.version = 0
        self._capacity = capacity
        self._width = 1
        self._bins: list[_Bin] = []
        self._whole_since = 0  # the version at which every point has changed

    @property
    def points(self) -> list[Point]:
        return [each.point() for each in list(self._bins)]

    def samples(self) -> list[Sample]:
        """Return the same, to be put into another fold."""
        return [each.sample() for each in self._bins]

    def add(self, sample: Sample) -> None:
        """Add a sample at its step, also when later ones have come already."""
        key = sample.step // self._width
        bins = self._bins
        if bins and bins[-1].key == key:  # most do
            bins[-1].add(sample, self.version + 1)
        else:
            self._add_at(bisect_left(bins, key, key=attrgetter("key")), key, sample)
        self.version += 1

    def _add_at(self, index: int, key: int, sample: Sample) -> None:
        bins = self._bins
        if index < len(bins) and bins[index].key == key:
            bins[index].add(sample, self.version + 1)
            return
        found = _Bin(key, sample.step)
        found.add(sample, self.version + 1)
        bins.insert(index, found)
        if len(bins) > self._capacity:
            self._halve()

    def changed_since(self, version: int) -> tuple[int, list[Point]]:
        """Return `(k, points)`: since that version `points[k:]` have become these.

        Read `version` before you ask, for the next time: what changes meanwhile is told again.
        """
        if version < self._whole_since:
            return 0, self.points
        bins = list(self._bins)
        first = next((i for i, each in enumerate(bins) if each.mark > version), len(bins))
        return first, [each.point() for each in bins[first:]]

    def _halve(self) -> None:
        # or more, where steps are far apart
        bins, width = self._bins, self._width
        while len(bins) > self._capacity // 2:
            width *= 2
            merged: list[_Bin] = []
            for each in bins:
                key = each.step // width
                if not merged or merged[-1].key != key:
                    merged.append(_Bin(key, each.step))
                merged[-1].add(each.sample(), 0)
            bins = merged
        self._bins, self._width = bins, width
        self.version += 1
        self._whole_since = self.version


class Trace:
    """The values of one rank: 16 bytes a point. Of steps that were put together the last counts."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._width = 1
        self._steps = array("q")
        self._values = array("d")

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def points(self) -> list[tuple[int, float | None]]:
        """step, value; None for a gap."""
        pairs = zip(self._steps[:], self._values[:], strict=False)
        return [(step, value if math.isfinite(value) else None) for step, value in pairs]

    def add(self, step: int, value: float) -> None:
        """Add a value; it takes the place of one at the same step."""
        steps, key = self._steps, step // self._width
        index = len(steps)
        if steps and key <= steps[-1] // self._width:
            index = bisect_left(steps, key, key=lambda each: each // self._width)
        if index < len(steps) and steps[index] // self._width == key:
            if step >= steps[index]:
                steps[index], self._values[index] = step, value
            return
        self._values.insert(index, value)
        steps.insert(index, step)
        if len(steps) > self._capacity:
            self._halve()

    def _halve(self) -> None:
        last: dict[int, float] = dict(zip(self._steps, self._values, strict=True))
        while len(last) > self._capacity // 2:
            self._width *= 2
            kept = {step // self._width: step for step in last}
            last = {step: last[step] for step in kept.values()}
        self._steps, self._values = array("q", last), array("d", last.values())


class Curve:
    """One measure of a mesh: the fold of all ranks, and each rank by itself.

    Args:
        trace_capacity: points that are kept of each rank.
    """

    def __init__(self, trace_capacity: int = CAPACITY) -> None:
        self._trace_capacity = trace_capacity
        self._fold = Fold()
        self._traces: dict[int, Trace] = {}
        self._steps: tuple[int, int] | None = None

    @property
    def steps(self) -> tuple[int, int] | None:
        """The first and the last; None while there is none."""
        return self._steps

    @property
    def trace_points(self) -> int:
        """How many points of ranks are kept."""
        return sum(map(len, list(self._traces.values())))

    @property
    def version(self) -> int:
        return self._fold.version

    @property
    def points(self) -> list[Point]:
        """step, mean, low, high, count over ranks; 512 at most."""
        return self._fold.points

    def changed_since(self, version: int) -> tuple[int, list[Point]]:
        return self._fold.changed_since(version)

    def of(self, rank: int) -> list[tuple[int, float | None]]:
        """step, value of one rank; empty for one that has told nothing."""
        found = self._traces.get(rank)
        return [] if found is None else found.points

    @property
    def ranks(self) -> list[int]:
        """Those that have told something."""
        return sorted(self._traces)

    def add(self, rank: int, samples: Iterable[Sample]) -> None:
        """Add what a rank tells."""
        for sample in samples:
            step = sample.step
            first, last = self._steps or (step, step)
            self._steps = min(first, step), max(last, step)
            self._fold.add(sample)
            self._trace_of(rank).add(step, sample.mean)

    def _trace_of(self, rank: int) -> Trace:
        found = self._traces.get(rank)
        if found is None:
            found = self._traces[rank] = Trace(self._trace_capacity)
        return found


Wire = list[int | float | None]
"""`[step, value]` or `[step, mean, low, high, count]`; null for a gap."""


def to_wire(sample: Sample) -> Wire:
    if not sample.weight:
        return [sample.step, None]
    return [sample.step, sample.mean] if sample.weight == 1 else list(sample)


def from_wire(data: object) -> Sample:
    """Raises `RemoteProtocolError` for anything that `to_wire` does not make."""
    match data:
        case [int(step), None] if abs(step) <= MAX_STEP:
            return Sample.of(step, math.nan)
        case [int(step), int() | float() as value] if abs(step) <= MAX_STEP:
            return Sample.of(step, _number(value))
        case [
            int(step),
            int() | float() as mean,
            int() | float() as low,
            int() | float() as high,
            int(count),
        ] if abs(step) <= MAX_STEP and 0 < count <= MAX_STEP:
            found = Sample(step, _number(mean), _number(low), _number(high), count)
            is_finite = math.isfinite(found.low) and math.isfinite(found.high)
            if is_finite and found.low <= found.mean <= found.high:
                return found
    raise RemoteProtocolError("not a point of a curve")


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer of 400 digits
        return math.nan
