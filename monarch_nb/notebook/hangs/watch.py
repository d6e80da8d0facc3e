"""Whether a cell that waits is waiting for ranks that wait for one another.

Rule of the file: who asks gets the last word at once; looking is done by a thread that lives no
longer than that, one at a time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.notebook.hangs import reports

if TYPE_CHECKING:
    from monarch_nb.control.api import Control

FIRST_S: Final = 2.0
"""So long a cell has waited when the first look is worth while."""


class HangWatch:
    """Of a session. `on_news()` is called by the thread when there is another word."""

    def __init__(
        self, shell: InteractiveShell, control: Control, on_news: Callable[[], object]
    ) -> None:
        self._shell = shell
        self._control = control
        self._on_news = on_news
        self._told = (0, "")  # of which cell
        self._looking = threading.Lock()

    def word(self, tag: int, waited_s: float) -> str:
        """What the last look at the ranks of this cell has found; empty if they do not hang."""
        if waited_s >= FIRST_S and self._looking.acquire(blocking=False):
            try:
                name = "monarch-hang-watch"
                threading.Thread(target=self._look, args=(tag,), name=name, daemon=True).start()
            except BaseException:
                self._looking.release()
                raise
        of, text = self._told
        return text if of == tag else ""

    def _look(self, tag: int) -> None:
        before = self._told
        try:
            xray = self._control.xray()
            found = xray.hangs(tag) if xray is not None else {}
            self._told = tag, reports.telling_line(self._shell, found)
        except Exception:  # the client ends just now
            logging.getLogger("monarch_nb").debug("a look at hanging ranks failed", exc_info=True)
        finally:
            self._looking.release()
        if bool(self._told[1]) != bool(before[1]):
            self._on_news()
