"""Long messages between hosts are cut into pieces, which travel as messages of their own.

So messages of several senders may alternate on a link, and no piece takes long: each fits into one
record. The first says how long each frame of the message is; those that go on have what is in them,
in order. A long piece is a *part*: what is in it stays where it lies until it is encrypted, and
goes into a record of its own behind its header.

    relay header (`tag`: which piece, `port`: to whom, `source`: from whom) | frames, or lengths
    u64, or what is in a frame
    part: relay header (`reply`: how many bytes are in the next record)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import Buffer, Message
from monarch_nb.errors import RemoteProtocolError
from monarch_nb.net.hosts.records import BODY_BYTES
from monarch_nb.net.streams import split

WHOLE_BYTES: Final = 1 << 18
"""Up to so many bytes a message is one piece."""
PART_BYTES: Final = 1 << 16
"""From so many bytes on a piece is a part; it has at most `PIECE_BYTES`."""
PIECE_BYTES: Final = BODY_BYTES - 4096  # it may be carried, behind headers of others
WHOLE: Final = 0
BEGINS: Final = 1
GOES_ON: Final = 2
LENGTH: Final = struct.Struct("<Q")
_FRAME: Final = struct.Struct("<I")


Bytes = bytes | memoryview


class Part(NamedTuple):
    """A long piece: its header, and what is in it, which nobody changes."""

    header: bytes
    data: memoryview

    @staticmethod
    def of(source: int, process: int, data: memoryview) -> Part:
        header = (frames.RELAY, 0, 0, 0, GOES_ON, process, source, len(data))
        return Part(frames.HEADER.pack(*header), data)

    @property
    def in_a_record(self) -> tuple[Bytes, ...]:
        """Return it as a piece among others of a record."""
        size = _FRAME.pack(len(self.header) + len(self.data))
        return size + self.header, self.data


Piece = bytes | Part | tuple[Bytes, ...]
"""What goes onto a link in one go; a tuple has it in parts, which other pieces may share."""


def cut(source: int, process: int, bodies: Sequence[Buffer]) -> Sequence[bytes | Part]:
    """Return what goes onto a link for a message to a process: itself, or its pieces. Of long
    frames these are views, so that nobody may change them until they have arrived."""
    [first, *more] = bodies
    if isinstance(first, bytes) and len(first) <= WHOLE_BYTES and not more:
        return [encode(WHOLE, source, process, bodies)]
    return list(_pieces(source, process, bodies))


def _pieces(source: int, process: int, bodies: Sequence[Buffer]) -> Iterator[bytes | Part]:
    for piece in _cut(source, process, bodies, PIECE_BYTES):
        if isinstance(piece, memoryview) and len(piece) >= PART_BYTES:
            yield Part.of(source, process, piece)
        else:
            yield _encoded(source, process, piece)


def cut_to_share(
    source: int, process: int, bodies: Sequence[Buffer], piece_bytes: int
) -> Iterator[bytes]:
    """Return pieces, with at most so much of a frame in each, that may go onto many links."""
    for piece in _cut(source, process, bodies, piece_bytes):
        yield _encoded(source, process, piece)


def _cut(source: int, process: int, bodies: Sequence[Buffer], piece_bytes: int) -> Iterator[Bytes]:
    # a piece, or what is in one that goes on
    views = [memoryview(body).cast("B") for body in bodies]
    if sum(len(view) for view in views) <= WHOLE_BYTES:
        yield encode(WHOLE, source, process, views)
        return
    lengths = b"".join(LENGTH.pack(len(view)) for view in views)
    yield encode(BEGINS, source, process, [lengths])
    for view in views:
        for at in range(0, len(view), piece_bytes):
            yield view[at : at + piece_bytes]


def _encoded(source: int, process: int, piece: Bytes) -> bytes:
    return piece if isinstance(piece, bytes) else encode(GOES_ON, source, process, [piece])


def encode(piece: int, source: int, process: int, bodies: Sequence[Buffer]) -> bytes:
    """Return one piece as it goes onto a link."""
    first, *rest = bodies
    header = frames.HEADER.pack(frames.RELAY, 0, len(rest), 0, piece, process, source, 0)
    if rest:
        return b"".join(split([header + bytes(first), *rest]))
    body = memoryview(first)
    return b"".join((_FRAME.pack(len(header) + len(body)), header, body))


def in_parts(source: int, process: int, head: bytes, parts: Sequence[Bytes]) -> tuple[Bytes, ...]:
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
        frame, at = _field(data, at, _FRAME)
        if len(frame) < frames.HEADER.size:
            raise RemoteProtocolError(f"a piece of {len(frame)} bytes")
        header = frames.HEADER.unpack_from(frame)
        buffers: list[memoryview] = []
        for _ in range(header[2]):
            buffer, at = _field(data, at, LENGTH)
            buffers.append(buffer)
        yield Message(header, frame[frames.HEADER.size :], buffers)


def _field(data: memoryview, at: int, length: struct.Struct) -> tuple[memoryview, int]:
    # what stands behind its length from there, and where it ends
    begin = at + length.size
    end = begin + length.unpack_from(data, at)[0] if begin <= len(data) else begin
    if end > len(data):
        raise RemoteProtocolError("a piece that is not whole")
    return data[begin:end], end


def read_part(header: memoryview) -> Message:
    """Return the header of a part, which says how many bytes follow. Raises
    `RemoteProtocolError`."""
    if len(header) != frames.HEADER.size:
        raise RemoteProtocolError(f"a part with a header of {len(header)} bytes")
    part = Message(frames.HEADER.unpack(header), b"")
    if part.kind != frames.RELAY or part.tag != GOES_ON or not 0 < part.reply <= PIECE_BYTES:
        raise RemoteProtocolError(f"a part that is none: {part}")
    return part


def again(piece: Message) -> bytes:
    """Return a piece that has come, to be sent on."""
    return encode(piece.tag, piece.source, piece.port, [piece.payload, *piece.buffers])


def flows(piece: bytes | Part) -> Iterator[tuple[tuple[int, int], bytes | Part]]:
    """Iterate over what was to be sent, with who it is from and to, to be sent another way."""
    if isinstance(piece, Part):
        part = read_part(memoryview(piece.header))
        yield (part.source, part.port), piece
        return
    for each in read(memoryview(piece)):
        yield (each.source, each.port), again(each)
