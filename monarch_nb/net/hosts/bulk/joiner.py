"""Puts the pieces that come over links together again: each goes straight to its place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from monarch_nb.core.wire.frames import HOST_SHIFT, Buffer, Message
from monarch_nb.errors import RemoteProtocolError
from monarch_nb.net.hosts.pieces import BEGINS, GOES_ON, LENGTH, WHOLE
from monarch_nb.net.streams import room_for


class Room(Protocol):
    """Memory for one frame, which is filled from its begin to its end."""

    @property
    def whole(self) -> memoryview:
        """All of it, when it is filled."""

    def part(self, begin: int, end: int) -> memoryview:
        """Return the memory for these bytes. Raises `RemoteProtocolError` where there is none."""


class OwnRoom:
    """Memory of this process alone."""

    def __init__(self, size: int) -> None:
        self.whole = room_for(size)

    def part(self, begin: int, end: int) -> memoryview:
        return self.whole[begin:end]


def own_rooms(sizes: Sequence[int]) -> Sequence[Room]:
    """Make memory of so many bytes each. Raises `RemoteProtocolError` where there is none."""
    return [OwnRoom(size) for size in sizes]


class Joiner:
    """Joins pieces from all links of a gateway. `rooms` makes the memory for the frames of a long
    message."""

    def __init__(self, rooms: Callable[[Sequence[int]], Sequence[Room]] = own_rooms) -> None:
        self._rooms = rooms
        self._begun: dict[tuple[int, int], _Long] = {}

    def take(self, piece: Message) -> Sequence[Buffer] | None:
        """Return the frames of a message that is whole now. Raises `RemoteProtocolError`."""
        if piece.tag == WHOLE:
            return [bytes(piece.payload), *(bytes(memoryview(each)) for each in piece.buffers)]
        if piece.buffers or piece.tag not in (BEGINS, GOES_ON):
            raise self._nonsense(piece, "frames that are no piece of a message")
        if piece.tag == BEGINS:
            self._begun.pop((piece.source, piece.port), None)
            return self._after(piece, _Long(bytes(piece.payload), self._rooms))
        data = memoryview(piece.payload)
        self.room(piece, len(data))[:] = data
        return self.filled(piece, len(data))

    def room(self, piece: Message, size: int) -> memoryview:
        """Return where the next bytes of a message go. Raises `RemoteProtocolError`; the message
        is given up then."""
        long = self._begun.get((piece.source, piece.port))
        if long is None:
            raise RemoteProtocolError("a piece of a message that has not begun")
        try:
            return long.room(size)
        except RemoteProtocolError:
            raise self._nonsense(piece, "a piece that does not fit") from None

    def filled(self, piece: Message, size: int) -> Sequence[Buffer] | None:
        """Go on behind them; return the frames of the message if it is whole now. Raises
        `RemoteProtocolError`."""
        long = self._begun.pop((piece.source, piece.port), None)
        if long is None:
            raise RemoteProtocolError("a piece of a message that was given up")
        long.filled(size)
        return self._after(piece, long)

    def forget(self, host: int | None = None) -> None:
        """Give up what is not whole, of one host or of all: the rest will not come."""
        for source, process in list(self._begun):
            if host is None or source >> HOST_SHIFT == host:
                del self._begun[source, process]

    def forget_all_but(self, hosts: Collection[int]) -> None:
        """Give up what is not whole, unless it comes from one of these."""
        for source, process in list(self._begun):
            if source >> HOST_SHIFT not in hosts:
                del self._begun[source, process]

    def _after(self, piece: Message, long: _Long) -> Sequence[Buffer] | None:
        if long.is_whole:
            return long.frames
        self._begun[piece.source, piece.port] = long
        return None

    def _nonsense(self, piece: Message, what: str) -> RemoteProtocolError:
        self._begun.pop((piece.source, piece.port), None)
        return RemoteProtocolError(f"{what}: {piece}")


class _Long:
    def __init__(self, lengths: bytes, rooms: Callable[[Sequence[int]], Sequence[Room]]) -> None:
        if not lengths or len(lengths) % LENGTH.size:
            raise RemoteProtocolError("a long message without the lengths of its frames")
        self._sizes = [length for (length,) in LENGTH.iter_unpack(lengths)]
        self._rooms = rooms(self._sizes)
        self._open = [at for at in reversed(range(len(self._sizes))) if self._sizes[at]]
        self._at = 0

    @property
    def is_whole(self) -> bool:
        return not self._open

    @property
    def frames(self) -> Sequence[memoryview]:
        return [room.whole for room in self._rooms]

    def room(self, size: int) -> memoryview:
        number = self._open[-1]
        if self._at + size > self._sizes[number]:
            raise RemoteProtocolError("a piece that is longer than what it belongs to")
        return self._rooms[number].part(self._at, self._at + size)

    def filled(self, size: int) -> None:
        self._at += size
        if self._at == self._sizes[self._open[-1]]:
            self._open.pop()
            self._at = 0
