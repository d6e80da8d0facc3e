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
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._slot = BoardSlot(mmap.mmap(fd, 0), index)
        finally:
            os.close(fd)
        self._beat = 0

    def busy(self, what: str) -> None:
        """User code begins."""
        self._beat += 1
        self._slot.write(BUSY, time.monotonic_ns(), what, self._beat, self._beat)

    def idle(self) -> None:
        """User code has ended."""
        self._slot.write(IDLE, time.monotonic_ns(), "", self._beat, self._beat)
