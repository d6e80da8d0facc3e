"""Long messages between hosts are cut into pieces, each a message of its own on the link.

So no frame there is longer than `LONGEST_FRAME`: who has not said yet who they are can take no more
memory than that. It is also faster, as a piece is encrypted while the next is copied. The first
piece says how long each frame of the message is; those that go on have what is in them, in order.
On one link pieces of several senders may alternate.

    relay header (`tag`: which piece, `source`: who has cut) | frames, or lengths u64, or a part
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

import zmq

from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import Buffer
from monarch_nb.errors import RemoteProtocolError
from monarch_nb.net.streams import room_for
from monarch_nb.net.wire import LONGEST_FRAME

PIECE_BYTES: Final = LONGEST_FRAME >> 2
WHOLE: Final = 0
BEGINS: Final = 1
GOES_ON: Final = 2
_LENGTH: Final = struct.Struct("<Q")


def cut(process: int, bodies: Sequence[Buffer], source: int) -> Iterator[Sequence[Buffer]]:
    """Return what goes onto a link for a message to a process: itself, or its pieces."""

    def relay(piece: int) -> bytes:
        return frames.HEADER.pack(frames.RELAY, 0, 0, 0, piece, process, source, 0)

    views = [memoryview(body) for body in bodies]
    if all(len(view) <= PIECE_BYTES for view in views):
        yield [relay(WHOLE), *views]
        return
    yield [relay(BEGINS), b"".join(_LENGTH.pack(len(view)) for view in views)]
    for view in views:
        for at in range(0, len(view), PIECE_BYTES):
            yield [relay(GOES_ON), view[at : at + PIECE_BYTES]]


class Joiner:
    """Puts the pieces that come over links together again. Pure."""

    def __init__(self) -> None:
        self._begun: dict[int, _Long] = {}  # by who has cut it

    def take(self, parts: Sequence[zmq.Frame]) -> Sequence[zmq.Frame | Buffer] | None:
        """Return the frames of a message that is whole now. Raises `RemoteProtocolError`."""
        header = frames.parse_header(parts[0].bytes)
        piece, source = header[4], header[6]
        if piece == WHOLE:
            return parts[1:]
        long = self._begun.pop(source, None)
        if len(parts) != 2 or piece not in (BEGINS, GOES_ON):
            raise RemoteProtocolError(f"{len(parts) - 1} frames that are no piece of a message")
        if piece == BEGINS:
            long = _Long(parts[1].bytes)
        elif long is None:
            raise RemoteProtocolError("a piece of a message that has not begun")
        else:
            long.add(parts[1].buffer)
        if long.is_whole:
            return long.frames
        self._begun[source] = long
        return None

    def forget(self) -> None:
        """Give up what is not whole: the rest will not come."""
        self._begun.clear()


class _Long:
    def __init__(self, lengths: bytes) -> None:
        if not lengths or len(lengths) % _LENGTH.size:
            raise RemoteProtocolError("a long message without the lengths of its frames")
        self.frames = [room_for(length) for (length,) in _LENGTH.iter_unpack(lengths)]
        self._open = [frame for frame in reversed(self.frames) if len(frame)]
        self._at = 0

    @property
    def is_whole(self) -> bool:
        return not self._open

    def add(self, data: memoryview) -> None:
        frame = self._open[-1]
        end = self._at + len(data)
        if end > len(frame):
            raise RemoteProtocolError("a piece that is longer than what it belongs to")
        frame[self._at : end] = data
        self._at = end
        if end == len(frame):
            self._open.pop()
            self._at = 0
