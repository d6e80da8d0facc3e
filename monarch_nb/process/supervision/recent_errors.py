"""The last errors of user code in this process, numbered: whoever asks is told each once.

They are kept as they were made for whoever waited: nothing is read from an exception twice, and no
frame of it is held.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from typing import Any, Final

from monarch_nb.core.wire.messages.status import KeptError

KEPT: Final = 16


class RecentErrors:
    """Cells and calls that have failed here.

    Example:
        >>> errors = RecentErrors()
        >>> errors.note("trainer.step", 0, {"ename": "ValueError"})
        1
        >>> errors.since(0)[0].what
        'trainer.step'
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._last: deque[tuple[int, float, str, int, Any]] = deque(maxlen=KEPT)

    def note(self, what: str, tag: int, record: object) -> int:
        """Note an error, as JSON, and return its number. Any thread."""
        number = next(self._numbers)
        self._last.append((number, time.monotonic(), what, tag, record))
        return number

    def since(self, number: int) -> list[KeptError]:
        """Return those that came after this one, oldest first; the last 16 at most."""
        now = time.monotonic()
        return [
            KeptError(each, now - at, what, tag, record)
            for each, at, what, tag, record in list(self._last)
            if each > number
        ]
