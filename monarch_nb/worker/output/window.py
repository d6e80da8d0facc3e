"""How much of what a rank prints may be on its way to the controller.

Rule: who prints more waits, as before a slow terminal, while the controller goes on taking. If it
takes nothing for `STUCK_S` it is stopped or gone, and nobody waits any longer; what does not fit is
dropped and counted. Where there is no controller, everything may go: it is logged.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

WINDOW_CHARS: Final = 1 << 18  # what a kernel does with short lines of many ranks in 0.2 s
STUCK_S: Final = 5.0


class Window:
    """Counts what was sent, by one thread at a time, and what was taken, by the inbox thread.

    Example:
        >>> window = Window()
        >>> window.send(WINDOW_CHARS)
        >>> window.is_full
        True
        >>> window.take(1)
        >>> window.is_full
        False
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._sent = self._taken = 0
        self._moved_s = 0.0
        self._is_alone = False

    def send(self, chars: int) -> None:
        """Count what is sent."""
        if not self.is_full:
            self._moved_s = self._now()
        self._sent += chars

    def take(self, chars: int) -> None:
        """Count what the controller has taken."""
        self._taken += chars
        self._moved_s = self._now()

    def leave(self) -> None:
        """Let everything go: there is no controller."""
        self._is_alone = True

    def begin_anew(self) -> None:
        """Count for another controller, which has been sent nothing yet."""
        self._taken = self._sent
        self._is_alone = False

    @property
    def is_full(self) -> bool:
        return not self._is_alone and self._sent - self._taken >= WINDOW_CHARS

    @property
    def is_stuck(self) -> bool:
        """Tell whether it is full, and has been for so long that nobody should wait."""
        return self.is_full and self._now() - self._moved_s > STUCK_S
