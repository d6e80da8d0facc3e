"""What ranks write to descriptors 1 and 2: read always, sent on at a bounded rate, the end kept.

Rule: a rank never blocks on a pipe that we do not read, and no flood of one rank's reaches the
controller faster than it could be shown: what is over the limit is counted, and a note takes its
place.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from typing import Final, NamedTuple

FLUSH_S: Final = 0.05
_FLUSH_BYTES: Final = 1 << 16  # of one stream in one flush: 1.3 MB a second
_CHUNK: Final = 1 << 16
_LAST_READ_BYTES: Final = 1 << 20
_TAIL_BYTES: Final = 1 << 13
_TAIL_LINES: Final = 60
_CRASH: Final = b"Fatal Python error: "
_CRASH_BYTES: Final = 1 << 12
_BEFORE_CRASH_BYTES: Final = 500
NAMES: Final = ("stdout", "stderr")


class Piece(NamedTuple):
    """Text of one stream of one rank."""

    proc: int
    stream: str
    text: str


class Pipe:
    """The read end of one stream."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.closed = False
        self.skipped = 0
        self._waiting = bytearray()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        os.set_blocking(fd, False)

    def read(self, size: int = _CHUNK) -> bytes:
        """What is there, b"" if nothing is; `closed` is set when nothing will ever come."""
        try:
            data = os.read(self.fd, size)
        except BlockingIOError:
            return b""
        self.closed = not data
        room = max(0, _FLUSH_BYTES - len(self._waiting))
        self._waiting += data[:room]
        self.skipped += len(data) - min(room, len(data))
        return data

    def take(self, *, final: bool = False) -> str:
        """The text since the last call."""
        text = self._decoder.decode(bytes(self._waiting), final)
        self._waiting.clear()
        if self.skipped:
            text += f"\n[monarch_nb: {self.skipped} bytes skipped]\n"
            self.skipped = 0
        return text


class Output:
    """Both streams of one rank, and the end of what it wrote to either."""

    def __init__(self, proc: int, fds: tuple[int, int]) -> None:
        self.proc = proc
        self.pipes = [Pipe(fd) for fd in fds]
        self._tail = bytearray()
        self._crash: bytearray | None = None  # faulthandler's report: its begin tells, not its end

    def read(self, pipe: Pipe) -> int:
        """Read what one pipe has, at most a chunk. Returns how much it was."""
        data = pipe.read()
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

    def take(self, *, final: bool = False) -> Iterator[Piece]:
        """What is to be sent on."""
        for name, pipe in zip(NAMES, self.pipes, strict=True):
            if text := pipe.take(final=final):
                yield Piece(self.proc, name, text)

    def tail(self) -> str:
        """The last lines of both streams, as they came; after a crash of Python, where it was."""
        if self._crash is not None:
            lines = bytes(self._crash[:_CRASH_BYTES]).decode(errors="replace").splitlines()
            return "\n".join(lines[:_TAIL_LINES])
        lines = self._tail.decode(errors="replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:])

    def finish(self) -> None:
        """Read what a rank that has ended left in its pipes. A child of its own may still write."""
        for pipe in self.pipes:
            left = _LAST_READ_BYTES
            while left > 0 and not pipe.closed and (size := self.read(pipe)):
                left -= size
