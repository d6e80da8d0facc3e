"""What each rank of a mesh did in each of the last seconds, a letter a second.

`0` to `9` is the share of the second in which user code ran (`9`: 90 % and more), `c` a wait in a
collective, `p` paused, `s` starting, `z` silent, `x` ended, `.` not known: nobody looked. Shares
come from the ranks' own clocks: differences of how long they were busy, not of what was seen at
some moments. It knows no clock and no thread; who reads while another feeds sees whole seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

KEPT: Final = 300
"""Seconds."""

UNKNOWN: Final = "."
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
    this life. `runs`: it is busy now.
    """

    process: int
    state: str
    since: float
    busy_s: float
    runs: bool
    seen_at: float

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
        self._last: list[tuple[int, float, float] | None] = [None] * size  # process, when, busy

    @property
    def seconds(self) -> int:
        return self._told[0]

    def feed(self, seconds: int, now: float, samples: Sequence[Sample]) -> None:
        """Add the second that has ended, number `seconds` from 1; so were the ranks at `now`."""
        if seconds <= self.seconds:
            return
        letters = "".join(self._letter(rank, now, each) for rank, each in enumerate(samples))
        self._add(seconds, letters.encode())

    def skip(self, seconds: int) -> None:
        """Leave out the seconds until now: nobody looked."""
        self._last = [None] * self._size
        self._add(seconds, UNKNOWN.encode() * self._size)

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

    def _add(self, seconds: int, column: bytes) -> None:
        ended, columns = self._told
        new = (column,) * min(seconds - ended, KEPT)  # after a pause of this process: several
        if new:
            self._told = seconds, (*columns, *new)[-KEPT:]

    def _letter(self, rank: int, now: float, sample: Sample) -> str:
        last = self._last[rank]
        if last is None or last[0] != sample.process:
            self._last[rank] = sample.process, now, sample.busy_until(now)
            return _mark(sample, now) or UNKNOWN
        _, before, busy_before = last
        # what was seen since then is exact; else nothing has changed until now, as far as is known
        at = sample.seen_at if sample.seen_at - before >= _MIN_SPAN_S else now
        busy = sample.busy_until(at)
        self._last[rank] = sample.process, at, busy
        share = (busy - busy_before) / (at - before) if at > before else 0.0
        return _mark(sample, now) or str(min(9, max(0, int(share * 10))))


def _mark(sample: Sample, now: float) -> str | None:
    if sample.state == "collective" and now - sample.since < WAIT_S:
        return None
    return _MARKS.get(sample.state)
