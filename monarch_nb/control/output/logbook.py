"""Everything that ranks write, kept whole: a folder with a log for each rank.

Rules of the file: `write` only puts text into a queue, for it is called by the inbox thread; one
thread of its own writes. What a disk is too slow for, or has no room for, is counted, and the log
says so where it is missing.
"""

from __future__ import annotations

import logging
import queue
import threading
import urllib.parse
from collections.abc import Collection
from pathlib import Path
from re import Pattern
from typing import Final

from monarch_nb.control.output.ranklog import RankLog

MAX_WAITING: Final = 256 << 20  # characters in the queue; what comes on top is counted only
MAX_NAME: Final = 100
FLUSH_S: Final = 2.0

Place = tuple[str, int]  # mesh, rank


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
        """Meshes whose ranks have written something and how many ranks each has; the one that
        wrote last stands last."""
        return dict(self._sizes)

    def last(
        self,
        mesh: str,
        rank: int,
        count: int,
        pattern: Pattern[str] | None = None,
        tags: Collection[int] | None = None,
    ) -> list[str]:
        """The last lines of a rank, of those that match and that the cells of these tags caused."""
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
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            name = urllib.parse.quote(mesh, safe="")[:MAX_NAME]
            self._logs[place] = RankLog(self.folder / f"{name}.{rank}.log", self._limit_bytes)
        return self._logs[place]
