"""From chunks of text to lines, and how many of them may be shown.

Knows nothing of ranks and labels. Memory is bounded whatever arrives, time is linear in the text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from monarch_nb.core.errors.records import clip

MAX_LINE: Final = 10_000  # characters of one line that are shown
BURST: Final = 512_000  # characters that may be shown at once, and then per second; Jupyter's
REFILL_PER_S: Final = 128_000  # server drops everything above 1 MB/s for three seconds
RESUME: Final = 0.25  # of the burst; else lines and notes would alternate
LINE_COST: Final = 80  # characters' worth of a line: a browser pays per line too
LAST_LINES: Final = 10  # of those hidden, shown in the end


class Text(NamedTuple):
    """An effect: show this on that stream ("stdout" or "stderr")."""

    stream: str
    text: str


class LineAssembler:
    """Chunks of a stream in, whole lines out; after a carriage return a line's last state wins."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._size = 0
        self._lost = 0
        self.is_progress = False

    def feed(self, text: str) -> list[str]:
        """Return the lines that `text` completes, without their newlines."""
        first, *rest = text.split("\n")
        self._add(first)
        if not rest:
            return []
        whole = rest[:-1]
        if "\r" in text or max(map(len, whole), default=0) > MAX_LINE:
            whole = [_settled(line) for line in whole]
        lines = [self.take(), *whole]
        self._add(rest[-1])
        return lines

    def take(self) -> str:
        """Return the line as it is, ended here."""
        text, lost = _settled("".join(self._parts)), self._lost
        self._parts, self._size, self._lost, self.is_progress = [], 0, 0, False
        return f"{text}... [{lost} more characters]" if lost else text

    @property
    def pending(self) -> str:
        """What an unfinished line looks like now."""
        return _settled("".join(self._parts))

    def __bool__(self) -> bool:
        return bool(self._parts)

    def _add(self, text: str) -> None:
        if "\r" in text:
            text = self._overwritten("".join([*self._parts, text]))
            self._parts, self._size, self._lost, self.is_progress = [], 0, 0, True
        elif text and self._parts and self._parts[-1].endswith("\r"):
            self._parts, self._size = [], 0
        kept = text[: max(MAX_LINE - self._size, 0)]
        self._lost += len(text) - len(kept)
        self._size += len(kept)
        if kept:
            self._parts.append(kept)

    @staticmethod
    def _overwritten(text: str) -> str:
        visible = text.rstrip("\r")
        return visible.rpartition("\r")[2] + ("\r" if visible != text else "")


def pieces(text: str) -> Iterator[str]:
    """Return the lines of `text` with their newlines, each no longer than may be shown."""
    *lines, rest = text.split("\n")
    yield from (f"{clip(line, MAX_LINE)}\n" for line in lines)
    if rest:
        yield clip(rest, MAX_LINE)


def _settled(line: str) -> str:
    return clip(line.rstrip("\r").rpartition("\r")[2], MAX_LINE)


class Throttle:
    """Lets text pass at the pace a notebook can take, counts what it hides, and says so."""

    def __init__(
        self, burst: float = BURST, refill_per_s: float = REFILL_PER_S, where: str = ""
    ) -> None:
        self._where = where  # what shows all of it
        self._burst = burst
        self._refill = refill_per_s
        self._left = burst
        self._at: float | None = None
        self._hidden = 0
        self._last: deque[Text] = deque(maxlen=LAST_LINES)
        self._open = False  # the last text shown did not end its line

    def show(self, stream: str, text: str, now: float) -> list[Text]:
        """Return what to show for a line or a piece of one: itself, with a note, or nothing."""
        self._earn(now)
        cost = len(text) + LINE_COST
        if self._left < cost or self._is_spent:
            self._hidden += 1
            self._last.append(Text(stream, text))
            return []
        self._left -= cost
        shown = [*self._note(stream, 0), Text(stream, text)]
        self._open = not text.endswith("\n")
        return shown

    def hides_all(self, now: float) -> bool:
        """Tell whether `show` would hide whatever comes at that time."""
        self._earn(now)
        return self._is_spent

    def hide(self, count: int) -> None:
        """Hide so many lines or pieces that nobody makes. What `close` shows comes after them."""
        self._hidden += count

    @property
    def _is_spent(self) -> bool:
        return self._hidden > 0 and self._left < self._burst * RESUME

    def close(self) -> list[Text]:
        """Return what to show in the end: how much was hidden, and the last of it."""
        if not self._hidden:
            return []
        last = list(self._last)
        return [*self._note(last[0].stream, len(last)), *last]

    def _earn(self, now: float) -> None:
        if self._at == now:
            return
        if self._at is not None:
            self._left = min(self._burst, self._left + (now - self._at) * self._refill)
        self._at = now

    def _note(self, stream: str, shown: int) -> list[Text]:
        hidden, self._hidden = self._hidden - shown, 0
        self._last.clear()
        if hidden <= 0:
            return []
        lines = "1 line" if hidden == 1 else f"{hidden} lines"
        ended = "\n" if self._open else ""
        rest = f"; all of it: {self._where}" if self._where else ""
        return [Text(stream, f"{ended}... {lines} hidden{rest} ...\n")]
