"""Everything that ranks write, kept whole: a readable log for each rank, in one folder.

Rules: `Logbook.write` only puts text into a queue, for it is called by the inbox thread; one
thread of its own writes. What a disk is too slow for, or has no room for, is counted, and the log
says so where it is missing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import urllib.parse
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from re import Pattern
from typing import BinaryIO, Final

from monarch_nb.net.private import check_keeps, make_private

MAX_WAITING: Final = 256 << 20  # characters in the queue; what comes on top is counted only
MAX_NAME: Final = 100
FLUSH_S: Final = 2.0
BLOCK: Final = 1 << 16
MAX_LINE: Final = 1 << 20  # bytes; a longer one is read as several
NO_CELL: Final = -1  # the tag of what the log itself says

Place = tuple[str, int]  # mesh, rank


class RankLog:
    """The log of one rank; `path` is the newer half.

    Text is kept as it came, so that `tail -F` reads it. The index has a line `OFFSET TAG` wherever
    text of another cell begins. A log that has grown to half its limit becomes the older half, and
    a new one begins, which says what was removed. No file is kept open: ranks may be hundreds.
    """

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
        self, count: int, pattern: Pattern[str] | None = None, tags: Collection[int] | None = None
    ) -> list[str]:
        """Return the last `count` lines, of those that match and that these cells have caused."""
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


class Logbook:
    """The logs of all ranks of a client.

    Example:
        >>> book = Logbook(folder, 1 << 30)              # doctest: +SKIP
        >>> book.write("mesh0", 3, 4, tag=7, text="hello\\n")
        >>> book.last("mesh0", 3, count=20)
        ['hello']
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self._limit_bytes = limit_bytes
        self._logs: dict[Place, RankLog] = {}
        self._sizes: dict[str, int] = {}  # of meshes; the one that wrote last stands last
        self._queue: queue.SimpleQueue[tuple[Place, int, str] | threading.Event | None] = (
            queue.SimpleQueue()
        )
        self._waiting = 0
        self._written = 0
        self._lost: dict[Place, int] = {}  # characters that are missing since the last text
        self._has_warned = False
        self._thread: threading.Thread | None = None

    # the inbox thread

    def write(self, mesh: str, rank: int, size: int, tag: int, text: str) -> None:
        """Keep what a rank of the mesh, which has `size` ranks, wrote. Never blocks."""
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
        self._queue.put((place, tag, text))

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
    ) -> list[str]:
        """Return the last lines of a rank that match and that the cells of these tags caused."""
        log = self._logs.get((mesh, rank))
        return log.last(count, pattern, tags) if log else []

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

    def _write_some(self, first: tuple[Place, int, str] | threading.Event | None) -> bool:
        # Write what is in the queue, rank by rank; False at the end
        found: dict[Place, list[tuple[int, bytes]]] = {}
        waiters: list[threading.Event] = []
        goes_on = True
        for item in [first, *(self._queue.get() for _ in range(self._queue.qsize()))]:
            if item is None:
                goes_on = False
            elif isinstance(item, threading.Event):
                waiters.append(item)
            else:
                place, tag, text = item
                found.setdefault(place, []).append((tag, text.encode("utf-8", "backslashreplace")))
                self._written += len(text)
        for place, pieces in found.items():
            self._append(place, pieces)
        for waiter in waiters:
            waiter.set()
        return goes_on

    def _append(self, place: Place, pieces: list[tuple[int, bytes]]) -> None:
        try:
            log = self._log(place)
            if lost := self._lost.pop(place, 0):
                log.note(f"... {lost} characters could not be written ...")
            log.append(pieces)
        except OSError as error:
            self._logs.pop(place, None)  # how far it came is seen when it is opened again
            self._lost[place] = self._lost.get(place, 0) + sum(len(data) for _, data in pieces)
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
