"""What one rank has written, in files that people can read: the log and an index of its cells.

Rules of the file: text is kept as it came, so that `tail -F` reads it. The index has a line
`OFFSET TAG` wherever text of another cell begins. A log that has grown to half its limit becomes
the older half and a new one begins, which says what was removed. Knows no threads, and keeps no
file open: there may be hundreds of ranks.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from re import Pattern
from typing import BinaryIO, Final

BLOCK: Final = 1 << 16
MAX_LINE: Final = 1 << 20  # bytes; a longer one is read as several

NO_CELL: Final = -1  # the tag of what the log itself says


class RankLog:
    """The log of one rank; `path` is the newer half."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self.path = path
        self._half_bytes = max(limit_bytes // 2, 1)
        self._size = path.stat().st_size if path.exists() else 0
        self._removed = 0
        self._tag: int | None = None
        self._ends_line = True

    def append(self, pieces: Iterable[tuple[int, bytes]]) -> None:
        """Add text of cells, in order. Raises `OSError`."""
        texts: list[bytes] = []
        starts: list[bytes] = []
        for tag, data in pieces:
            if self._size and self._size + len(data) > self._half_bytes:
                self._write(texts, starts)
                texts, starts = [], []
                self._turn_over()
            self._add(tag, data, texts, starts)
        self._write(texts, starts)

    def note(self, text: str) -> None:
        start = "" if self._ends_line else "\n"
        self.append([(NO_CELL, f"{start}{text}\n".encode())])

    def last(
        self,
        count: int,
        pattern: Pattern[str] | None = None,
        tags: Collection[int] | None = None,
    ) -> list[str]:
        """The last `count` lines, of those that match and that these cells have caused."""
        found = (line.decode("utf-8", "replace") for line in self._backwards(tags))
        lines = (line for line in found if pattern is None or pattern.search(line))
        return list(islice(lines, count))[::-1]

    # ------------------------------------------------------------------------------- writing

    def _add(self, tag: int, data: bytes, texts: list[bytes], starts: list[bytes]) -> None:
        if tag != self._tag:
            starts.append(b"%d %d\n" % (self._size, tag))
            self._tag = tag
        texts.append(data)
        self._size += len(data)
        self._ends_line = data.endswith(b"\n")

    def _write(self, texts: list[bytes], starts: list[bytes]) -> None:
        if starts:
            _append(index_of(self.path), b"".join(starts))
        if texts:
            _append(self.path, b"".join(texts))

    def _turn_over(self) -> None:
        older = older_half(self.path)
        if not self._ends_line:
            _append(self.path, b"\n")
        removed = older.stat().st_size if older.exists() else 0
        self._removed += removed
        with contextlib.suppress(FileNotFoundError):  # somebody has tidied up
            self.path.replace(older)
            index_of(self.path).replace(index_of(older))
        self._size, self._tag, self._ends_line = 0, None, True
        gone = f"; {self._removed} bytes before that were removed (MONARCH_NB_LOG_BYTES)"
        self.note(f"... what comes before is in {older.name}{gone if self._removed else ''} ...")

    # ------------------------------------------------------------------------------- reading

    def _backwards(self, tags: Collection[int] | None) -> Iterator[bytes]:
        for path in (self.path, older_half(self.path)):
            try:
                file = path.open("rb")
            except FileNotFoundError:
                continue
            with file, contextlib.suppress(FileNotFoundError):  # an index that is being moved
                end = file.seek(0, os.SEEK_END)
                for start, stop in _spans(path, end, tags):
                    yield from _lines_backwards(file, start, stop)


def older_half(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


def index_of(path: Path) -> Path:
    """Where it stands which cell a half's text is of."""
    return path.with_name(f"{path.name}.cells")


def _append(path: Path, data: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        while data:
            data = data[os.write(file, data) :]
    finally:
        os.close(file)


def _spans(path: Path, end: int, tags: Collection[int] | None) -> list[tuple[int, int]]:
    if tags is None:
        return [(0, end)]
    entries = [line.split() for line in index_of(path).read_bytes().splitlines()]
    starts = [(int(entry[0]), int(entry[1])) for entry in entries if len(entry) == 2]
    stops = [start for start, _ in starts[1:]] + [end]
    spans = [(a, b) for (a, tag), b in zip(starts, stops, strict=True) if tag in tags and a < b]
    return spans[::-1]


def _lines_backwards(file: BinaryIO, start: int, stop: int) -> Iterator[bytes]:
    # The lines between two places of a file, the last first, without their ends
    rest = b""
    is_last = True
    while stop > start:
        size = min(BLOCK, stop - start)
        stop -= size
        file.seek(stop)
        rest, *lines = (file.read(size) + rest).split(b"\n")
        if is_last and lines and not lines[-1]:
            lines.pop()  # what was written ends with a newline
        is_last = False
        yield from reversed(lines)
        if len(rest) > MAX_LINE:
            yield rest
            rest = b""
    if rest or not is_last:
        yield rest
