"""Which of a mesh's columns have changed since which update: ranks, usage, curves.

Rule of the file: each column keeps the number of the update at which each of its entries changed,
so that what is new since any update can be told, however many listen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from monarch_nb.notebook.view.feed.encoding import MAX_WHAT, Json, mebibytes, number, plain, runs
from monarch_nb.notebook.view.feed.inputs import Curve

MAX_POINTS: Final = 512
_KEPT: Final = 64  # changes of a curve that are told apart

if TYPE_CHECKING:
    from monarch_nb.control.status.snapshots import RankStatus

Point = list[float | None]
Clock = Callable[[float], int]  # `time.monotonic()` to milliseconds of the feed

_said = attrgetter("verdict", "what", "detail")


class RankColumn:
    """What each rank does."""

    def __init__(self, ranks: Sequence[RankStatus], n: int) -> None:
        self._ranks = ranks
        self._n = [n] * len(ranks)
        self.pids_n = self.hosts_n = n

    def update(self, ranks: Sequence[RankStatus], n: int) -> bool:
        """Take the ranks as they are now. Whether anything is to be told."""
        before, self._ranks = self._ranks, ranks
        changed = False
        for rank, (old, new) in enumerate(zip(before, ranks, strict=True)):
            if new is old:
                continue
            if (
                new.since != old.since
                or new.verdict != old.verdict
                or new.what != old.what
                or new.detail != old.detail
            ):
                self._n[rank] = n
                changed = True
            if new.pid != old.pid:
                self.pids_n = n
                changed = True
            if new.host != old.host:
                self.hosts_n = n
                changed = True
        return changed

    def rows(self, base: int, clock: Clock) -> list[list[object]]:
        """`[runs, verdict, what, detail, since]` of the ranks that changed, equal ones together."""
        groups: dict[tuple[str, str, str], list[RankStatus]] = {}
        for status, n in zip(self._ranks, self._n, strict=True):
            if n > base:
                groups.setdefault(_said(status), []).append(status)
        return [
            [
                runs([status.rank for status in group]),
                verdict,
                plain(what, MAX_WHAT),
                plain(detail),
                _since(group, clock),
            ]
            for (verdict, what, detail), group in groups.items()
        ]

    def pids(self) -> list[int | None]:
        """By rank."""
        return [status.pid for status in self._ranks]

    def hosts(self) -> list[list[object]]:
        """`[runs, host]`."""
        groups: dict[int, list[int]] = {}
        for status in self._ranks:
            groups.setdefault(status.host, []).append(status.rank)
        return [[runs(ranks), host] for host, ranks in groups.items()]


def _since(group: Sequence[RankStatus], clock: Clock) -> int | list[int]:
    # When it began, once where it is the same for all. 0: not known.
    found = [max(clock(status.since), 1) if status.since else 0 for status in group]
    return found[0] if found.count(found[0]) == len(found) else found


_READ: Final[dict[str, Callable[[RankStatus], int | None]]] = {
    "cpu": lambda status: round(status.usage.cpu_percent),
    "rss": lambda status: mebibytes(status.usage.rss_bytes),
    "queue": lambda status: status.queue,
    "calls": lambda status: status.calls,
    "failed": lambda status: status.failed,
    "beat": lambda status: status.beat,
    "gpu": lambda status: status.usage.gpu_percent,
    "gpu_mem": lambda status: mebibytes(status.usage.gpu_bytes),
}


class UsageColumn:
    """What ranks use and have done, as it was a second ago at most."""

    def __init__(self, ranks: Sequence[RankStatus], n: int) -> None:
        self._ranks: Sequence[RankStatus] = ()
        self._columns: dict[str, list[int | None]] = {name: [None] * len(ranks) for name in _READ}
        self._column_n = dict.fromkeys(_READ, 0)
        self._rank_n = [n] * len(ranks)
        self.update(ranks, n)

    def update(self, ranks: Sequence[RankStatus], n: int) -> bool:
        """Take it anew. Whether anything has changed."""
        if ranks is self._ranks:
            return False
        self._ranks, changed = ranks, False
        for name, read in _READ.items():
            new = [read(status) for status in ranks]
            old = self._columns[name]
            if new == old:
                continue
            changed = True
            self._columns[name], self._column_n[name] = new, n
            for rank, (a, b) in enumerate(zip(old, new, strict=True)):
                if a != b:
                    self._rank_n[rank] = n
        return changed

    def rows(self, base: int) -> Json:
        """The columns that changed, of the ranks that changed; empty when none has."""
        ranks = [rank for rank, n in enumerate(self._rank_n) if n > base]
        found = {
            name: [column[rank] for rank in ranks]
            for name, column in self._columns.items()
            if self._column_n[name] > base
        }
        known = {
            name: column
            for name, column in found.items()
            if any(value is not None for value in column)
        }
        return {"ranks": runs(ranks), **known} if known else {}


class CurveColumn:
    """The points of one curve."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._points: list[Point] = []
        self._changes: deque[tuple[int, int]] = deque()  # update, first new point
        self._forgotten_n = 0  # of the last change that is not there any more

    def update(self, curve: Curve, n: int) -> bool:
        """Take the curve as it is now. Whether it has changed."""
        if curve.version == self._version:
            return False
        self._version = curve.version
        points = [_point(each) for each in list(curve.points)[-MAX_POINTS:]]
        if points == self._points:
            return False
        self._changes.append((n, _first_difference(self._points, points)))
        if len(self._changes) > _KEPT:
            self._forgotten_n, _ = self._changes.popleft()
        self._points = points
        return True

    def since(self, base: int) -> Json | None:
        """`{from, points}`; None if nothing is new."""
        firsts = [first for n, first in self._changes if n > base]
        if not firsts:
            return None
        first = min(firsts) if base > self._forgotten_n else 0
        return {"from": first, "points": self._points[first:]}


def _point(point: Sequence[float | None]) -> Point:
    step, mean, low, high, count = point
    return [number(step), number(mean), number(low), number(high), count]


def _first_difference(old: Sequence[Point], new: Sequence[Point]) -> int:
    pairs = enumerate(zip(old, new, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(old), len(new)))
