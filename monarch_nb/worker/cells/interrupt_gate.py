"""When a cell may be interrupted: never inside a send, which would tear a message in two; and when
a sleep may be: always.

The handler of SIGINT calls `InterruptGate.interrupt` on the main thread; everything else here runs
there too. In CPython a handler runs only at calls and jumps, so assigning `is_open` cannot be cut.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, SupportsIndex

SLICE_S: Final = 0.1
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
        """A cell starts. Raises an interrupt that was kept for it."""
        self.is_open = True
        is_late, self._is_expecting = self._missed and self._is_expecting, False
        self._missed = False
        if is_late:
            self.interrupts += 1
            raise KeyboardInterrupt

    def close(self) -> None:
        self.is_open = self._is_expecting = False

    @contextmanager
    def shield(self) -> Iterator[None]:
        """No interrupt inside; one that came is raised at the end, if a cell still runs."""
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
