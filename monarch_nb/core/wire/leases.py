"""Where the buffers of a message lie in shared memory, as the message says it.

The first buffer of a message with the flag `SHARED` is a table: for each buffer in turn, whether it
is lent, and where. Those that are not follow as buffers of their own, and behind them what is in no
table: a detached payload, the user data of a control message. With the flag `RELAYED` the lender is
not the sender, which is on another host, but the gateway of the receiver's host.

Between hosts nothing is shared: the gateway of the sender takes the buffers up (`Shared`), that of
the receiver lends them again (`Lendable`), there with `RELAYED` alone where the kind does not say
that it may.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import DETACHED, HEADER, LENT, RELAYED, RETURN, SHARED, Buffer
from monarch_nb.errors import RemoteProtocolError

_PAGE: Final = mmap.PAGESIZE
_LAYOUT: Final = struct.Struct("<IIQQQI")
_ENTRY: Final = struct.Struct("<B")
HANDLE_BYTES: Final = _LAYOUT.size
_LENDABLE: Final = (frames.CALL, frames.REPLY)


class Handle(NamedTuple):
    """Where a lent buffer lies: bytes [offset, offset + size) of file `fd` of process `pid`.

    `segment` is the inode number of the file, so a recycled pid or fd is never taken for it. With a
    `turn` that is not 0 it may still be on its way there: the file ends with that number afterwards
    (`data/shared.py`).
    """

    pid: int
    fd: int
    segment: int
    offset: int
    size: int
    turn: int = 0

    def pack(self) -> bytes:
        return _LAYOUT.pack(*self)

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> Handle:
        """Return the handle of `pack`; RemoteProtocolError if these bytes cannot be one."""
        handle = cls(*_LAYOUT.unpack(data)) if len(data) == HANDLE_BYTES else None
        if not handle or not handle.pid or not handle.size or handle.offset % _PAGE:
            raise RemoteProtocolError(f"not a handle of shared memory: {handle or len(data)}")
        return handle


def write_table(placed: Sequence[Handle | None]) -> bytes:
    """Return the table of these buffers; None for one that is not lent."""
    blank = bytes(HANDLE_BYTES)
    return b"".join(
        _ENTRY.pack(handle is not None) + (blank if handle is None else handle.pack())
        for handle in placed
    )


def read_table(table: Buffer) -> list[Handle | None]:
    """Return what `write_table` was given. Raises `RemoteProtocolError` for anything else."""
    view, step = memoryview(table), _ENTRY.size + HANDLE_BYTES
    if len(view) % step:
        raise RemoteProtocolError(f"a table of leases of {len(view)} bytes")
    entries = [bytes(view[at : at + step]) for at in range(0, len(view), step)]
    return [Handle.unpack(each[1:]) if each[0] else None for each in entries]


class Shared(NamedTuple):
    """A message of which buffers lie in shared memory."""

    header: tuple[int, ...]
    payload: bytes
    placed: Sequence[Handle | None]
    inline: Sequence[Buffer]

    @staticmethod
    def of(bodies: Sequence[Buffer]) -> Shared | None:
        """Take a message apart; None for one that shares nothing. Raises `RemoteProtocolError`."""
        if len(bodies) == 1:
            return None
        frame = bytes(memoryview(bodies[0]))
        header = frames.parse_header(frame)
        if not header[1] & SHARED:
            return None
        return Shared(header, frame[HEADER.size :], read_table(bodies[1]), bodies[2:])

    @property
    def source(self) -> int:
        """Who has lent them."""
        return self.header[6]

    def taken_up(self, views: Sequence[memoryview]) -> list[Buffer]:
        """Return the message with what was lent, in the order of the handles, in its place."""
        lent, inline = iter(views), iter(self.inline)
        try:
            buffers = [next(inline) if each is None else next(lent) for each in self.placed]
        except StopIteration:
            raise RemoteProtocolError("a message without buffers that its table tells of") from None
        buffers += inline
        kind, flags, _, *rest = self.header
        header = HEADER.pack(kind, flags & ~SHARED | RELAYED, len(buffers), *rest)
        return [header + self.payload, *buffers]


class Lendable(NamedTuple):
    """A message from another host, of which the large buffers may be lent to its receivers."""

    header: tuple[int, ...]
    payload: bytes
    buffers: Sequence[memoryview]
    behind: Sequence[memoryview] = ()
    """Those that have to travel in the message."""

    @staticmethod
    def of(bodies: Sequence[Buffer]) -> Lendable | None:
        """Take a message apart; None for one that has to travel as it is."""
        header = frames.parse_header(bytes(memoryview(bodies[0])[: HEADER.size]))
        kind, flags, port = header[0], header[1], header[5]
        is_control = kind == frames.CONTROL and flags & RELAYED
        # what stands before or behind a pickle must not be lent with it
        is_bare = not flags & RETURN and not port & frames.GATE_BIT
        if flags & SHARED or not (is_control or kind in _LENDABLE):
            return None
        if flags & DETACHED and not is_bare:
            return None
        payload = bytes(memoryview(bodies[0])[HEADER.size :])
        buffers = [memoryview(each).cast("B") for each in bodies[1:]]
        if is_control:  # its user data is opened by itself
            return Lendable(header, payload, buffers[:-1], buffers[-1:])
        if flags & DETACHED:
            buffers.insert(0, buffers.pop())
            flags = flags & ~DETACHED | LENT
        return Lendable((kind, flags, *header[2:]), payload, buffers)

    def lent(self, placed: Sequence[Handle | None]) -> list[Buffer]:
        """Return the message with the buffers that lie in shared memory."""
        pairs = zip(self.buffers, placed, strict=True)
        inline = [each for each, handle in pairs if handle is None]
        inline += self.behind
        kind, flags, _, *rest = self.header
        header = HEADER.pack(kind, flags | SHARED | RELAYED, 1 + len(inline), *rest)
        return [header + self.payload, write_table(placed), *inline]
