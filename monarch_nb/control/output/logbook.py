"""Everything that ranks write, kept whole: a readable log for each rank, in one folder.

Rules: `Logbook.write` only puts text into a queue, for it is called by the inbox thread; one
thread of its own writes. What a disk is too slow for, or has no room for, is counted, and the log
says so where it is missing. When text came is kept beside it (`log_times.py`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
import urllib.parse
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from re import Pattern
from typing import BinaryIO, Final, NamedTuple

from monarch_nb.control.output import log_times
from monarch_nb.control.output.log_times import TimedLine, Times, times_of
from monarch_nb.net.private import check_keeps, make_private

MAX_WAITING: Final = 256 << 20  # characters in the queue; what comes on top is counted only
MAX_NAME: Final = 100
FLUSH_S: Final = 2.0
BLOCK: Final = 1 << 16
MAX_LINE: Final = 1 << 20  # bytes; a longer one is read as several
NO_CELL: Final = -1  # the tag of what the log itself says

Place = tuple[str, int]  # mesh, rank
Piece = tuple[int, float, bytes]  # tag of the cell, `time.time()` at which it came, text
Cursor = tuple[int, int]  # inode of a half, offset


class RankLog:
    """The log of one rank; `path` is the newer half.

    Text is kept as it came, so that `tail -F` reads it. The index has a line `OFFSET TAG` wherever
    text of another cell begins; the times have a mark wherever text begins that came later. A log
    that has grown to half its limit becomes the older half, and a new one begins, which says what
    was removed. No file is kept open: ranks may be hundreds.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self.path = path
        self._half_bytes = max(limit_bytes // 2, 1)
        self._size = path.stat().st_size if path.exists() else 0
        self._removed = 0
        self._tag: int | None = None
        self._at_ms = 0
        self._ends_line = True
        log_times.cut(path, self._size)

    def append(self, pieces: Iterable[Piece]) -> None:
        """Add text of cells, in order. Raises `OSError`."""
        waiting = _Waiting([], [], [])
        for piece in pieces:
            if self._size and self._size + len(piece[-1]) > self._half_bytes:
                self._write(waiting)
                waiting = _Waiting([], [], [])
                self._turn_over()
            self._add(piece, waiting)
        self._write(waiting)

    def note(self, text: str) -> None:
        start = "" if self._ends_line else "\n"
        self.append([(NO_CELL, time.time(), f"{start}{text}\n".encode())])

    def last(
        self, count: int, pattern: Pattern[str] | None = None, tags: Collection[int] | None = None
    ) -> list[TimedLine]:
        """Return the last `count` lines, of those that match and that these cells have caused."""
        found = self._backwards(tags)
        lines = (line for line in found if pattern is None or pattern.search(line.text))
        return list(islice(lines, count))[::-1]

    def part(self, cursor: Cursor | None, size: int) -> tuple[list[TimedLine], Cursor | None]:
        """Return some lines, about `size` bytes of them, the oldest first, and where the next are;
        None: there are no more. `cursor`: None for the first.

        Whoever is so slow that a half is removed meanwhile goes on with what is there.
        """
        with contextlib.ExitStack() as stack:
            halves: dict[int, tuple[Path, BinaryIO]] = {}
            for half in (older_half(self.path), self.path):
                with contextlib.suppress(FileNotFoundError):
                    opened = stack.enter_context(half.open("rb"))
                    halves.setdefault(os.fstat(opened.fileno()).st_ino, (half, opened))
            if not halves:
                return [], None
            inodes = list(halves)
            inode, offset = cursor if cursor and cursor[0] in halves else (inodes[0], 0)
            path, file = halves[inode]
            lines, end = _lines_from(file, Times(path), offset, size)
            if end is not None:
                return lines, (inode, end)
            following = inodes[inodes.index(inode) + 1 :]
            return lines, (following[0], 0) if following else None

    # ------------------------------------------------------------------------------- writing

    def _add(self, piece: Piece, waiting: _Waiting) -> None:
        tag, at, data = piece
        if tag != self._tag:
            waiting.starts.append(b"%d %d\n" % (self._size, tag))
            self._tag = tag
        if (at_ms := round(at * 1000)) != self._at_ms:
            waiting.marks.append(log_times.mark(self._size, at_ms))
            self._at_ms = at_ms
        waiting.texts.append(data)
        self._size += len(data)
        self._ends_line = data.endswith(b"\n")

    def _write(self, waiting: _Waiting) -> None:
        if waiting.starts:
            _append(index_of(self.path), b"".join(waiting.starts))
        if waiting.marks:
            _append(times_of(self.path), b"".join(waiting.marks))
        if waiting.texts:
            _append(self.path, b"".join(waiting.texts))

    def _turn_over(self) -> None:
        older = older_half(self.path)
        if not self._ends_line:
            _append(self.path, b"\n")
        removed = older.stat().st_size if older.exists() else 0
        self._removed += removed
        for beside in (lambda path: path, index_of, times_of):
            with contextlib.suppress(FileNotFoundError):  # somebody has tidied up
                beside(self.path).replace(beside(older))
        self._size, self._tag, self._at_ms, self._ends_line = 0, None, 0, True
        gone = f"; {self._removed} bytes before that were removed (MONARCH_NB_LOG_BYTES)"
        self.note(f"... what comes before is in {older.name}{gone if self._removed else ''} ...")

    # ------------------------------------------------------------------------------- reading

    def _backwards(self, tags: Collection[int] | None) -> Iterator[TimedLine]:
        for path in (self.path, older_half(self.path)):
            try:
                file = path.open("rb")
            except FileNotFoundError:
                continue
            with file, contextlib.suppress(FileNotFoundError):  # an index that is being moved
                end = file.seek(0, os.SEEK_END)
                times = Times(path)
                for start, stop in _spans(path, end, tags):
                    for last, line in _lines_backwards(file, start, stop):
                        yield TimedLine(times.at(last), line.decode("utf-8", "replace"))


class _Waiting(NamedTuple):
    """What is about to be written: text, and what is kept beside it."""

    texts: list[bytes]
    starts: list[bytes]
    marks: list[bytes]


def older_half(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


def index_of(path: Path) -> Path:
    """Return where it stands which cell a half's text is of."""
    return path.with_name(f"{path.name}.cells")


def _append(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(path, flags, 0o600)
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


def _lines_backwards(file: BinaryIO, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    # The lines between two places of a file, the last first, without their ends; where those are
    rest = b""
    end = stop - 1
    is_last = True
    while stop > start:
        size = min(BLOCK, stop - start)
        stop -= size
        file.seek(stop)
        rest, *lines = (file.read(size) + rest).split(b"\n")
        if is_last:
            if lines and not lines[-1]:
                lines.pop()  # what was written ends with a newline
            else:
                end += 1
        is_last = False
        for line in reversed(lines):
            yield end, line
            end -= len(line) + 1
        if len(rest) > MAX_LINE:
            yield end, rest
            end -= len(rest)
            rest = b""
    if rest or not is_last:
        yield end, rest


def _lines_from(
    file: BinaryIO, times: Times, offset: int, size: int
) -> tuple[list[TimedLine], int | None]:
    # Lines from there on, and where the next begins; None at the end of the file
    file.seek(offset)
    data = file.read(size)
    is_all = len(data) < size
    if not is_all:
        data = data[: data.rfind(b"\n") + 1] or data
    found = []
    end = offset
    for line in data.removesuffix(b"\n").split(b"\n") if data else ():
        end += len(line) + 1
        found.append(TimedLine(times.at(end - 1), line.decode("utf-8", "replace")))
    return found, None if is_all else offset + len(data)


_Item = tuple[Place, int, str, float] | threading.Event | None


class Logbook:
    """The logs of all ranks of a client.

    Example:
        >>> book = Logbook(folder, 1 << 30)              # doctest: +SKIP
        >>> book.write("mesh0", 3, 4, tag=7, text="hello\\n", at=time.time())
        >>> [line.text for line in book.last("mesh0", 3, count=20)]
        ['hello']
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self._limit_bytes = limit_bytes
        self._logs: dict[Place, RankLog] = {}
        self._sizes: dict[str, int] = {}  # of meshes; the one that wrote last stands last
        self._queue: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._waiting = 0
        self._written = 0
        self._lost: dict[Place, int] = {}  # characters that are missing since the last text
        self._has_warned = False
        self._thread: threading.Thread | None = None

    # the inbox thread

    def write(self, mesh: str, rank: int, size: int, tag: int, text: str, at: float) -> None:
        """Keep what a rank of the mesh, which has `size` ranks, wrote, and when that came
        (`time.time()`). Never blocks."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="monarch-logbook", daemon=True)
            self._thread.start()
        place = mesh, rank
        if next(reversed(self._sizes), None) != mesh or self._sizes[mesh] != size:
            self._sizes.pop(mesh, None)
            self._sizes[mesh] = size
        if self._waiting - self._written > MAX_WAITING:
            self._logs.pop(place, None)  # how far it came is seen when it is opened again
            self._lost[place] = self._lost.get(place, 0) + len(text)
            return
        self._waiting += len(text)
        self._queue.put((place, tag, text, at))

    # readers

    def meshes(self) -> dict[str, int]:
        """Return meshes whose ranks have written, with their sizes; the last to write stands
        last."""
        return dict(self._sizes)

    def last(
        self,
        mesh: str,
        rank: int,
        count: int,
        pattern: Pattern[str] | None = None,
        tags: Collection[int] | None = None,
    ) -> list[TimedLine]:
        """Return the last lines of a rank that match and that the cells of these tags caused."""
        log = self._logs.get((mesh, rank))
        return log.last(count, pattern, tags) if log else []

    def part(
        self, mesh: str, rank: int, cursor: Cursor | None, size: int
    ) -> tuple[list[TimedLine], Cursor | None]:
        """Return some lines of a rank, from the oldest on; as `RankLog.part`."""
        log = self._logs.get((mesh, rank))
        return log.part(cursor, size) if log else ([], None)

    def flush(self) -> None:
        """Wait until all that has come is in the files; for two seconds at most."""
        if self._thread is not None:
            written = threading.Event()
            self._queue.put(written)
            written.wait(FLUSH_S)

    def close(self) -> None:
        """Write what is left, end the thread."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(FLUSH_S)

    # the thread

    def _run(self) -> None:
        goes_on = True
        while goes_on:
            goes_on = self._write_some(self._queue.get())

    def _write_some(self, first: _Item) -> bool:
        # Write what is in the queue, rank by rank; False at the end
        found: dict[Place, list[Piece]] = {}
        waiters: list[threading.Event] = []
        goes_on = True
        for item in [first, *(self._queue.get() for _ in range(self._queue.qsize()))]:
            if item is None:
                goes_on = False
            elif isinstance(item, threading.Event):
                waiters.append(item)
            else:
                place, tag, text, at = item
                data = text.encode("utf-8", "backslashreplace")
                found.setdefault(place, []).append((tag, at, data))
                self._written += len(text)
        for place, pieces in found.items():
            self._append(place, pieces)
        for waiter in waiters:
            waiter.set()
        return goes_on

    def _append(self, place: Place, pieces: list[Piece]) -> None:
        try:
            log = self._log(place)
            if lost := self._lost.pop(place, 0):
                log.note(f"... {lost} characters could not be written ...")
            log.append(pieces)
        except OSError as error:
            self._logs.pop(place, None)  # how far it came is seen when it is opened again
            self._lost[place] = self._lost.get(place, 0) + sum(len(data) for *_, data in pieces)
            if not self._has_warned:
                self._has_warned = True
                logging.getLogger("monarch_nb").warning("logs of ranks are not written: %s", error)

    def _log(self, place: Place) -> RankLog:
        if place not in self._logs:
            mesh, rank = place
            self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_keeps(self.folder.parent)
            make_private(self.folder)
            name = urllib.parse.quote(mesh, safe="")[:MAX_NAME]
            self._logs[place] = RankLog(self.folder / f"{name}.{rank}.log", self._limit_bytes)
        return self._logs[place]
