"""What an interrupt ends: a cell, but never inside a send, which would tear a message in two; an
`await` of a cell; a sleep in any thread.

The handler of SIGINT calls `InterruptGate.interrupt` on the main thread; everything else here runs
there too. In CPython a handler runs only at calls and jumps, so assigning `is_open` cannot be cut.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Final, SupportsIndex

SLICE_S: Final = 0.1
UNWIND_S: Final = 1.0  # for an interrupted coroutine to run its `finally` blocks
_sleep: Final = time.sleep


class InterruptGate:
    """Open while a cell runs; an interrupt during a shielded part is kept until its end, one that
    comes shortly before a cell until it begins.

    `interrupts` counts those that have been raised: some libraries swallow them.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._is_expecting = False
        self._shields = 0
        self._missed = False
        self.interrupts = 0

    def interrupt(self) -> bool:
        """Raise `KeyboardInterrupt` in the running cell; False when no cell runs."""
        if self.is_open and not self._shields:
            self.interrupts += 1
            raise KeyboardInterrupt
        self._missed = self.is_open or self._is_expecting
        return self._missed

    def expect(self) -> None:
        self._missed = False
        self._is_expecting = True

    def open(self) -> None:
        """Open it: a cell starts. Raises an interrupt that was kept for it."""
        self.is_open = True
        is_late, self._is_expecting = self._missed and self._is_expecting, False
        self._missed = False
        if is_late:
            self.interrupts += 1
            raise KeyboardInterrupt

    def close(self) -> None:
        self.is_open = self._is_expecting = False

    def restore(self, was_open: bool) -> None:
        """Be as before a callback, which may run inside a cell."""
        self.is_open = was_open

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Let no interrupt come up inside; one that came is raised at the end, if a cell still
        runs."""
        if threading.current_thread() is not threading.main_thread():
            yield  # signals are handled by the main thread alone
            return
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1
        if self._missed and not self._shields and self.is_open:
            self._missed = False
            self.interrupts += 1
            raise KeyboardInterrupt


def sleep(seconds: float | SupportsIndex, /) -> None:
    """Sleep as the function of the standard library does."""
    is_long = isinstance(seconds, float | int) and seconds > SLICE_S
    if not is_long or threading.current_thread() is threading.main_thread():
        _sleep(seconds)  # which also says what is wrong with an argument
        return
    deadline = time.monotonic() + float(seconds)
    while (left := deadline - time.monotonic()) > 0:
        _sleep(min(left, SLICE_S))


def replace_sleep() -> None:
    """Make `time.sleep` of this process one that an interrupt can end in every thread.

    A KeyboardInterrupt that is raised in another thread than the main one comes up at the next
    bytecode, hence after a sleep in C. So sleeps of such threads are cut into short ones.
    """
    time.sleep = sleep


class CellLoop:
    """The event loop of a rank's main thread, made when a cell first awaits at its top level.

    Tasks that a cell leaves behind go on when a later cell awaits. An interrupt is thrown into the
    coroutine where it waits: its `finally` blocks run, and the traceback shows that line.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[object, object, object]) -> None:
        """Run to the end; on an interrupt raise `KeyboardInterrupt` with the coroutine's frames."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        task = self._loop.create_task(coroutine)
        try:
            self._loop.run_until_complete(task)
        except KeyboardInterrupt as stop:
            if task.done():  # it came while the coroutine itself was running
                raise
            where = self._unwind(task)
            raise stop.with_traceback(where.__traceback__ if where else None) from None

    def soon(self, action: Callable[[], object]) -> None:
        """Do this on the main thread while a cell awaits, if one does. Any thread."""
        loop = self._loop
        if loop is not None and loop.is_running():
            loop.call_soon_threadsafe(action)

    def _unwind(self, task: asyncio.Task[object]) -> BaseException | None:
        assert self._loop is not None
        task.cancel()
        self._loop.run_until_complete(asyncio.wait({task}, timeout=UNWIND_S))
        try:
            return task.exception() if task.done() else None
        except asyncio.CancelledError as error:
            return error

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()
            self._loop = None
