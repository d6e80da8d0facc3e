"""The line below a cell that has been silent for a second: what it waits for.

Rules of the file: one line per cell, redrawn in place, gone when the cell shows something or ends;
between other output it stays, and says how long the cell waited. Nothing is asked of a rank for it,
unless the board says that one waits for others. Then a thread looks at the ranks, one at a time,
and who asks gets the last word at once. It is flushed as outputs are, by the flusher thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.core.errors.folding import rank_words
from monarch_nb.core.text.units import duration
from monarch_nb.notebook import hangs
from monarch_nb.notebook.hangs import Alarm
from monarch_nb.notebook.output.cell_output import CellOutput
from monarch_nb.notebook.output.mime import Content, note_html, text_content

if TYPE_CHECKING:
    from monarch_nb.control.api import Control, Wait

AFTER_S: Final = 1.0
NEVER_S: Final = -1.0
MAX_WAITS: Final = 3
MOVE_S: Final = 2.0  # so long an alarm stays where it is, at first
LOOK_S: Final = 2.0  # the longest time until the next look for ranks that hang

FIRST_S: Final = 2.0
"""So long a cell has waited when the first look is worth while."""


class WaitingLine:
    """Of one cell. `after_s` of silence bring it up; not above 0: never.

    `alarm(waited_s, said)` tells of ranks that wait for one another or do not answer, in place of
    what is waited for, which is `said`. It is shown whatever the cell prints, and below that.
    """

    def __init__(
        self,
        output: CellOutput,
        waits: Callable[[], Sequence[Wait]],
        alarm: Callable[[float, str], Alarm | None] = lambda _, __: None,
        after_s: float = AFTER_S,
    ) -> None:
        self.after_s = after_s
        self._output = output
        self._waits = waits
        self._alarm = alarm
        self._has_alarmed = False
        self._shown_s = 0.0
        self._keeps_s = MOVE_S
        self._redraw_s = 0.0
        self._started_s = time.monotonic()
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
            said = sentence(waits, waited_s)
            alarm = self._alarm(waited_s, said) if waits else None
            due_s = max(self._output.sent_s, self._started_s) + self.after_s
            if not (alarm or self._output.has_note) and now < due_s:
                return min(due_s, now + LOOK_S)
            if alarm or self._has_alarmed or now >= self._redraw_s:
                self._redraw_s = now + pause(waited_s)
                if alarm:
                    self._draw_in_sight(alarm.content(), now)
                elif said:
                    self._draw(text_content(said, note_html(said)))
                self._has_alarmed = alarm is not None
            return now + min(pause(waited_s), LOOK_S)

    def end(self) -> None:
        """Take it back for good."""
        with self._lock:
            self._is_over = True
            self._take_back()

    def rest(self) -> None:
        """Take it back until the cell waits again."""
        with self._lock:
            self._take_back()

    def _take_back(self) -> None:
        if self._output.has_note:
            waited = f"waited {duration(time.monotonic() - self._started_s)}"
            self._output.end_note(text_content(waited, note_html(waited)))

    def _draw_in_sight(self, content: Content, now: float) -> None:
        # Where ranks have printed since, it moves below that; ever more seldom: a line stays there
        is_above = self._output.has_note and self._output.sent_s > self._shown_s
        if is_above and (not self._has_alarmed or now >= self._shown_s + self._keeps_s):
            self._keeps_s *= 2
            self._take_back()
        self._draw(content)

    def _draw(self, content: Content) -> None:
        is_new = not self._output.has_note
        self._output.note(content)
        if is_new:
            self._shown_s = time.monotonic()


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
        self._told: tuple[int, Alarm | None] = (0, None)  # of which cell
        self._looking = threading.Lock()

    def alarm(self, tag: int, waited_s: float, said: str) -> Alarm | None:
        """Return what is wrong with the ranks of this cell, as the last look has found it; ranks
        that do not answer are known without one. `said` is what it waits for. None: nothing is.
        """
        if (hang := self._hang(tag, waited_s)) is not None:
            return hang
        xray = self._control.xray()
        silent = xray.silent(tag) if xray is not None else {}
        return hangs.no_answer(said, silent) if silent else None

    def _hang(self, tag: int, waited_s: float) -> Alarm | None:
        if waited_s >= FIRST_S and self._looking.acquire(blocking=False):
            try:
                name = "monarch-hang-watch"
                threading.Thread(target=self._look, args=(tag,), name=name, daemon=True).start()
            except BaseException:
                self._looking.release()
                raise
        of, found = self._told
        return found if of == tag else None

    def _look(self, tag: int) -> None:
        before = self._told
        try:
            xray = self._control.xray()
            found = xray.hangs(tag) if xray is not None else {}
            self._told = tag, hangs.hang(self._shell, found) if found else None
        except Exception:  # the client ends just now
            logging.getLogger("monarch_nb").debug("a look at hanging ranks failed", exc_info=True)
        finally:
            self._looking.release()
        if bool(self._told[1]) != bool(before[1]):
            self._on_news()
