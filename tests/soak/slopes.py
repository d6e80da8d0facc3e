"""What has grown: decided from samples alone.

Memory and objects by the slope of Theil and Sen, the median over all pairs of samples, which a few
odd ones do not move. Counts must not grow at all: hosts that are attached at the moment have
descriptors, so what counts is the fewest of the last third beside the fewest of the first.
"""

import itertools
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from tests.soak.measures import Sample

WARM_UP = 0.25  # of the samples, left out
FEWEST = 12  # samples that a judgement needs
PER_S = 600.0  # slopes are told for ten minutes
MEMORY_MB = {"kernel": 3.0, "": 1.0}
"""A kernel keeps half a kilobyte of each cell, beside what IPython keeps, and a kilobyte of each
process that has ended, whose number is never used twice: 1 MB in ten minutes of acts. The rest is
what an allocator does not give back; of others nothing else is known that would grow."""
OBJECTS_A_STEP = 5.0  # of the kernel; how processes have ended, failures until there are a hundred
MORE_SEGMENTS = 8.0  # a segment for each size and each number of those that were lent at a time


class Growth(NamedTuple):
    """How a series has gone: its first and last value; in ten minutes, its slope and the most that
    is allowed."""

    name: str
    first: float
    last: float
    slope: float
    allowed: float

    @property
    def is_too_much(self) -> bool:
        return self.slope > self.allowed


def growths(samples: Sequence[Sample]) -> list[Growth]:
    """Judge each series, the warm-up left out."""
    used = samples[int(len(samples) * WARM_UP) :]
    return [_growth(name, used) for name in samples[-1].series]


def _growth(name: str, samples: Sequence[Sample]) -> Growth:
    points = [(each.at_s, each.series[name]) for each in samples]
    values = [value for _, value in points]
    allowed = allowance(name, samples)
    if name.startswith(("memory", "objects")):
        return Growth(name, values[0], values[-1], theil_sen(points) * PER_S, allowed)
    third = max(1, len(values) // 3)
    grown = min(values[-third:]) - min(values[:third])
    return Growth(name, values[0], values[-1], grown, allowed)


def theil_sen(points: Sequence[tuple[float, float]]) -> float:
    """Return the median of the slopes of all pairs.

    Example:
        >>> theil_sen([(0, 1), (1, 2), (2, 99), (3, 4)])
        1.0
    """
    if len(points) < 2:
        return 0.0
    pairs = itertools.combinations(points, 2)
    return statistics.median((y - x) / (t - s) for (s, x), (t, y) in pairs)


def allowance(name: str, samples: Sequence[Sample]) -> float:
    """Return by how much a series may grow in ten minutes."""
    if name.startswith("memory"):
        return next(mb for whose, mb in MEMORY_MB.items() if whose in name)
    if name.startswith("objects"):
        steps, seconds = (samples[-1][i] - samples[0][i] for i in (1, 0))
        return OBJECTS_A_STEP * steps / seconds * PER_S
    return MORE_SEGMENTS if name.startswith("segments that") else 0.0


def table(found: Sequence[Growth]) -> str:
    """Return a line for each series."""
    lines = [f"{'what':32}{'first':>10}{'last':>10}{'in 10 min':>11}{'allowed':>9}"]
    lines += [
        f"{each.name:32}{each.first:10.6g}{each.last:10.6g}{each.slope:+11.3g}{each.allowed:9.3g}"
        f"{'  GROWS' if each.is_too_much else ''}"
        for each in found
    ]
    return "\n".join(lines)


def kinds_that_grew(samples: Sequence[Sample], most: int = 20) -> list[str]:
    """Return of which types the kernel has more objects than after the warm-up."""
    first, last = samples[int(len(samples) * WARM_UP)].kinds, samples[-1].kinds
    more = {kind: count - first.get(kind, 0) for kind, count in last.items()}
    ranked = sorted(more.items(), key=lambda each: -each[1])[:most]
    return [f"{count:+6} {kind}" for kind, count in ranked if count > 0]
