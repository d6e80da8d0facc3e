"""One mesh as the feed tells it: whole, or what is new since an update.

Rule of the file: each column keeps the number of the update at which each of its entries changed,
so that what is new since any update can be told, however many listen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from monarch_nb.core.errors.folding import rank_list
from monarch_nb.notebook.view.feed.encoding import (
    MAX_HEADLINE,
    MAX_WHAT,
    Json,
    mebibytes,
    number,
    plain,
)
from monarch_nb.notebook.view.feed.inputs import FeedInputs
from monarch_nb.notebook.view.feed.runs import RunsColumn

if TYPE_CHECKING:
    from monarch_nb.control.output.failure_history import Failure, PastFailure
    from monarch_nb.control.status.snapshots import ActorStatus, MeshStatus, RankStatus
    from monarch_nb.control.status.timeline import Timeline
    from monarch_nb.core.curves import Curve
    from monarch_nb.core.errors.records import ErrorRecord

MAX_POINTS: Final = 512
_KEPT: Final = 64  # changes of a curve that are told apart


Point = list[float | None]
Clock = Callable[[float], int]  # `time.monotonic()` to milliseconds of the feed

_said = attrgetter("state", "what", "detail")

MAX_FAILURES: Final = 32
MAX_CURVES: Final = 64
MAX_ACTORS: Final = 256
SECONDS: Final = 300

Where = Callable[["ErrorRecord"], str]


class RankColumn:
    """The state of each rank, what it runs and since when."""

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
                or new.state != old.state
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
        """Return `[runs, state, what, detail, since]` of what changed, equal ones together."""
        groups: dict[tuple[str, str, str], list[RankStatus]] = {}
        for status, n in zip(self._ranks, self._n, strict=True):
            if n > base:
                groups.setdefault(_said(status), []).append(status)
        return [
            [
                rank_list([status.rank for status in group]),
                state,
                plain(what, MAX_WHAT),
                plain(detail),
                _since(group, clock),
            ]
            for (state, what, detail), group in groups.items()
        ]

    def pids(self) -> list[int | None]:
        return [status.pid for status in self._ranks]

    def hosts(self) -> list[list[object]]:
        groups: dict[int, list[int]] = {}
        for status in self._ranks:
            groups.setdefault(status.host, []).append(status.rank)
        return [[rank_list(ranks), host] for host, ranks in groups.items()]


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
    """Memory, processor and counts of calls of each rank, at most a second old."""

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
        """Return the columns that changed, of the ranks that changed; empty when none has."""
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
        return {"ranks": rank_list(ranks), **known} if known else {}


class CurveColumn:
    """The points of one curve."""

    def __init__(self) -> None:
        self._seen: tuple[Curve, int] | None = None
        self._points: list[Point] = []
        self._changes: deque[tuple[int, int]] = deque()  # update, first new point
        self._forgotten_n = 0  # of the last change that is not there any more

    def update(self, curve: Curve, n: int) -> bool:
        """Take the curve as it is now. Whether it has changed."""
        seen = self._seen
        if seen is not None and seen[0] is curve and seen[1] == curve.version:
            return False
        self._seen = curve, curve.version
        points = [_point(each) for each in list(curve.points)[-MAX_POINTS:]]
        if points == self._points:
            return False
        self._changes.append((n, _first_difference(self._points, points)))
        if len(self._changes) > _KEPT:
            self._forgotten_n, _ = self._changes.popleft()
        self._points = points
        return True

    def since(self, base: int) -> Json | None:
        """Return `{from, points}`; None if nothing is new."""
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


class MeshFeed:
    """Takes what is seen of a mesh; says what has changed since an update.

    `clock` turns times into the feed's; `where` says of an error record at which line it arose.
    """

    def __init__(self, status: MeshStatus, n: int, clock: Clock, where: Where) -> None:
        self.born = n
        self.status = status
        self._told_seconds = 0
        self._clock = clock
        self._where = where
        self._ranks = RankColumn(status.ranks, n)
        self._usage = UsageColumn(status.ranks, n)
        self._ended_n = n
        self._failures: Sequence[Failure] = ()
        self._told_failures: list[Json] = []
        self._failures_n = 0
        self._past: Sequence[PastFailure] = ()
        self._told_past: list[Json] = []
        self._past_n = 0
        self._curves: dict[str, CurveColumn] = {}
        self._runs = RunsColumn()
        self._actors: list[Json] = []
        self._actors_n = 0
        self._timeline: Timeline | None = None

    @property
    def floor(self) -> int:
        """What is new since an update before this one could miss something."""
        return self._runs.floor

    def is_of(self, status: MeshStatus) -> bool:
        """Tell whether this is the same mesh; one that was made anew under its name is another."""
        mine = self.status
        return (mine.number, mine.sizes) == (status.number, status.sizes)

    def update(self, status: MeshStatus, inputs: FeedInputs, n: int) -> bool:
        """Take what changes at any time. Whether anything has changed."""
        name = status.name
        changed = self._update_status(status, n)
        self._timeline = inputs.timelines.get(name)
        changed |= self._update_failures(inputs.failures.get(name, ()), n)
        changed |= self._update_past(inputs.past.get(name, ()), n)
        curves = inputs.curves.get(name, {})
        changed |= self._update_curves(curves, n)
        changed |= self._runs.update(inputs.runs.get(name, ()), curves, n)
        return changed

    def update_slowly(self, inputs: FeedInputs, n: int) -> bool:
        """Take what is told once a second."""
        changed = self._usage.update(self.status.ranks, n)
        told = inputs.actors.get(self.status.name)
        actors = [_actor(each) for each in told or map(_known, self.status.actors)][:MAX_ACTORS]
        if actors != self._actors:
            self._actors, self._actors_n, changed = actors, n, True
        return changed

    def ended_seconds(self) -> int:
        """Return how many seconds of its timeline have ended since this was last asked."""
        seconds = self._timeline.seconds if self._timeline is not None else 0
        ended, self._told_seconds = seconds - self._told_seconds, max(seconds, self._told_seconds)
        return ended

    def whole(self, parts: frozenset[str]) -> Json:
        """Return all of it."""
        return {**self._shape(), **self.since(0, parts), **self._strips(parts)}

    def since(self, base: int, parts: frozenset[str]) -> Json:
        """Return what has changed since the update `base`, but for the strips."""
        if base < self.born and base:
            return {**self._shape(), **self.since(0, parts)}
        found: Json = {}
        if self._ended_n > base:
            found["ended"] = _maybe(self.status.ended)
        if self._ranks.hosts_n > base:
            found["hosts"] = self._ranks.hosts()
        if self._ranks.pids_n > base:
            found["pids"] = self._ranks.pids()
        if rows := self._ranks.rows(base, self._clock):
            found["ranks"] = rows
        if usage := self._usage.rows(base):
            found["usage"] = usage
        return found | self._parts(base, parts)

    def strips_since(self, base: int, ended: int, parts: frozenset[str]) -> Json:
        """Return the letters of the so many seconds that have ended since the update `base`."""
        if base < self.born:
            return self._strips(parts)
        if ended != 1:
            return self._strips(parts) if ended else {}
        if "strips" not in parts or self._timeline is None or not self._timeline.seconds:
            return {}
        return {"strip": self._timeline.letters(self._timeline.seconds - 1)}

    def _shape(self) -> Json:
        return {
            "labels": [plain(label, MAX_WHAT) for label in self.status.labels],
            "sizes": list(self.status.sizes),
        }

    def _parts(self, base: int, parts: frozenset[str]) -> Json:
        found: Json = {}
        if "failures" in parts and self._failures_n > base:
            found["failures"] = self._told_failures
        if "failures" in parts and self._past_n > base:
            found["past"] = self._told_past
        if "actors" in parts and self._actors_n > base:
            found["actors"] = self._actors
        if "curves" in parts:
            news = {name: curve.since(base) for name, curve in self._curves.items()}
            if told := {name: new for name, new in news.items() if new is not None}:
                found["curves"] = told
            if runs := self._runs.since(base):
                found["runs"] = runs
        return found

    def _strips(self, parts: frozenset[str]) -> Json:
        if "strips" not in parts or self._timeline is None or not self._timeline.seconds:
            return {}
        return {"strips": [strip[-SECONDS:] for strip in self._timeline.strips()]}

    def _update_status(self, status: MeshStatus, n: int) -> bool:
        before, self.status = self.status, status
        if status is before:
            return False
        if status.ended == before.ended:
            return self._ranks.update(status.ranks, n)
        self._ended_n = n
        self._ranks.update(status.ranks, n)
        return True

    def _update_failures(self, failures: Sequence[Failure], n: int) -> bool:
        if failures is self._failures or (not failures and not self._failures):
            return False
        self._failures, self._failures_n = failures, n
        self._told_failures = [self._failure(each) for each in failures[:MAX_FAILURES]]
        return True

    def _update_past(self, past: Sequence[PastFailure], n: int) -> bool:
        if past is self._past or (not past and not self._past):
            return False
        self._past, self._past_n = past, n
        self._told_past = [
            {
                **self._failure(each.failure),
                "came": round(each.failure.came_at * 1000),
                "became": plain(each.became, MAX_WHAT),
            }
            for each in past
        ]
        return True

    def _update_curves(self, curves: Mapping[str, Curve], n: int) -> bool:
        changed = False
        for name, curve in list(curves.items())[:MAX_CURVES]:
            column = self._curves.setdefault(plain(name, MAX_WHAT), CurveColumn())
            changed |= column.update(curve, n)
        return changed

    def _failure(self, failure: Failure) -> Json:
        return {
            "id": failure.id,
            "ranks": rank_list(failure.ranks),
            "headline": plain(failure.record.headline, MAX_HEADLINE),
            "where": plain(self._where(failure.record), MAX_HEADLINE),
            "what": plain(failure.what, MAX_WHAT),
            "at": self._clock(failure.at),
            "count": failure.count,
        }


def _known(actor: ActorStatus) -> Json:
    # An actor of which no rank has told anything
    counts = dict.fromkeys(("calls", "failed", "queue"), 0)
    found = {"name": actor.name, "cls": actor.cls, "size": actor.size, "ended": actor.ended}
    return {**found, **counts}


def _actor(told: Mapping[str, object]) -> Json:
    return {
        "name": plain(told["name"], MAX_WHAT),
        "cls": plain(told["cls"], MAX_WHAT),
        **{key: told[key] for key in ("size", "calls", "failed", "queue")},
        "ended": _maybe(told["ended"]),
    }


def _maybe(text: object) -> str | None:
    return None if text is None else plain(text)
