"""The last errors of user code in this process, numbered: whoever asks is told each once.

They are kept as they were made for whoever waited: nothing is read from an exception twice, and no
frame of it is held.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from typing import Any, Final

KEPT: Final = 16


class RecentErrors:
    """Cells and calls that have failed here."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._last: deque[tuple[int, float, str, int, object]] = deque(maxlen=KEPT)

    def note(self, what: str, tag: int, record: object) -> int:
        """Something has failed: its number. `record` is that of the error, as JSON. Any thread."""
        number = next(self._numbers)
        self._last.append((number, time.monotonic(), what, tag, record))
        return number

    def since(self, number: int) -> list[dict[str, Any]]:
        """Those that came after this one, as JSON, oldest first; the last 16 at most."""
        now = time.monotonic()
        return [
            {"number": each, "age_s": now - at, "what": what, "tag": tag, "record": record}
            for each, at, what, tag, record in list(self._last)
            if each > number
        ]
