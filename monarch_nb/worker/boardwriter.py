"""A rank's hand on the status board: a few bytes of shared memory, written about once per call."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from typing import Any

from monarch_nb.core.board import BUSY, IDLE, BoardSlot


class BoardWriter:
    """Writes what the rank does. Costs about a microsecond; never waits for a reader."""

    def __init__(self, place: Sequence[Any]) -> None:
        path, index = place
        self._slot = BoardSlot(mapped(path), index)
        self._beat = 0
        self._turn = ""
        self._turn_since_ns = 0

    def busy(self, what: str) -> None:
        """User code begins."""
        self._beat += 1
        self._slot.write(BUSY, time.monotonic_ns(), what, self._beat, self._beat)

    def idle(self) -> None:
        """User code has ended; it may have run beside a turn of the main thread's, or within."""
        if self._turn:
            self._slot.write(BUSY, self._turn_since_ns, self._turn, self._beat, self._beat)
        else:
            self._slot.write(IDLE, time.monotonic_ns(), "", self._beat, self._beat)

    def turn(self, what: str) -> None:
        """The main thread begins a turn, a cell for instance; "": it has ended."""
        self._beat += bool(what)
        self._turn, self._turn_since_ns = what, time.monotonic_ns()
        self.idle()


def mapped(path: str) -> mmap.mmap:
    """The board that an agent of this host has made."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(fd, 0)
    finally:
        os.close(fd)
