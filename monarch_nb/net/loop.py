"""Where a thread waits on everything that can come: descriptors with a callable each.

What cannot be done yet (a peer that does not listen yet, a process without a file to open) is tried
again: soon at first, then less often.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import os
import select
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from monarch_nb.net.threads import helper_thread

_RETRY_S: Final = 0.005  # a peer that is being forked listens within milliseconds
_LATE_RETRY_S: Final = 0.05  # one that did not within `_LATE_S` is being started
_LATE_S: Final = 1.0


class Attempt(Protocol):
    """What is tried until it succeeds."""

    def reach(self) -> bool:
        """Try it; tell whether there is nothing left to try."""


class Loop:
    """epoll. One thread calls `turn`; `wake`, `retry` and `when_writable` are for any.

    `on_wake` is called in that thread after `wake`. `fileno` is readable when `turn` has something
    to do, so that a loop can wait in another.
    """

    def __init__(self, on_wake: Callable[[], object] = lambda: None) -> None:
        self._epoll = select.epoll()
        self._on_wake = on_wake
        self._readers: dict[int, Callable[[], object]] = {}
        self._writers: dict[int, Callable[[], object]] = {}
        self._attempts: deque[Attempt] = deque()
        self._todo: deque[Callable[[], object]] = deque()
        self._period_s: float | None = None
        self._on_tick: Callable[[float], object] = lambda _: None
        self._tick_at = 0.0
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._is_closed = False
        self._tried_since = self._try_at = 0.0
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.when_readable(self._wakeup, self._woken)

    def fileno(self) -> int:
        return self._epoll.fileno()

    def when_readable(self, fd: int, action: Callable[[], object]) -> None:
        """Call `action` whenever the descriptor is readable."""
        self._readers[fd] = action
        self._epoll.register(fd, select.EPOLLIN)

    def stop_reading(self, fd: int) -> None:
        """Stop doing so; harmless where nobody does."""
        if self._readers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def when_writable(self, fd: int, action: Callable[[], object]) -> None:
        """Call `action` whenever the descriptor is writable."""
        self._writers[fd] = action
        self._epoll.register(fd, select.EPOLLOUT)

    def stop_writing(self, fd: int) -> None:
        """Stop doing so."""
        del self._writers[fd]
        self._epoll.unregister(fd)

    def soon(self, action: Callable[[], object]) -> None:
        """Call `action` once, in the loop's thread."""
        self._todo.append(action)
        self.wake()

    def call(self, action: Callable[[], object], limit_s: float = 5.0) -> None:
        """Do this in the loop's thread, which is another, and wait until it is done."""
        done = threading.Event()

        def do() -> None:
            try:
                action()
            finally:
                done.set()

        self.soon(do)
        done.wait(limit_s)

    def every(self, period_s: float, action: Callable[[float], object]) -> None:
        """Call `action(time.monotonic())` about so often from now on. There is one such action."""
        self._period_s, self._on_tick = period_s, action
        self.wake()

    def after(self, delay_s: float, action: Callable[[], object]) -> None:
        """Call `action` once, so much later. The loop's thread."""
        timer = time.monotonic() + delay_s, next(self._numbers), action
        heapq.heappush(self._timers, timer)

    def wake(self) -> None:
        if not self._is_closed:  # the number of the descriptor may be another file's by now
            os.eventfd_write(self._wakeup, 1)

    def retry(self, attempt: Attempt) -> None:
        """Call `attempt.reach` until it succeeds."""
        self._tried_since, self._try_at = time.monotonic(), 0.0
        self._attempts.append(attempt)
        self.wake()

    def pause_s(self) -> float | None:
        """Return after how long `turn` has something to do even if nothing comes; or None."""
        pauses_s = [] if self._period_s is None else [self._period_s]
        if self._timers:
            pauses_s.append(max(0.0, self._timers[0][0] - time.monotonic()))
        if self._attempts:
            late = time.monotonic() > self._tried_since + _LATE_S
            pauses_s.append(_LATE_RETRY_S if late else _RETRY_S)
        return min(pauses_s, default=None)

    def turn(self, timeout_s: float | None = None) -> None:
        """Wait for what comes, at most `timeout_s` if given, and do what is due."""
        readers, writers = self._readers, self._writers
        pause_s = timeout_s
        if timeout_s is None and (self._attempts or self._timers or self._period_s is not None):
            pause_s = self.pause_s()
        for fd, _ in self._epoll.poll(pause_s):
            try:
                action = readers.get(fd) or writers.get(fd)  # no descriptor is in both
                if action is not None:
                    action()
            # one bad message must not end the thread that all depend on
            except Exception:  # noqa: BLE001
                traceback.print_exc(file=sys.__stderr__)
        if self._period_s is not None and (now := time.monotonic()) >= self._tick_at:
            self._tick_at = now + self._period_s
            self._do(functools.partial(self._on_tick, now))
        if self._timers:
            self._ring()
        if self._attempts and time.monotonic() >= self._try_at:
            self._try_again()

    def close(self) -> None:
        """Close it: in a forked child too, which has nothing to wait for."""
        self._is_closed = True
        self._epoll.close()
        os.close(self._wakeup)

    def _do(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception:  # noqa: BLE001  as above
            traceback.print_exc(file=sys.__stderr__)

    def _ring(self) -> None:
        while self._timers and self._timers[0][0] <= time.monotonic():
            self._do(heapq.heappop(self._timers)[2])

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wakeup)
        while self._todo:
            self._do(self._todo.popleft())
        self._on_wake()

    def _try_again(self) -> None:
        for _ in range(len(self._attempts)):  # others append meanwhile
            attempt = self._attempts.popleft()
            if not attempt.reach():
                self._attempts.append(attempt)
        if (now := time.monotonic()) > self._tried_since + _LATE_S:
            self._try_at = now + _LATE_RETRY_S


class LoopThread:
    """A thread that does nothing else than what comes to its loop."""

    def __init__(self, name: str) -> None:
        self.loop = Loop()
        self._is_over = False
        self._thread = helper_thread(self._run, name)
        self._thread.start()

    def close(self) -> None:
        """End the thread, then the loop. Any thread but this one."""
        self.loop.soon(self._end)
        self._thread.join()
        self.loop.close()

    def _run(self) -> None:
        while not self._is_over:
            self.loop.turn()

    def _end(self) -> None:
        self._is_over = True
