"""Long messages between hosts are cut into pieces, which travel as messages of their own.

So messages of several senders may alternate on a link, and no piece takes long: each fits into one
record. The first says how long each frame of the message is; those that go on have what is in them,
in order.

    relay header (`tag`: which piece, `port`: to whom, `source`: from whom) | frames, or lengths
    u64, or a part
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import Buffer, Message
from monarch_nb.errors import RemoteProtocolError
from monarch_nb.net.hosts.records import BODY_BYTES
from monarch_nb.net.streams import room_for, split

WHOLE_BYTES: Final = 1 << 18
"""Up to so many bytes a message is one piece."""
PIECE_BYTES: Final = BODY_BYTES - 4096
WHOLE: Final = 0
BEGINS: Final = 1
GOES_ON: Final = 2
_LENGTH: Final = struct.Struct("<Q")
_FRAME: Final = struct.Struct("<I")


def cut(
    source: int, process: int, bodies: Sequence[Buffer], piece_bytes: int = PIECE_BYTES
) -> Iterator[bytes]:
    """Return what goes onto a link for a message to a process: itself, or its pieces."""
    views = [memoryview(body).cast("B") for body in bodies]
    if sum(len(view) for view in views) <= WHOLE_BYTES:
        yield encode(WHOLE, source, process, views)
        return
    lengths = b"".join(_LENGTH.pack(len(view)) for view in views)
    yield encode(BEGINS, source, process, [lengths])
    for view in views:
        for at in range(0, len(view), piece_bytes):
            yield encode(GOES_ON, source, process, [view[at : at + piece_bytes]])


def encode(piece: int, source: int, process: int, bodies: Sequence[Buffer]) -> bytes:
    """Return one piece as it goes onto a link."""
    first, *rest = bodies
    header = frames.HEADER.pack(frames.RELAY, 0, len(rest), 0, piece, process, source, 0)
    if rest:
        return b"".join(split([header + bytes(first), *rest]))
    body = memoryview(first)
    return b"".join((_FRAME.pack(len(header) + len(body)), header, body))


def in_parts(source: int, process: int, head: bytes, parts: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return a message of one frame as it goes onto a link; its parts are not copied."""
    header = frames.HEADER.pack(frames.RELAY, 0, 0, 0, WHOLE, process, source, 0)
    size = len(header) + len(head) + sum(map(len, parts))
    return (b"".join((_FRAME.pack(size), header, head)), *parts)


def read(data: memoryview) -> Iterator[Message]:
    """Iterate over the pieces in a record, which are views of it.

    Raises `RemoteProtocolError` where the next is none.
    """
    at = 0
    while at < len(data):
        frame, at = _part(data, at, _FRAME)
        if len(frame) < frames.HEADER.size:
            raise RemoteProtocolError(f"a piece of {len(frame)} bytes")
        header = frames.HEADER.unpack_from(frame)
        buffers: list[memoryview] = []
        for _ in range(header[2]):
            buffer, at = _part(data, at, _LENGTH)
            buffers.append(buffer)
        yield Message(header, frame[frames.HEADER.size :], buffers)


def _part(data: memoryview, at: int, length: struct.Struct) -> tuple[memoryview, int]:
    # what stands behind its length from there, and where it ends
    begin = at + length.size
    end = begin + length.unpack_from(data, at)[0] if begin <= len(data) else begin
    if end > len(data):
        raise RemoteProtocolError("a piece that is not whole")
    return data[begin:end], end


def again(piece: Message) -> bytes:
    """Return a piece that has come, to be sent on."""
    return encode(piece.tag, piece.source, piece.port, [piece.payload, *piece.buffers])


class Joiner:
    """Puts the pieces that come over links together again. Pure."""

    def __init__(self) -> None:
        self._begun: dict[tuple[int, int], _Long] = {}

    def take(self, piece: Message) -> Sequence[Buffer] | None:
        """Return the frames of a message that is whole now. Raises `RemoteProtocolError`."""
        if piece.tag == WHOLE:
            return [bytes(piece.payload), *(bytes(memoryview(each)) for each in piece.buffers)]
        flow = piece.source, piece.port
        long = self._begun.pop(flow, None)
        if piece.buffers or piece.tag not in (BEGINS, GOES_ON):
            raise RemoteProtocolError(f"frames that are no piece of a message: {piece}")
        if piece.tag == BEGINS:
            long = _Long(bytes(piece.payload))
        elif long is None:
            raise RemoteProtocolError("a piece of a message that has not begun")
        else:
            long.add(memoryview(piece.payload))
        if long.is_whole:
            return long.frames
        self._begun[flow] = long
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
