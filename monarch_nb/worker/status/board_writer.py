"""A rank's hand on the status board: a few bytes of shared memory, written about once per call.

Rule: user code that runs is one stretch, from the first `busy` or `turn` to the end. A record says
how long earlier stretches took and, with `since`, what its own has taken by now, so that a reader
who comes at any time knows how long the rank was busy.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Any, Final, NamedTuple

from monarch_nb.core.wire.board import (
    BUSY,
    COLLECTIVE,
    FAILED,
    IDLE,
    PAUSED,
    BoardSlot,
    Status,
    parse,
)

STEP: Final = 32
MAX_PAUSES: Final = 64  # that are remembered


class Waited(NamedTuple):
    """What `collective` has hidden, for `resume`."""

    news: int
    before: Status


class BoardWriter:
    """Writes what the rank does. Costs about a microsecond; never waits for a reader.

    `queues` tell how much waits in each queue of the rank; actors come and go in that list.
    """

    def __init__(self, place: tuple[str, int], queues: Sequence[Callable[[], int]] = ()) -> None:
        path, index = place
        self._slot = BoardSlot(mapped(path), index)
        self._write: Callable[..., None] = self._slot.write
        self._queues = queues
        self._queue = 0
        self._calls = 0
        self._failed = 0
        self._busy_ns = 0
        self.since_ns = 0
        """When the stretch began; 0: no user code runs."""
        self._turn = ""
        self._turn_since_ns = 0
        self._pauses: dict[object, str] = {}  # who is paused: where
        self._paused_ns = self._paused_busy_ns = 0
        self._hidden: Status | None = None  # what would be told if nobody were paused
        self._overlays = 0
        self._pausing = threading.Lock()
        self._pauses_over: deque[tuple[int, int]] = deque(maxlen=MAX_PAUSES)

    def busy(self, what: str) -> None:
        now = monotonic_ns()
        busy_ns = self._busy_ns
        if since := self.since_ns:
            busy_ns += now - since
        else:
            self.since_ns = now
        depth = 0
        for size in self._queues:  # `_waiting`, which is a call more: this is once per call
            depth += size()
        self._queue = depth
        self._write(BUSY, now, what, busy_ns, self._calls, self._failed, depth)

    def idle(self, failed: bool = False) -> None:
        """Write that a call has ended; it may have run beside a turn of the main thread's, or
        within.

        A rank that rests after an exception is *failed* until it runs something again: who looks
        away for a moment still sees which ranks it were.
        """
        self._calls += 1
        if failed:
            self._failed += 1
        self._rest(FAILED if failed else IDLE)

    def count(self, failed: bool) -> None:
        """Count a call that has ended while others of its actor go on. The next record tells."""
        self._calls += 1
        if failed:
            self._failed += 1

    def turn(self, what: str) -> None:
        self._turn_since_ns = now = monotonic_ns()
        if not self.since_ns:
            self.since_ns = now
        self._turn = what
        self._queue = self._waiting()
        self._rest()

    def turned(self, failed: bool) -> None:
        self._turn = ""
        self.idle(failed)

    def ready(self) -> None:
        self._rest()

    def arrived(self, waiting: int) -> None:
        """Tell that something has come while user code runs: it waits. The inbox thread.

        `waiting` is the length of its queue. A long one is told in steps, and by each call that
        begins: of thousands in flight, each would pay for a number that nobody could read.
        """
        if waiting > STEP and waiting % STEP:
            return
        self._queue = queue = self._waiting()
        self._slot.write_queue(queue)

    def collective(self, what: str) -> Waited | None:
        """Say that the calling thread begins to wait for other ranks. None: it does so already."""
        before = self._hidden or parse(self._slot.raw())
        if before.state == COLLECTIVE:
            return None
        now = monotonic_ns()
        busy_ns = _busy_until(before, now)
        self._write(COLLECTIVE, now, what, busy_ns, self._calls, self._failed, self._queue)
        return Waited(self._news, before)

    def resume(self, waited: Waited | None) -> None:
        """End it: what was written before it holds again, unless there was news since."""
        if waited is None or waited.news != self._news:
            return
        state, since_ns, what, busy_ns, *_ = waited.before
        self._write(state, since_ns, what, busy_ns, self._calls, self._failed, self._queue)

    def pause(self, who: object, where: str) -> None:
        """Say that a debugger holds `who`, a thread or a task of this rank. Until the last one goes
        on, the record says *paused*, whatever the others do."""
        with self._pausing:
            if not self._pauses:
                self._hidden = before = parse(self._slot.raw())
                self._paused_ns = now = monotonic_ns()
                self._paused_busy_ns = _busy_until(before, now)
                self._write = self._write_paused
            self._pauses[who] = where
            self._tell_paused()

    def unpause(self, who: object) -> None:
        with self._pausing:
            if self._pauses.pop(who, None) is None:
                return
            if self._pauses:
                self._tell_paused()
                return
            self._pauses_over.append((self._paused_ns, monotonic_ns()))
            assert self._hidden is not None
            state, since_ns, what, busy_ns, *_ = self._hidden
            self._hidden, self._write = None, self._slot.write
            self._overlays += 1
            self._write(state, since_ns, what, busy_ns, self._calls, self._failed, self._queue)

    def paused_ago(self) -> list[tuple[float, float]]:
        """Return the last pauses, each as seconds ago from and to. Any thread."""
        with self._pausing:
            now = monotonic_ns()
            open_now = [(self._paused_ns, now)] if self._pauses else []
            spans = [*self._pauses_over, *open_now]
        return [((now - start) / 1e9, (now - end) / 1e9) for start, end in spans]

    @property
    def _news(self) -> int:
        return self._slot.beat - self._overlays

    def _tell_paused(self) -> None:
        self._overlays += 1
        where = next(reversed(self._pauses.values()))
        counts = self._calls, self._failed, self._queue
        self._slot.write(PAUSED, self._paused_ns, where, self._paused_busy_ns, *counts)

    def _write_paused(self, *record: Any) -> None:
        # In place of the slot's `write` while somebody is paused: others have news
        with self._pausing:
            if self._hidden is None:  # the last one has just gone on
                self._slot.write(*record)
                return
            self._hidden = Status._make((*record, self._slot.beat + 1))
            self._tell_paused()
            self._overlays -= 1  # this one was news

    def _rest(self, resting: int = IDLE) -> None:
        if self._queue:
            self._queue = self._waiting()
        if turn := self._turn:
            now = self._turn_since_ns
            busy_ns = self._busy_ns + now - (self.since_ns or now)
            self._write(BUSY, now, turn, busy_ns, self._calls, self._failed, self._queue)
            return
        now = monotonic_ns()
        since, self.since_ns = self.since_ns, 0
        if since:
            self._busy_ns += now - since
        self._write(resting, now, "", self._busy_ns, self._calls, self._failed, self._queue)

    def _waiting(self) -> int:
        depth = 0
        for size in self._queues:
            depth += size()
        return depth


def _busy_until(status: Status, now_ns: int) -> int:
    running_ns = now_ns - status.since_ns if status.state in (BUSY, COLLECTIVE) else 0
    return status.busy_ns + running_ns


def mapped(path: str) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(fd, 0)
    finally:
        os.close(fd)
