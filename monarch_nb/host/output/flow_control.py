"""Sends what the ranks of a host wrote to the controller: whole, and no faster than it is taken.

Rule: so much is on its way at a time; the controller says what it has taken. While there is no room
a pipe that is full is not read, and who writes to it waits, as before a slow terminal. If nothing
is taken for `STUCK_S`, the controller is stopped or gone: nobody waits any longer, pipes are
read, and what does not fit is counted in a note. Pipes take turns, so that a flood delays the lines
of others by one round.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from monarch_nb.core.wire.board import ReadCount
from monarch_nb.host.agent.loop import Loop
from monarch_nb.host.output.pipes import PIECE_BYTES, Output, Piece, Pipe

FLUSH_S: Final = 0.05
WINDOW_BYTES: Final = 1 << 18  # what a kernel does with short lines of many ranks in 0.2 s
STUCK_S: Final = 5.0
_LEAST_BYTES: Final = 1 << 12  # of a turn, however many pipes there are


class Window:
    def __init__(self) -> None:
        self._on_its_way = 0
        self._heard_at = 0.0

    @property
    def room(self) -> int:
        return max(0, WINDOW_BYTES - self._on_its_way)

    def sent(self, size: int, now: float) -> None:
        if not self._on_its_way:
            self._heard_at = now  # the wait begins
        self._on_its_way += size

    def taken(self, size: int, now: float) -> None:
        self._on_its_way = max(0, self._on_its_way - size)
        self._heard_at = now

    def is_stuck(self, now: float) -> bool:
        return bool(self._on_its_way) and now > self._heard_at + STUCK_S


class FlowControl:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._window = Window()
        self._noisy: dict[Pipe, None] = {}  # that have something to send, in turn
        self._paused: dict[Pipe, Callable[[], None]] = {}  # full and not read; what reads them
        self._awaited: list[tuple[dict[Pipe, int], Callable[[], None]]] = []
        self._drops = False
        self._flushed_at = float("-inf")

    def add(self, output: Output, reads: ReadCount) -> None:
        for pipe in output.pipes:
            self._loop.add(pipe.fd, functools.partial(self._read, output, pipe, reads))

    def remove(self, output: Output) -> None:
        output.finish()
        for pipe in output.pipes:
            self._noisy.pop(pipe, None)
            self._close(pipe)

    def rest(self, output: Output, now: float) -> Iterator[Piece]:
        """All that a rank that has ended has left: it is little, and does not wait for room."""
        for piece in output.rest():
            self._window.sent(piece.bytes, now)
            yield piece

    def taken(self, size: int, now: float) -> None:
        self._window.taken(size, now)
        self._drops = False

    def when_forwarded(self, outputs: Iterable[Output], action: Callable[[], None]) -> None:
        """Call `action`, in `tell`, when all has gone on that these ranks have written by now."""
        pipes = [pipe for output in outputs for pipe in output.pipes if not pipe.closed]
        self._awaited.append(({pipe: pipe.written for pipe in pipes}, action))

    def tell(self) -> None:
        for wait in list(self._awaited):
            marks, action = wait
            if all(pipe.forwarded >= mark for pipe, mark in marks.items()):
                self._awaited.remove(wait)
                action()

    def due(self) -> float | None:
        if not self._noisy:
            return None
        is_awaited = bool(self._paused or self._awaited) and self._window.room >= self._share()
        return self._flushed_at if is_awaited else self._flushed_at + FLUSH_S

    def flush(self, now: float) -> list[Piece]:
        due = self.due()
        if due is None or now < due:
            return []
        self._flushed_at = now
        found = list(self._shares(now))
        self._drops = self._window.is_stuck(now)
        for pipe, callback in list(self._paused.items()):
            if self._drops or not pipe.is_full:
                del self._paused[pipe]
                self._loop.add(pipe.fd, callback)
        return found

    def _shares(self, now: float) -> Iterator[Piece]:
        share = self._share()
        for pipe in list(self._noisy):
            if min(pipe.size, share) > self._window.room:
                return
            del self._noisy[pipe]
            if piece := pipe.take(share):
                self._window.sent(piece.bytes, now)
                yield piece
            if pipe.size:
                self._noisy[pipe] = None

    def _share(self) -> int:
        return min(PIECE_BYTES, max(_LEAST_BYTES, WINDOW_BYTES // max(1, len(self._noisy))))

    def _read(self, output: Output, pipe: Pipe, reads: ReadCount) -> None:
        reads.add()
        output.read(pipe, drops=self._drops)
        self._noisy[pipe] = None
        if pipe.closed:
            self._close(pipe)
        elif pipe.is_full and not self._drops:
            self._loop.remove(pipe.fd)
            self._paused[pipe] = functools.partial(self._read, output, pipe, reads)

    def _close(self, pipe: Pipe) -> None:
        self._paused.pop(pipe, None)
        if pipe.fd >= 0:
            self._loop.remove(pipe.fd)
            os.close(pipe.fd)
            pipe.fd, pipe.closed = -1, True
