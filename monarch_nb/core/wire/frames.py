"""One message: a header of fixed size and a payload in the first frame, buffers in frames of their
own.

The header is all that a process's inbox thread ever looks at; it holds integers only, so that
nothing of a user's is decoded there. This file knows nothing of sockets, pickles or ports' meaning.

    kind u8 | flags u8 | buffers u16 | rank u32 | tag u32 | port u64 | source u64 | reply u64
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, Protocol

from monarch_nb.errors import RemoteProtocolError

HEADER: Final = struct.Struct("<BBHIIQQQ")
MAX_BUFFERS: Final = 0xFFFF
_RANK_AT: Final = 4
_RANK_BYTES: Final = 4

# kinds
CALL: Final = 1  # to an actor's port: run an endpoint; reply 0 means nobody waits
REPLY: Final = 2  # to a reply port: a pickled value
ERROR: Final = 3  # to a reply port: a pickled error envelope
CONTROL: Final = 4  # to a process: JSON in the payload, user data only in the buffers
OUTPUT: Final = 5  # to an output port: JSON in the payload
RELAY: Final = 6  # to a gateway: what follows is for the process `port` on another host
BATCH: Final = 7  # several messages of one frame each: `rank` of them, their lengths, then they
CAST: Final = 8  # to a gateway: for whom the message in it is, see `core/casting.py`
FOLD: Final = 9  # from a gateway: equal answers of many processes, see `core/reply_folding.py`
TREE_CAST: Final = 10  # to a gateway: a cast for it and for hosts under it, see `core/cast_tree.py`
TREE_FOLD: Final = 11  # to a gateway: folded answers of a host and of hosts under it
TUNNEL: Final = 12  # to a gateway, through others: a record of the session between two of them
LAST_KIND: Final = TUNNEL

# flags
SHARED: Final = 1  # buffers[0] is a table that says which of the buffers lie in shared memory
DETACHED: Final = 2  # the payload travels as the last buffer, because it is large
RETURN: Final = 4  # who sent it stands behind the pickle; a notice is wanted if nobody gets it
LENT: Final = 8  # the pickle is the first buffer, which lies in shared memory, because it is large
RELAYED: Final = 16  # the gateway of this host has lent what is shared, not who sent it
KNOWN_FLAGS: Final = SHARED | DETACHED | RETURN | LENT | RELAYED

# ports below this are given by hand; above, a process counts them up; actor ports have the top bit
# set, and the one below where the message has to pass the actor's gate first
CONTROL_PORT: Final = 0
ROOT_PORT: Final = 1
OUTPUT_PORT: Final = 3  # of the controller: what ranks print and show
COMM_PORT: Final = 4  # of the controller: what widgets of ranks say
MAIL_PORT: Final = 5  # values from rank to rank, see services/transfer/mail.py
FOLD_PORT: Final = 6  # answers that gateways have folded
CONTROLLERS_PORT: Final = 1 << 63 | 2
FIRST_PORT: Final = 1 << 8
ACTOR_BIT: Final = 1 << 63
GATE_BIT: Final = 1 << 62

HOST_SHIFT: Final = 48
SERVICE_BIT: Final = 1 << 47  # set in the ids of agents and gateways, which run no user code
GATEWAY: Final = SERVICE_BIT | 1  # the id of a gateway, behind the number of its host


def is_gateway(process: int) -> bool:
    """Tell whether it is the gateway of a host."""
    return process & ((1 << HOST_SHIFT) - 1) == GATEWAY


class Buffer(Protocol):
    """Bytes, a memoryview, a `PickleBuffer`, a frame of ZeroMQ: what `memoryview()` takes."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


class QueueFrame(Protocol):
    """A frame as ZeroMQ gives it."""

    @property
    def bytes(self) -> bytes: ...
    @property
    def buffer(self) -> memoryview: ...


class Message:
    """A message as received: header fields, payload (bytes-like) and buffers."""

    __slots__ = ("buffers", "flags", "kind", "payload", "port", "rank", "reply", "source", "tag")

    def __init__(
        self, header: tuple[int, ...], payload: bytes | memoryview, buffers: Sequence[Buffer] = ()
    ) -> None:
        self.kind, self.flags, _, self.rank, self.tag, self.port, self.source, self.reply = header
        self.payload = payload
        self.buffers = buffers

    def let_go(self) -> None:
        """Hold the buffers no more, since they have been decoded."""
        self.buffers = ()

    def take_up(self, buffers: Sequence[Buffer]) -> None:
        """Hold these instead of what says where they are in shared memory."""
        self.buffers = buffers
        self.flags &= ~SHARED

    def pass_gate(self, payload: bytes | memoryview) -> None:
        """Be one to the actor itself, with what stood behind what the gate wanted to know."""
        self.port &= ~GATE_BIT
        self.payload = payload

    def __repr__(self) -> str:
        return (
            f"<Message kind={self.kind} port={self.port:x} from={self.source:x} "
            f"reply={self.reply:x} rank={self.rank} {len(self.payload)} bytes, "
            f"{len(self.buffers)} buffers>"
        )


def parse_header(frame: bytes) -> tuple[int, ...]:
    """Return the header's eight integers. Raises `RemoteProtocolError` for anything else."""
    if len(frame) < HEADER.size:
        raise RemoteProtocolError(f"a frame of {len(frame)} bytes is too short for a header")
    header = HEADER.unpack_from(frame)
    if not 1 <= header[0] <= LAST_KIND or header[1] & ~KNOWN_FLAGS:
        raise RemoteProtocolError(f"unknown kind {header[0]} or flags {header[1]}")
    return header


def pack_batch(messages: Sequence[bytes]) -> bytes:
    count = len(messages)
    header = HEADER.pack(BATCH, 0, 0, count, 0, 0, 0, 0)
    lengths = struct.pack(f"<{count}I", *map(len, messages))
    return b"".join((header, lengths, *messages))


def unpack_batch(header: tuple[int, ...], frame: bytes) -> list[Message]:
    """Return the messages of a batch, in order. Raises `RemoteProtocolError` if it is not whole."""
    count = header[3]
    at = HEADER.size + 4 * count
    if at > len(frame):
        raise RemoteProtocolError(f"a batch of {count} messages in {len(frame)} bytes")
    lengths = struct.unpack_from(f"<{count}I", frame, HEADER.size)
    if at + sum(lengths) != len(frame) or (count and min(lengths) < HEADER.size):
        raise RemoteProtocolError("the lengths of a batch do not fit")
    view = memoryview(frame)
    found = []
    for length in lengths:
        found.append(Message(HEADER.unpack_from(frame, at), view[at + HEADER.size : at + length]))
        at += length
    return found


def with_rank(frame: Buffer, rank: int) -> bytes:
    """Return the first frame of a message with another rank in its header."""
    view = memoryview(frame)
    rank_bytes = rank.to_bytes(_RANK_BYTES, "little")
    return b"".join((view[:_RANK_AT], rank_bytes, view[_RANK_AT + _RANK_BYTES :]))


def open_parts(parts: Sequence[QueueFrame]) -> list[Message]:
    """Return the message, or the messages of a batch, in frames as ZeroMQ gives them."""
    frame = parts[0].bytes
    header = parse_header(frame)
    if header[0] == BATCH:
        return unpack_batch(header, frame)
    return [_opened(header, frame, [part.buffer for part in parts[1:]])]


def open_frames(parts: Sequence[Buffer]) -> list[Message]:
    """Return the message, or the messages of a batch, in frames that were received by others.

    Raises `RemoteProtocolError`.
    """
    frame = bytes(memoryview(parts[0]))
    header = parse_header(frame)
    if header[0] == BATCH:
        return unpack_batch(header, frame)
    return [_opened(header, frame, parts[1:])]


def parse(frames: Sequence[bytes]) -> Message:
    """Return a whole message from its frames. Raises `RemoteProtocolError`."""
    if not frames:
        raise RemoteProtocolError("a message without frames")
    return _opened(parse_header(frames[0]), frames[0], frames[1:])


def _opened(header: tuple[int, ...], frame: bytes, buffers: Sequence[Buffer]) -> Message:
    if header[2] != len(buffers):
        raise RemoteProtocolError(f"{header[2]} buffers announced, {len(buffers)} came")
    return build(header, memoryview(frame)[HEADER.size :], buffers)


def build(
    header: tuple[int, ...], payload: bytes | memoryview, buffers: Sequence[Buffer]
) -> Message:
    """Put a message together; a detached payload is taken back from the buffers."""
    if header[1] & DETACHED:
        if not buffers:
            raise RemoteProtocolError("the payload was announced as a buffer but none came")
        *buffers, last = buffers
        payload = memoryview(last)
    if header[1] & (SHARED | LENT) and not buffers:
        raise RemoteProtocolError("shared memory was announced but no table of it came")
    return Message(header, payload, buffers)
