"""What each rank of a cell has said and shown, in a place of its own, redrawn while the cell runs.

Rules of the file: no I/O. Memory is bounded, and so is what is sent: while the cell runs, the last
of each rank is drawn, when that costs no more than a share of what has come, or once a second; in
the end each section is whole, up to a limit. What is left out is told in words, and how to see it.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import groupby, islice
from typing import Final, Generic, TypeVar

from monarch_nb.core.errors.folding import rank_label
from monarch_nb.core.text.lines import LineAssembler
from monarch_nb.core.text.units import count
from monarch_nb.notebook.layouts.layout import Item, Section, Shown, drawn
from monarch_nb.notebook.output.mime import Content, as_html, is_picture_or_page, plain_text

LIVE_LINES: Final = 100  # of all ranks together, while the cell runs
MIN_LINES: Final = 5  # of each, then
LIVE_SHOWN: Final = 2  # figures and tables of each, then
LIVE_S: Final = 1.0  # what is new is drawn after this time, whatever it costs,
LIVE_RATE: Final = 1_000_000  # unless it would be more characters a second
LIVE_SHARE: Final = 0.5  # of what has come; no more is spent on drawing it sooner
MAX_CHARS: Final = 400_000  # of the text of all sections in the end
MIN_CHARS: Final = 4_000  # of one section
MAX_SHOWN: Final = 16_000_000  # characters of the figures and tables of all sections
MIN_SHOWN: Final = 400_000  # of one section

T = TypeVar("T", str, Shown)


class Sections:
    """The sections of the cell with this `number`, on ranks of a mesh with `total` ranks."""

    def __init__(self, kind: str, ranks: Iterable[int], total: int, number: int) -> None:
        self._kind = kind
        self._number = number
        self._name = uuid.uuid4().hex
        ranks = list(ranks)
        many = max(len(ranks), 1)
        limits = max(MAX_CHARS // many, MIN_CHARS), max(MAX_SHOWN // many, MIN_SHOWN)
        self._live_lines = max(LIVE_LINES // many, MIN_LINES)
        self._spoken = {rank: _Spoken(rank_label([rank], total), *limits) for rank in ranks}
        self._come = 0  # characters of ranks
        self._spent = 0  # characters that were drawn
        self._size = 0  # of the last drawing
        self._drawn_at = float("-inf")
        self._new_since: float | None = None

    def add(self, rank: int, stream: str, text: str, now: float) -> bool:
        """Take text of a rank; False if it has no section."""
        spoken = self._spoken.get(rank)
        if spoken is None:
            return False
        spoken.add(stream, text)
        self._has_come(len(text), now)
        return True

    def show(self, rank: int, content: Content, now: float) -> bool:
        """Take what a rank shows; False if it has no section, or only its own place can draw it."""
        if text := plain_text(content):
            return self.add(rank, "stdout", text, now)
        spoken = self._spoken.get(rank)
        if spoken is None or not is_picture_or_page(content["data"]):
            return False
        shown = Shown(as_html(content), str(content["data"].get("text/plain", "")))
        spoken.show(shown)
        self._has_come(_size(shown), now)
        return True

    def clear(self, rank: int, now: float, *, wait: bool) -> bool:
        """Empty a section, now or when something comes; False if the rank has none."""
        spoken = self._spoken.get(rank)
        if spoken is None:
            return False
        spoken.clear(wait=wait)
        self._has_come(0, now)
        return True

    def conclude(self, rank: int, result: Content) -> bool:
        """Take the result of a rank, below all else; False as in `show`."""
        if rank in self._spoken:
            self._spoken[rank].end()
        return self.show(rank, result, 0.0)

    def _has_come(self, size: int, now: float) -> None:
        self._come += size
        self._new_since = self._new_since or now

    @property
    def deadline(self) -> float | None:
        """At once, if it is worth it."""
        if self._new_since is None:
            return None
        if self._spent + self._size <= self._come * LIVE_SHARE:
            return self._new_since
        return self._drawn_at + max(LIVE_S, self._size / LIVE_RATE)

    def draw(self, now: float) -> Content:
        """Return the last of each."""
        sections = [one.last(self._live_lines) for one in self._spoken.values()]
        last = [(one.label, one.text.rpartition("\n")[2]) for one in sections if one.items]
        plain = "\n".join(f"{label} {text[:80]}".strip() for label, text in last)
        content = drawn(self._kind, sections, self._name, plain)
        self._size = sum(map(len, content["data"].values()))
        self._spent += self._size
        self._drawn_at, self._new_since = now, None
        return content

    def final(self) -> Content | None:
        """Return all of each; None if there is nothing."""
        if not self._come:
            return None
        where = {rank: f"%mesh logs {rank} --cell {self._number}" for rank in self._spoken}
        sections = [one.whole(where[rank]) for rank, one in self._spoken.items()]
        return drawn(self._kind, sections, self._name)


class _Kept(Generic[T]):
    """The last things of one rank, up to so many characters, each with its place in the order."""

    def __init__(self, limit: int, least: int = 0) -> None:
        self._limit = limit
        self._least = least
        self._kept: deque[tuple[int, T]] = deque()
        self._chars = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, place: int, one: T) -> None:
        self._kept.append((place, one))
        self._chars += _size(one)
        while self._chars > self._limit and len(self._kept) > self._least:
            self._chars -= _size(self._kept.popleft()[1])
            self.dropped += 1

    def last(self, count: int | None) -> list[tuple[int, T]]:
        return list(islice(reversed(self._kept), count))[::-1]


class _Spoken:
    """What one rank printed and showed; if it is too much, the last of it."""

    def __init__(self, label: str, max_chars: int, max_shown: int) -> None:
        self._label = label
        self._limits = max_chars, max_shown
        self._clears_next = False
        self._empty()

    def _empty(self) -> None:
        max_chars, max_shown = self._limits
        self._assemblers: dict[str, LineAssembler] = {}
        self._lines = _Kept[str](max_chars, least=1)
        self._shown = _Kept[Shown](max_shown)
        self._place = 0
        self._clears_next = False

    def add(self, stream: str, text: str) -> None:
        self._make_room()
        for line in self._assemblers.setdefault(stream, LineAssembler()).feed(text):
            self._append(line)

    def show(self, shown: Shown) -> None:
        self._make_room()
        self.end()
        self._place += 1
        self._shown.add(self._place, shown)

    def clear(self, *, wait: bool) -> None:
        if wait:
            self._clears_next = True
        else:
            self._empty()

    def end(self) -> None:
        # Lines that have not ended, end
        for assembler in self._assemblers.values():
            if assembler:
                self._append(assembler.take())

    def last(self, lines: int) -> Section:
        hidden_lines = self._lines.dropped + max(len(self._lines) - lines, 0)
        hidden = self._shown.dropped + max(len(self._shown) - LIVE_SHOWN, 0)
        note = _note(hidden_lines, "", f"... {_figures(hidden)} before" if hidden else "")
        return Section(self._label, list(self._items(lines, LIVE_SHOWN)), note)

    def whole(self, where: str) -> Section:
        # `where` names the command that shows all lines
        self.end()
        note = _note(
            self._lines.dropped,
            f", all of them: {where}",
            f"... {_figures(hidden)} left out, too large beside the others: %%mesh without --layout"
            if (hidden := self._shown.dropped)
            else "",
        )
        return Section(self._label, list(self._items(None, None)), note)

    def _items(self, lines: int | None, shown: int | None) -> Iterator[Item]:
        pending = [(self._place + 1, one.pending) for one in self._assemblers.values() if one]
        texts: list[tuple[int, Item]] = [*self._lines.last(lines), *pending]
        in_order = merge(texts, self._shown.last(shown), key=lambda item: item[0])
        for kind, items in groupby((one for _, one in in_order), type):
            if kind is Shown:
                yield from items
            else:
                yield "\n".join(map(str, items))

    def _make_room(self) -> None:
        if self._clears_next:
            self._empty()

    def _append(self, line: str) -> None:
        self._place += 1
        self._lines.add(self._place, line)


def _note(hidden_lines: int, how: str, figures: str) -> str:
    # What is told above a section about what it has not
    lines = f"... {count(hidden_lines, 'line')} before{how}" if hidden_lines else ""
    return "\n".join(filter(None, [lines, figures]))


def _figures(number: int) -> str:
    return "1 figure or table" if number == 1 else f"{number} figures or tables"


def _size(one: Item) -> int:
    return len(one) + 1 if isinstance(one, str) else len(one.page) + len(one.text)
