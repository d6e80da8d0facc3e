"""Messages between an agent and its zygote: JSON objects and open files over one socket pair.

    length u32 | JSON        a list: the object, and how many descriptors travel with it

Descriptors come no later than the last byte of their message, in order; so they queue up until
their object is whole.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from monarch_nb.host.launch import Record


_LENGTH: Final = struct.Struct("<I")
_CHUNK: Final = 1 << 16
_FDS_BYTES: Final = socket.CMSG_SPACE(253 * 4)  # SCM_MAX_FD; `socket.recv_fds` forgets its flags
_FLAGS: Final = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC


class Channel:
    """One end. `receive` takes what is there; `send` blocks, `post` does not."""

    def __init__(self, end: socket.socket) -> None:
        self.closed = False
        self._end = end
        self._received = bytearray()
        self._fds: deque[int] = deque()
        self._waiting = bytearray()

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, record: Record, fds: Sequence[int] = ()) -> None:
        """Send now, however long it takes. Raises `OSError` when the other end is gone."""
        data = _pack(record, len(fds))
        sent = socket.send_fds(self._end, [data], list(fds)) if fds else 0
        self._end.sendall(data[sent:])

    def post(self, record: Record) -> bool:
        """Queue, and send what goes without blocking. True when something is left to `flush`."""
        self._waiting += _pack(record)
        return self.flush()

    def flush(self) -> bool:
        """Send more of what was posted. True when something is still left."""
        try:
            while self._waiting and not self.closed:
                sent = self._end.send(self._waiting[:_CHUNK], socket.MSG_DONTWAIT)
                del self._waiting[:sent]
        except BlockingIOError:
            return True
        except OSError:  # the other end is gone; `receive` will say so
            self._waiting.clear()
        return False

    def receive(self) -> list[tuple[Record, list[int]]]:
        """Take the messages that are whole now, with their descriptors; set `closed` at the end."""
        self._read()
        messages = []
        while (message := self._next()) is not None:
            record, count = message
            taken = [self._fds.popleft() for _ in range(count)]
            messages.append((record, taken))
        return messages

    def close(self) -> None:
        """Close this end and what was received and never asked for."""
        self.closed = True
        self._end.close()
        while self._fds:
            os.close(self._fds.popleft())

    def _read(self) -> None:
        while True:
            try:
                data, ancillary, _, _ = self._end.recvmsg(_CHUNK, _FDS_BYTES, _FLAGS)
            except BlockingIOError:
                return
            except OSError:
                data, ancillary = b"", []
            if not data:
                self.closed = True
                return
            self._received += data
            for _level, _kind, fds in ancillary:  # SCM_RIGHTS is all that a socket pair carries
                self._fds.extend(memoryview(fds).cast("i"))

    def _next(self) -> tuple[Record, int] | None:
        if len(self._received) < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack_from(self._received)
        whole = _LENGTH.size + size
        if len(self._received) < whole:
            return None
        record, count = json.loads(self._received[_LENGTH.size : whole])
        del self._received[:whole]
        return record, count


def _pack(record: Record, fd_count: int = 0) -> bytes:
    data = json.dumps([record, fd_count]).encode()
    return _LENGTH.pack(len(data)) + data
