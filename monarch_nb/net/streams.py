"""Messages over a unix stream socket: how they are cut, and an outbox that writes them.

On one host a message goes from the sender's thread straight into the kernel and wakes the
receiver's inbox thread: one switch of threads each way, where a message queue with threads of its
own needs three. On the stream a message is its first frame behind its length (u32), then each
buffer that the header announces behind its length (u64).

Rules: a write never blocks; what the kernel does not take waits, in order, until the socket is
writable again. A peer that is not there yet is asked again until it is, or until it is known to be
dead (then the outbox is dropped).
"""

from __future__ import annotations

import contextlib
import mmap
import socket
import struct
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import Buffer
from monarch_nb.errors import RemoteProtocolError
from monarch_nb.net import wire
from monarch_nb.net.loop import Loop

_FRAME: Final = struct.Struct("<I")
_BUFFER: Final = struct.Struct("<Q")
_PREFIX: Final = _FRAME.size
_SHORT: Final = _PREFIX + frames.HEADER.size
MAX_FRAME_BYTES: Final = 1 << 26  # what is large travels as a buffer
MAPPED_BYTES: Final = 1 << 20
READ_BYTES: Final = 1 << 16


class StreamReader:
    """Cuts a stream into messages. Pure: give it what came, take what is whole."""

    __slots__ = ("_buffers", "_filled", "_frame", "_header", "_rest", "_target")

    def __init__(self) -> None:
        self._rest = b""
        self._header: tuple[int, ...] = ()  # of a message whose buffers are still to come
        self._frame = b""
        self._buffers: list[Buffer] = []
        self._target: memoryview | None = None
        self._filled = 0

    @property
    def target(self) -> memoryview | None:
        """The rest of a large buffer that is being filled: receive into it, then `fill`."""
        return None if self._target is None else self._target[self._filled :]

    def fill(self, count: int) -> list[frames.Message]:
        self._filled += count
        return self._finish_buffer() if self._target is not None else []

    def feed(self, data: bytes) -> list[frames.Message]:
        """Take bytes. Raises `RemoteProtocolError` for what is no message: the stream is lost."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        elif not self._header and (whole := _only_message(data)):
            return [whole]
        found: list[frames.Message] = []
        at, end = 0, len(data)
        while at < end:
            if self._header:
                at = self._take_buffer(data, at, found)
            else:
                at = self._take_frame(data, at, found)
            if at < 0:
                break
        return found

    def _take_frame(self, data: bytes, at: int, found: list[frames.Message]) -> int:
        # A message's first frame from `at`; where it ends, or -1 if the rest has not come
        if len(data) - at < _PREFIX:
            return self._keep(data, at)
        length: int = _FRAME.unpack_from(data, at)[0]
        if not frames.HEADER.size <= length <= MAX_FRAME_BYTES:
            raise RemoteProtocolError(f"a frame of {length} bytes")
        end = at + _PREFIX + length
        if end > len(data):
            return self._keep(data, at)
        header = frames.HEADER.unpack_from(data, at + _PREFIX)
        frame = data[at + _PREFIX : end]
        if header[0] == frames.BATCH:
            found.extend(frames.unpack_batch(header, frame))
        elif header[1] and not header[2] and header[1] != frames.RETURN:
            raise RemoteProtocolError(f"flags {header[1]} are about buffers, and there are none")
        elif header[2]:
            self._header, self._frame, self._buffers = header, frame, []
        else:
            found.append(frames.Message(header, memoryview(frame)[frames.HEADER.size :]))
        return end

    def _take_buffer(self, data: bytes, at: int, found: list[frames.Message]) -> int:
        # Length of a buffer and as much of it as came; where to go on, or -1
        if self._target is None:
            if len(data) - at < _BUFFER.size:
                return self._keep(data, at)
            (length,) = _BUFFER.unpack_from(data, at)
            self._target, self._filled = room_for(length), 0
            at += _BUFFER.size
        count = min(len(data) - at, len(self._target) - self._filled)
        self._target[self._filled : self._filled + count] = data[at : at + count]
        self._filled += count
        found.extend(self._finish_buffer())
        return at + count

    def _finish_buffer(self) -> list[frames.Message]:
        if self._target is None or self._filled < len(self._target):
            return []
        self._buffers.append(self._target)
        self._target = None
        if len(self._buffers) < self._header[2]:
            return []
        payload = memoryview(self._frame)[frames.HEADER.size :]
        message = frames.build(self._header, payload, self._buffers)
        self._header, self._frame, self._buffers = (), b"", []
        return [message]

    def _keep(self, data: bytes, at: int) -> int:
        self._rest = data[at:]
        return -1


def _only_message(data: bytes) -> frames.Message | None:
    # The message of one frame that these bytes are, which is the usual case, or None
    if len(data) < _SHORT or _FRAME.unpack_from(data)[0] + _PREFIX != len(data):
        return None
    header = frames.HEADER.unpack_from(data, _PREFIX)
    if header[0] == frames.BATCH or header[1] or header[2]:
        return None
    return frames.Message(header, memoryview(data)[_SHORT:])


def room_for(length: int) -> memoryview:
    """Make a buffer; a large one takes memory only as it fills, for the length is the peer's.

    Raises `RemoteProtocolError` where there is none.
    """
    if length < MAPPED_BYTES:
        return memoryview(bytearray(length))
    try:
        return memoryview(mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    except (OSError, OverflowError, ValueError) as error:
        raise RemoteProtocolError(f"no room for a buffer of {length} bytes") from error


def split(parts: Sequence[Buffer]) -> list[Buffer]:
    """Return the pieces of a message of several frames, as they go onto the stream."""
    first, *buffers = parts
    head = bytes(first)
    pieces: list[Buffer] = [_FRAME.pack(len(head)) + head]
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        pieces += [_BUFFER.pack(view.nbytes), view]
    return pieces


class Stream:
    """The writing end to one process. Guarded by the lock of its outbox, except for `reach`."""

    def __init__(self, run_dir: Path, process: int, loop: Loop) -> None:
        self._run_dir = run_dir
        self._process = process
        self._loop = loop
        self._lock = threading.Lock()
        self._waiting: deque[memoryview] = deque()
        self._socket: socket.socket | None = None
        self.closed = False
        wire.check_run_dir(run_dir)
        if not self.reach():
            loop.retry(self)

    def reach(self) -> bool:
        with self._lock:
            if self.closed or self._socket is not None:
                return True
            self._socket = wire.connect_stream(self._run_dir, self._process)
            if self._socket is None:
                return False
            self._push()
            return True

    def send(self, data: bytes) -> None:
        if not self._waiting and self._socket is not None:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # the peer is gone; whoever waits for it is told by its agent
            if sent == len(data):
                return
            data = data[sent:]
        self._queue([data])

    def send_pieces(self, pieces: Sequence[Buffer], *, is_constant: bool = False) -> None:
        """Write pieces that belong together; what has to wait is copied where it may change."""
        if not self._waiting and self._socket is not None:
            try:
                sent = self._socket.sendmsg(pieces)
            except BlockingIOError:
                sent = 0
            except OSError:
                return
            pieces = _after(pieces, sent)
        self._queue(pieces if is_constant else [bytes(piece) for piece in pieces])

    def close(self, linger_s: float) -> None:
        """Close; what waits is still written within `linger_s`."""
        with self._lock:
            self.closed = True
            found, self._socket = self._socket, None
            if found is None:
                return
            with contextlib.suppress(OSError):
                if self._waiting and linger_s > 0:
                    found.settimeout(linger_s)
                    for piece in self._waiting:
                        found.sendall(piece)
            if self._waiting:
                self._waiting.clear()
                self._loop.stop_writing(found.fileno())
            found.close()

    def sever(self) -> None:
        """Let go of the socket, which is the parent's: this process is a fork."""
        self.closed = True
        if self._socket is not None:
            self._socket.close()

    def _queue(self, pieces: Sequence[Buffer]) -> None:
        with self._lock:
            if self.closed or not pieces:
                return
            idle = not self._waiting
            self._waiting.extend(memoryview(piece).cast("B") for piece in pieces)
            if idle and self._socket is not None:
                self._loop.when_writable(self._socket.fileno(), self._on_writable)

    def _on_writable(self) -> None:
        # the loop's thread; the lock keeps a sender from queueing after the last write
        with self._lock:
            found = self._socket
            if found is not None and not self._push(registered=True):
                self._loop.stop_writing(found.fileno())

    def _push(self, *, registered: bool = False) -> bool:
        # Write what waits; True if some is left, which is then waited for
        found = self._socket
        while self._waiting and found is not None:
            piece = self._waiting[0]
            try:
                sent = found.send(piece)
            except BlockingIOError:
                if not registered:
                    self._loop.when_writable(found.fileno(), self._on_writable)
                return True
            except OSError:
                self._waiting.clear()  # the peer is gone; whoever waits is told by its agent
                return False
            if sent == len(piece):
                self._waiting.popleft()
            else:
                self._waiting[0] = piece[sent:]
        return False


def _after(pieces: Sequence[Buffer], sent: int) -> list[Buffer]:
    left: list[Buffer] = []
    for piece in pieces:
        view = memoryview(piece).cast("B")
        if sent >= view.nbytes:
            sent -= view.nbytes
        else:
            left.append(view[sent:])
            sent = 0
    return left
