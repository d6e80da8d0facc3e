"""When the text of a rank's log came, in a file beside it: the log itself stays what ranks wrote.

Rules of the file: a mark says at which offset text begins that came at another millisecond. A line
has the time at which its end came. Marks are written before their text, so whoever reads finds no
text that has none.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

_MARK: Final = struct.Struct("=QQ")  # offset, milliseconds since 1970


class TimedLine(NamedTuple):
    """A line of a log; `at` is the `time.time()` at which it came, None where that is not known."""

    at: float | None
    text: str


def clock_text(at: float | None, form: str = "%H:%M:%S") -> str:
    """Return `14:03:22.123`, a `time.time()` on this host's clock; `-` where it is not known."""
    if at is None:
        return "-"
    whole, thousandths = divmod(round(at * 1000), 1000)
    return f"{time.strftime(form, time.localtime(whole))}.{thousandths:03d}"


def times_of(path: Path) -> Path:
    """Return the file in which the times of a log are."""
    return path.with_name(f"{path.name}.times")


def mark(offset: int, at_ms: int) -> bytes:
    return _MARK.pack(offset, at_ms)


def cut(path: Path, size: int) -> None:
    """Drop marks of text that could not be written: the log has so many bytes."""
    marks = times_of(path)
    with contextlib.suppress(FileNotFoundError):
        offsets = Times(path).offsets
        known = bisect_right(offsets, size - 1)
        os.truncate(marks, known * _MARK.size)


class Times:
    """The times of one log, as they are in its file now."""

    def __init__(self, path: Path) -> None:
        try:
            data = times_of(path).read_bytes()
        except FileNotFoundError:
            data = b""
        numbers = array("Q", data[: len(data) // _MARK.size * _MARK.size])
        self.offsets: Sequence[int] = numbers[::2]
        self._at_ms: Sequence[int] = numbers[1::2]

    def at(self, offset: int) -> float | None:
        """Return when the byte there came."""
        place = bisect_right(self.offsets, offset) - 1
        return self._at_ms[place] / 1000 if place >= 0 else None
