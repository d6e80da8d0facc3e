"""What ranks write to descriptors 1 and 2, by C code or by their children, sent to the controller:
whole, and no faster than it is taken. The end is kept.

Rule: so much is on its way at a time; the controller says what it has taken. While there is no room
a pipe that is full is not read, and who writes to it waits, as before a slow terminal. If nothing
is taken for `STUCK_S`, the controller is stopped or gone: nobody waits any longer, pipes are read,
and what does not fit is counted in a note. Pipes take turns: a flood delays others by one round.
"""

from __future__ import annotations

import codecs
import fcntl
import functools
import os
import sys
import termios
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from monarch_nb.core.wire.board import ReadCount
from monarch_nb.host.agent.loop import Loop

PIECE_BYTES: Final = 1 << 16  # of a message at most, and of what a pipe holds before it is full
_CHUNK: Final = 1 << 16
_LAST_READ_BYTES: Final = 1 << 20
_TAIL_BYTES: Final = 1 << 13
_TAIL_LINES: Final = 60
_CRASH_LINES: Final = 400  # all threads are in it, the one that crashed perhaps last
_CRASH: Final = b"Fatal Python error: "
_CRASH_BYTES: Final = 1 << 15
_BEFORE_CRASH_BYTES: Final = 500
NAMES: Final = ("stdout", "stderr")
FLUSH_S: Final = 0.05
WINDOW_BYTES: Final = 1 << 18  # what a kernel does with short lines of many ranks in 0.2 s
STUCK_S: Final = 5.0
_LEAST_BYTES: Final = 1 << 12  # of a turn, however many pipes there are


class Piece(NamedTuple):
    """Text of one stream of one rank; `bytes` is what it was made of."""

    proc: int
    stream: str
    text: str
    bytes: int


class Pipe:
    def __init__(self, proc: int, stream: str, fd: int) -> None:
        self.fd = fd
        self.closed = False
        self._received = 0
        self._proc = proc
        self._stream = stream
        self._skipped = 0
        self._waiting = bytearray()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        os.set_blocking(fd, False)

    @property
    def size(self) -> int:
        return len(self._waiting)

    @property
    def forwarded(self) -> int:
        """How many bytes have gone on, ever."""
        return self._received - len(self._waiting)

    @property
    def written(self) -> int:
        """How many bytes were ever written to it, until now."""
        unread = bytearray(4)
        fcntl.ioctl(self.fd, termios.FIONREAD, unread)
        return self._received + int.from_bytes(unread, sys.byteorder)

    @property
    def is_full(self) -> bool:
        """Return True if something has to go on before more is read."""
        return len(self._waiting) >= PIECE_BYTES

    def read(self, *, drops: bool = False) -> bytes:
        """Read what is there, b"" if nothing is; `closed` is set when nothing will ever come.

        A chunk at most, all of which is kept. With `drops` only as much as fits; the rest is
        counted.
        """
        try:
            data = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return b""
        self.closed = not data
        self._received += len(data)
        kept = data[: max(0, PIECE_BYTES - len(self._waiting))] if drops else data
        if kept:
            self._waiting += self._note().encode() + kept
        self._skipped += len(data) - len(kept)
        return data

    def take(self, limit: int = PIECE_BYTES, *, final: bool = False) -> Piece | None:
        """Take the next of what waits, of a flood whole lines; the last of it if it is `final`."""
        if self.is_full or len(self._waiting) > limit:
            limit = self._waiting.rfind(b"\n", 0, limit) + 1 or limit
        data = bytes(self._waiting[:limit])
        del self._waiting[:limit]
        text = self._decoder.decode(data, final and not self._waiting)
        if not self._waiting:
            text += self._note()
        return Piece(self._proc, self._stream, text, len(data)) if text else None

    def _note(self) -> str:
        skipped, self._skipped = self._skipped, 0
        if not skipped:
            return ""
        return f"\n[monarch_nb: {skipped} bytes skipped: the notebook did not take them in time]\n"


class Output:
    """Both streams of one rank, and the end of what it wrote to either."""

    def __init__(self, proc: int, fds: tuple[int, int]) -> None:
        self.pipes = [Pipe(proc, name, fd) for name, fd in zip(NAMES, fds, strict=True)]
        self._tail = bytearray()
        self._crash: bytearray | None = None  # faulthandler's report: its begin tells, not its end

    def read(self, pipe: Pipe, *, drops: bool = False) -> int:
        """Read what one pipe has, at most a chunk. Returns how much it was."""
        data = pipe.read(drops=drops)
        if self._crash is not None and len(self._crash) < _CRASH_BYTES:
            self._crash += data
        self._tail += data
        at = self._tail.find(_CRASH)
        if at >= 0:
            before = self._tail.rfind(b"\n", 0, max(0, at - _BEFORE_CRASH_BYTES)) + 1
            self._crash = self._tail[before:]
            self._tail.clear()
        del self._tail[:-_TAIL_BYTES]
        return len(data)

    def rest(self) -> Iterator[Piece]:
        for pipe in self.pipes:
            while piece := pipe.take(final=True):
                yield piece

    def tail(self) -> str:
        """Return the last lines of both streams; after a crash of Python, where it was."""
        if self._crash is not None:
            lines = bytes(self._crash[:_CRASH_BYTES]).decode(errors="replace").splitlines()
            return "\n".join(lines[:_CRASH_LINES])
        lines = self._tail.decode(errors="replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:])

    def finish(self) -> None:
        """Read what a rank that has ended left in its pipes. A child of its own may still write."""
        for pipe in self.pipes:
            left = _LAST_READ_BYTES
            while left > 0 and not pipe.closed and (size := self.read(pipe)):
                left -= size


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
        """Return what a rank that has ended has left: it is little, and waits for no room."""
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
