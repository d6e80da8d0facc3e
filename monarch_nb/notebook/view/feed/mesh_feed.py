"""One mesh as the feed tells it: whole, or what is new since an update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from monarch_nb.notebook.view.feed.columns import Clock, CurveColumn, RankColumn, UsageColumn
from monarch_nb.notebook.view.feed.encoding import MAX_HEADLINE, MAX_WHAT, Json, plain, runs
from monarch_nb.notebook.view.feed.inputs import Curve, FeedInputs, Timeline

if TYPE_CHECKING:
    from monarch_nb.control.output.failures import Failure
    from monarch_nb.control.status.snapshots import ActorStatus, MeshStatus
    from monarch_nb.core.errors.records import ErrorRecord

MAX_FAILURES: Final = 32
MAX_CURVES: Final = 64
MAX_ACTORS: Final = 256
SECONDS: Final = 300

Where = Callable[["ErrorRecord"], str]


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
        self._curves: dict[str, CurveColumn] = {}
        self._actors: list[Json] = []
        self._actors_n = 0
        self._timeline: Timeline | None = None

    def is_of(self, status: MeshStatus) -> bool:
        """Whether this is the same mesh; one that was made anew under its name is another."""
        mine = self.status
        revived = mine.ended is not None and status.ended is None
        return not revived and (mine.labels, mine.sizes) == (status.labels, status.sizes)

    def update(self, status: MeshStatus, inputs: FeedInputs, n: int) -> bool:
        """Take what changes at any time. Whether anything has changed."""
        name = status.name
        changed = self._update_status(status, n)
        self._timeline = inputs.timelines.get(name)
        changed |= self._update_failures(inputs.failures.get(name, ()), n)
        changed |= self._update_curves(inputs.curves.get(name, {}), n)
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
        """How many seconds of its timeline have ended since this was last asked."""
        seconds = self._timeline.seconds if self._timeline is not None else 0
        ended, self._told_seconds = seconds - self._told_seconds, max(seconds, self._told_seconds)
        return ended

    def whole(self, parts: frozenset[str]) -> Json:
        """All of it."""
        return {**self._shape(), **self.since(0, parts), **self._strips(parts)}

    def since(self, base: int, parts: frozenset[str]) -> Json:
        """What has changed since the update `base`, but for the strips."""
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
        """The letters of the so many seconds that have ended since the update `base`."""
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
        if "actors" in parts and self._actors_n > base:
            found["actors"] = self._actors
        if "curves" in parts:
            news = {name: curve.since(base) for name, curve in self._curves.items()}
            if told := {name: new for name, new in news.items() if new is not None}:
                found["curves"] = told
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

    def _update_curves(self, curves: Mapping[str, Curve], n: int) -> bool:
        changed = False
        for name, curve in list(curves.items())[:MAX_CURVES]:
            column = self._curves.setdefault(plain(name, MAX_WHAT), CurveColumn())
            changed |= column.update(curve, n)
        return changed

    def _failure(self, failure: Failure) -> Json:
        return {
            "id": failure.id,
            "ranks": runs(failure.ranks),
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
