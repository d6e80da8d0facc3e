"""Times: monotonic, in seconds, medians of many. Nothing here waits or formats."""

from collections.abc import Callable
from statistics import median
from time import clock_gettime
from time import perf_counter as now
from typing import Any

__all__ = ["cpu_s", "median", "median_time", "now", "time_of", "times_of"]


def time_of(work: Callable[[], Any]) -> float:
    start = now()
    work()
    return now() - start


def times_of(work: Callable[[], Any], count: int, within_s: float) -> list[float]:
    """Up to `count` times of `work`, at least one; none is begun once `within_s` have passed."""
    end = now() + within_s
    times = [time_of(work)]
    while len(times) < count and now() < end:
        times.append(time_of(work))
    return times


def median_time(work: Callable[[], Any], count: int, within_s: float = 60) -> float:
    """The warm median: a tenth of `count` runs, at least two, are thrown away first."""
    times_of(work, max(2, count // 10), within_s / 4)
    return median(times_of(work, count, within_s))


def cpu_s(pid: int) -> float:
    """Processor time of all threads of a process: the scheduler's own count. The one of `ps` counts
    in hundredths."""
    return clock_gettime(~pid << 3 | 2)
