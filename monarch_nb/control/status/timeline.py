"""What each rank of a mesh did in each of the last seconds, a letter a second.

`0` to `9` is the share of the second in which user code ran (`9`: 90 % and more), `c` a wait in a
collective, `p` paused, `s` starting, `z` silent, `e` it raised an exception, `x` ended, `.` not
known: nobody had looked before. Shares come from the ranks' own clocks: differences of how long
they were busy, not of what was seen at some moments, so seconds at which nobody looked have the
share of all of them together. It knows no clock and no thread; who reads while another feeds sees
whole seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

KEPT: Final = 300
"""Seconds."""

UNKNOWN: Final = "."
RAISED: Final = "e"
WAIT_S: Final = 0.5
"""A wait in a collective that is shorter at the end of a second is part of what was busy."""

_MARKS: Final = {
    "collective": "c",
    "paused": "p",
    "starting": "s",
    "silent": "z",
    "exited": "x",
    "unreachable": "x",
    "stopped": "x",
}
_MIN_SPAN_S: Final = 0.5  # a share of less says little


class Sample(NamedTuple):
    """A rank as it was last seen, at `seen_at`: what it does goes on since `since`.

    `process` tells one life of the rank from the next; before `since`, it was busy for `busy_s` in
    this life. `runs`: it is busy now. `failed`: how often it has raised in this life.
    """

    process: int
    state: str
    since: float
    busy_s: float
    runs: bool
    seen_at: float
    failed: int = 0

    def busy_until(self, at: float) -> float:
        """Return for how long it was busy in this life."""
        return self.busy_s + (max(0.0, at - self.since) if self.runs else 0.0)


class Timeline:
    """Of one mesh, whose ranks keep their row when they get another process.

    `seconds` counts the seconds that have ended, on a clock that all meshes share.
    """

    def __init__(self, size: int, seconds: int = 0) -> None:
        self._size = size
        self._told: tuple[int, tuple[bytes, ...]] = (seconds, ())
        # process, when, busy, failed
        self._last: list[tuple[int, float, float, int] | None] = [None] * size

    @property
    def seconds(self) -> int:
        return self._told[0]

    def feed(self, seconds: int, now: float, samples: Sequence[Sample]) -> None:
        """Add the seconds that have ended, up to number `seconds` from 1; so were the ranks at
        `now`.
        """
        ended, columns = self._told
        new = min(seconds - ended, KEPT)
        if new <= 0:
            return
        rows = [self._letters(rank, now, each, new) for rank, each in enumerate(samples)]
        added = ("".join(letters).encode() for letters in zip(*rows, strict=True))
        self._told = seconds, (*columns, *added)[-KEPT:]

    def strips(self) -> list[str]:
        """Return the last seconds of each rank, `KEPT` at most, oldest first."""
        _, columns = self._told
        letters = b"".join(columns).decode()
        return [letters[rank :: self._size] for rank in range(self._size)]

    def letters(self, second: int) -> str:
        """Return a letter for each rank, for the second with this number (from 0)."""
        seconds, columns = self._told
        place = second - (seconds - len(columns))
        return columns[place].decode() if 0 <= place < len(columns) else UNKNOWN * self._size

    def _letters(self, rank: int, now: float, sample: Sample, seconds: int) -> str:
        # Of the last seconds: one, or all at which nobody looked
        last = self._last[rank]
        mark, share = _mark(sample, now), UNKNOWN
        if last is None or last[0] != sample.process:
            self._last[rank] = sample.process, now, sample.busy_until(now), sample.failed
        else:
            _, before, busy_before, failed_before = last
            # what was seen since then is exact; else nothing has changed until now, so far as known
            at = sample.seen_at if sample.seen_at - before >= _MIN_SPAN_S else now
            busy = sample.busy_until(at)
            if busy >= busy_before and at > before:  # else its host has not told yet
                share = str(min(9, int((busy - busy_before) / (at - before) * 10)))
                self._last[rank] = sample.process, at, busy, sample.failed
            if sample.failed > failed_before and mark != "x":
                mark = RAISED
        if mark is None or mark == RAISED or not sample.since:
            return share * (seconds - 1) + (mark or share)
        so = min(seconds, max(1, math.ceil(now - sample.since)))
        return share * (seconds - so) + mark * so


def _mark(sample: Sample, now: float) -> str | None:
    if sample.state == "collective" and now - sample.since < WAIT_S:
        return None
    return _MARKS.get(sample.state)
