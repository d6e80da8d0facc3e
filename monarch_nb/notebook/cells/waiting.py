"""The line below a cell that has been silent for a second: what it waits for.

Rules of the file: one line per cell, redrawn in place, empty when the cell ends (what is saved is
an output without content); nothing is asked of a rank for it, unless the board says that one waits
for others. Then a thread looks at the ranks, one at a time, and who asks gets the last word at
once. It is flushed as outputs are, by the flusher thread.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.core.errors.folding import rank_words
from monarch_nb.notebook import hangs
from monarch_nb.notebook.display.units import duration
from monarch_nb.notebook.output.cell_output import CellOutput
from monarch_nb.notebook.output.mime import Content, note_html, text_content

if TYPE_CHECKING:
    from monarch_nb.control.api import Control, Wait

AFTER_S: Final = 1.0
NEVER_S: Final = -1.0
MAX_WAITS: Final = 3
LOOK_S: Final = 2.0  # the longest time until the next look for ranks that hang
_GONE: Final[Content] = {"data": {}, "metadata": {}}

FIRST_S: Final = 2.0
"""So long a cell has waited when the first look is worth while."""


class WaitingLine:
    """Of one cell. `after_s` of silence bring it up; not above 0: never.

    `hang(waited_s)` tells of ranks that wait for one another, in place of what is waited for, and
    whatever the cell prints.
    """

    def __init__(
        self,
        output: CellOutput,
        waits: Callable[[], Sequence[Wait]],
        hang: Callable[[float], str] = lambda _: "",
        after_s: float = AFTER_S,
    ) -> None:
        self.after_s = after_s
        self._output = output
        self._waits = waits
        self._hang = hang
        self._told_hang = False
        self._redraw_s = 0.0
        self._started_s = time.monotonic()
        self._id = ""
        self._is_over = False
        self._lock = threading.Lock()

    def begin_after(self, seconds: float) -> None:
        self.after_s = seconds

    @property
    def first_s(self) -> float:
        """When to `flush` it first."""
        return self._started_s + self.after_s

    def flush(self) -> float | None:
        """Show what is waited for. Returns when to look again; None: no more."""
        with self._lock:
            if self._is_over or self.after_s <= 0:
                return None
            now = time.monotonic()
            waited_s = now - self._started_s
            waits = self._waits() if waited_s >= self.after_s else ()
            hang = self._hang(waited_s) if waits else ""
            due_s = max(self._output.sent_s, self._started_s) + self.after_s
            if not (hang or self._id) and now < due_s:
                return min(due_s, now + LOOK_S)
            if hang or self._told_hang or now >= self._redraw_s:
                self._told_hang = bool(hang)
                self._redraw_s = now + pause(waited_s)
                if text := hang or sentence(waits, waited_s):
                    self._draw(text)
            return now + min(pause(waited_s), LOOK_S)

    def end(self) -> None:
        with self._lock:
            self._is_over = True
            if self._id:
                self._output.redraw(_GONE, display_id=self._id)

    def _draw(self, text: str) -> None:
        content = text_content(text, note_html(text))
        if self._id:
            self._output.redraw(content, display_id=self._id)
        else:
            self._id = uuid.uuid4().hex
            self._output.show(content, display_id=self._id)


def sentence(waits: Sequence[Wait], waited_s: float) -> str:
    """Return `trainer.step: waiting for ranks 1,3 of 4, 12 s`; empty when nothing is waited for."""
    if not waits:
        return ""
    told = list(dict.fromkeys(map(_clause, waits)))
    more = f"; and {len(told) - MAX_WAITS} more" if len(told) > MAX_WAITS else ""
    return f"{'; '.join(told[:MAX_WAITS])}{more}, {duration(waited_s)}"


def _clause(wait: Wait) -> str:
    who = rank_words(wait.ranks)
    of = f" of {wait.size}" if len(wait.ranks) < wait.size else ""
    if wait.what == "start":
        return f"{wait.mesh}: waiting for {who}{of} to start"
    if wait.what == "cell":
        return f"{wait.mesh}: waiting for {who}{of}"
    return f"{wait.what}: waiting for {who}{of}"


def pause(waited_s: float) -> float:
    """Return seconds until the next look: one at first; a wait of hours costs little."""
    return 1.0 if waited_s < 60 else 5.0 if waited_s < 600 else 30.0


class HangWatch:
    """Watches the waiting cells of a session. Its thread calls `on_news()` when a line changes."""

    def __init__(
        self, shell: InteractiveShell, control: Control, on_news: Callable[[], object]
    ) -> None:
        self._shell = shell
        self._control = control
        self._on_news = on_news
        self._told = (0, "")  # of which cell
        self._looking = threading.Lock()

    def word(self, tag: int, waited_s: float) -> str:
        """Return what the last look at the ranks of this cell found; empty if they do not hang."""
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
            self._told = tag, hangs.telling_line(self._shell, found)
        except Exception:  # the client ends just now
            logging.getLogger("monarch_nb").debug("a look at hanging ranks failed", exc_info=True)
        finally:
            self._looking.release()
        if bool(self._told[1]) != bool(before[1]):
            self._on_news()
