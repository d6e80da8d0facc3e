"""What a rank writes to descriptors 1 and 2, by C code or by its children; the end is kept.

Knows bytes and text. When a pipe is read, and when what it holds goes on, is for `flow_control.py`.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import sys
import termios
from collections.abc import Iterator
from typing import Final, NamedTuple

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
        """Whether something has to go on before more is read."""
        return len(self._waiting) >= PIECE_BYTES

    def read(self, *, drops: bool = False) -> bytes:
        """What is there, b"" if nothing is; `closed` is set when nothing will ever come.

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
        """The next of what waits, of a flood whole lines; the last of it if it is `final`."""
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
        """The last lines of both streams, as they came; after a crash of Python, where it was."""
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
