"""The last that ranks wrote, of all ranks in order of arrival, for whoever looks on.

Rules of the file: what a rank sends is kept in pieces of whole lines, and split when somebody
reads, since most of a flood nobody reads. 20 000 lines and 8 MB of text are kept; of what has
fallen out, it is known how much it was. The logbook has all of it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Iterator
from itertools import islice
from re import Pattern
from typing import Final, NamedTuple

from monarch_nb.core.text.levels import MAX_LINE, levels, plain_lines

MAX_LINES: Final = 20_000
MAX_CHARS: Final = 8 << 20
MAX_FALLEN: Final = 4_096  # pieces whose ranks are remembered
MAX_OPEN: Final = 4_096  # lines that have begun


class Line(NamedTuple):
    """A line of output. `seq` counts the lines of all ranks, from 1; `at` is the `time.time()` at
    which it came.
    """

    seq: int
    mesh: str
    rank: int
    stream: str
    level: str
    text: str
    at: float


class _Piece:
    """Lines of one stream of a rank that came together."""

    __slots__ = ("_lines", "at", "count", "first", "mesh", "number", "rank", "stream", "text")

    def __init__(
        self,
        first: int,
        count: int,
        place: tuple[str, int, int],
        stream: str,
        text: str,
        at: float | None,
    ) -> None:
        self.first = first
        self.count = count
        self.mesh, self.rank, self.number = place
        self.stream = stream
        self.text = text
        self.at = time.time() if at is None else at
        self._lines: list[Line] | None = None

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    def lines(self) -> list[Line]:
        if self._lines is None:
            texts = plain_lines(self.text)
            self._lines = [
                Line(self.first + index, self.mesh, self.rank, self.stream, level, text, self.at)
                for index, (level, text) in enumerate(zip(levels(texts), texts, strict=True))
            ]
        return self._lines


class Tail:
    """A bounded journal of output.

    Example:
        >>> tail = Tail()
        >>> tail.feed("mesh0", 3, "stdout", "one\\ntwo\\nthr")
        >>> [line.text for line in tail.last(10)]
        ['one', 'two']
    """

    def __init__(self) -> None:
        self._pieces: deque[_Piece] = deque()
        self._fallen: deque[tuple[int, int, str, int]] = deque(maxlen=MAX_FALLEN)
        """last seq, how many, mesh, rank"""
        self._open: dict[tuple[str, int, int, str], str] = {}  # lines that have not ended
        self._seq = 0
        self._lines = self._chars = 0
        self._lock = threading.Lock()

    @property
    def seq(self) -> int:
        return self._seq

    # the inbox thread

    def feed(
        self,
        mesh: str,
        rank: int,
        stream: str,
        text: str,
        number: int = 0,
        at: float | None = None,
    ) -> None:
        """Take what a rank wrote. `number` tells meshes of one name apart; `at` is the
        `time.time()` at which it came, None: now.
        """
        place = mesh, rank, number
        key = *place, stream
        end = text.rfind("\n") + 1
        begun = self._open.pop(key, "")
        if end < len(text):
            self._open[key] = _shortened(text[end:] if end else begun + text)
            if len(self._open) > MAX_OPEN:  # of ranks that are long gone
                self._open.pop(next(iter(self._open)))
        if end:
            self._add(place, stream, begun + text[:end], at)

    def end_lines(self, mesh: str, rank: int, number: int = 0) -> None:
        place = mesh, rank, number
        for key in [key for key in self._open if key[:3] == place]:
            self._add(place, key[3], self._open.pop(key) + "\n")

    def _add(
        self, place: tuple[str, int, int], stream: str, text: str, at: float | None = None
    ) -> None:
        count = text.count("\n")
        with self._lock:
            self._pieces.append(_Piece(self._seq + 1, count, place, stream, text, at))
            self._seq += count
            self._lines += count
            self._chars += len(text)
            while len(self._pieces) > 1 and self._is_too_much():
                self._drop(self._pieces.popleft())
            if self._chars > MAX_CHARS or count > MAX_LINES:
                self._cut(self._pieces[0])

    def _is_too_much(self) -> bool:
        oldest = self._pieces[0]
        return self._lines - oldest.count >= MAX_LINES or self._chars > MAX_CHARS

    def _drop(self, piece: _Piece) -> None:
        self._lines -= piece.count
        self._chars -= len(piece.text)
        self._forget(piece, piece.last, piece.count)

    def _cut(self, piece: _Piece) -> None:
        kept = piece.text
        if len(kept) > MAX_CHARS:
            kept = kept[-MAX_CHARS:].partition("\n")[2]
        if kept.count("\n") > MAX_LINES:
            kept = "\n".join(kept.rsplit("\n", MAX_LINES + 1)[1:])
        count = kept.count("\n")
        self._forget(piece, piece.last - count, piece.count - count)
        piece.first, piece.count, piece.text = piece.first + piece.count - count, count, kept
        self._lines, self._chars = count, len(kept)

    def _forget(self, piece: _Piece, last: int, count: int) -> None:
        self._fallen.append((last, count, piece.mesh, piece.rank))

    # readers, any thread

    def after(
        self,
        seq: int,
        mesh: str | None = None,
        ranks: Collection[int] | None = None,
        limit: int = 1_000,
    ) -> tuple[list[Line], int, int]:
        """Return the newest lines after that one, `limit` at most, and how many were left out.

        Third: the number to ask with the next time, of the newest line then, whosever it was. What
        has fallen out long ago is counted whatever ranks it was of.
        """
        pieces, skipped, newest = self._since(seq, mesh, ranks)
        total = sum(min(piece.count, piece.last - seq) for piece in pieces)
        found: list[Line] = []
        for piece in reversed(pieces):
            if len(found) >= limit:
                break
            found += [line for line in reversed(piece.lines()) if line.seq > seq]
        return found[:limit][::-1], skipped + total - min(len(found), limit), newest

    def last(
        self,
        count: int,
        mesh: str | None = None,
        ranks: Collection[int] | None = None,
        pattern: Pattern[str] | None = None,
        level: str = "",
        before: int | None = None,
        number: int | None = None,
    ) -> list[Line]:
        """Return the newest matching lines before the one numbered `before`, oldest first.

        Args:
            level: "warning" means errors too; "" everything.
            number: of the one mesh that is meant; None for all that had this name.
        """
        wanted = {"": ("", "warning", "error"), "warning": ("warning", "error")}.get(
            level, (level,)
        )
        found: list[Line] = []
        for line in self._backwards(mesh, ranks, number):
            if len(found) >= count:
                break
            if before is not None and line.seq >= before:
                continue
            if line.level in wanted and (pattern is None or pattern.search(line.text)):
                found.append(line)
        return found[::-1]

    def before(self, at: float, count: int, mesh: str, rank: int, number: int) -> tuple[str, ...]:
        """Return the text of the last lines of a rank that had come by then, oldest first."""
        lines = self._backwards(mesh, (rank,), number)
        known = (line.text for line in lines if line.at <= at)
        return tuple(islice(known, count))[::-1]

    def _backwards(
        self, mesh: str | None, ranks: Collection[int] | None, number: int | None
    ) -> Iterator[Line]:
        pieces, *_ = self._since(0, mesh, ranks)
        for piece in reversed(pieces):
            if number is None or piece.number == number:
                yield from reversed(piece.lines())

    def _since(
        self, seq: int, mesh: str | None, ranks: Collection[int] | None
    ) -> tuple[list[_Piece], int, int]:
        # What is kept of it, how many lines are not, and the number of the newest line of all
        with self._lock:
            pieces, fallen, newest = list(self._pieces), list(self._fallen), self._seq
        known = fallen[0][0] - fallen[0][1] if fallen else seq
        skipped = max(0, known - seq)
        for last, count, of_mesh, rank in fallen:
            if last > seq and _is_of(of_mesh, rank, mesh, ranks):
                skipped += min(count, last - seq)
        kept = [p for p in pieces if p.last > seq and _is_of(p.mesh, p.rank, mesh, ranks)]
        return kept, skipped, newest


def _is_of(mesh: str, rank: int, wanted: str | None, ranks: Collection[int] | None) -> bool:
    return (wanted is None or mesh == wanted) and (ranks is None or rank in ranks)


def _shortened(text: str) -> str:
    # Of a line without an end: what will be seen of it, however long it goes on
    if len(text) <= 2 * MAX_LINE:
        return text
    text = text[:-1].rpartition("\r")[2] + text[-1:]  # overwritten so far
    return text[: 2 * MAX_LINE]
