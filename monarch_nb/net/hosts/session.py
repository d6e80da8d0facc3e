"""What makes a link between hosts outlive its connections: numbers, acknowledgements, sending anew.

Pure. Records with messages are numbered from 1. What was sent is kept until the other end says
that it has come; over a new connection what it has not is sent again, and what it has already is
dropped. So nothing is lost and nothing comes twice, however often the connection breaks.

Messages of one sender to one receiver, a *flow*, keep their order; flows take turns, a piece each,
so a long message holds up no other. What gateways take apart or have put together, casts of one
sender and folded answers to one receiver, keeps its order with all flows of that sender or
receiver: it goes into one flow of all, which those join while something of theirs is in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol

from monarch_nb.core.wire.frames import is_gateway
from monarch_nb.errors import RemoteProtocolError
from monarch_nb.net.hosts.pieces import Bytes, Part, Piece
from monarch_nb.net.hosts.records import BODY_BYTES

WINDOW_BYTES: Final = 16 << 20
"""Most that is on its way at once; the rest waits, and takes its memory once."""
ACK_BYTES: Final = 4 << 20
ACK_RECORDS: Final = 64
_ROOM_BYTES: Final = BODY_BYTES - 1024  # for pieces in one record, beside its own header
Flow = tuple[int, int]
"""Who sends, and to whom."""
Body = list[Bytes] | Part
"""The pieces in a record; or a part, which has one of its own behind it."""
_SHARED: Final[Flow] = (0, 0)
_Kept = tuple[int, int, "Body | SharedBody"]  # its number and how many bytes it takes of the window


class SharedBody(Protocol):
    """Makes the body of a record that went to several hosts at once, for one of them alone."""

    def pieces_for(self, host: int) -> Body: ...


class Outgoing:
    """Keeps what is to be sent to a host, and what was and may have to be sent again."""

    def __init__(self, host: int = 0) -> None:
        self._host = host
        self._flows: dict[Flow, deque[Piece]] = {}
        self._turns: deque[Flow] = deque()
        self._sharers: deque[int | Flow] = deque()  # of each piece in the shared flow, whose it is
        self._sharing: dict[int | Flow, int] = {}
        self._kept: deque[_Kept] = deque()  # not acknowledged
        self._kept_bytes = 0
        self._sent = 0  # how many of the kept have gone over this connection
        self._last = 0

    @property
    def is_empty(self) -> bool:
        """Tell whether the other end has all that was put here."""
        return not self._kept and not self._turns

    def put(self, flow: Flow, pieces: Iterable[Piece]) -> None:
        source, process = flow
        if is_gateway(process):
            self._share(source, pieces)
        elif is_gateway(source):
            self._share(process, pieces)
        elif self._sharing and not self._sharing.keys().isdisjoint((source, process, flow)):
            self._join(flow, pieces)
        else:
            self._line_up(flow, pieces)

    def _share(self, end: int, pieces: Iterable[Piece]) -> None:
        for each in [each for each in self._flows if end in each]:
            self._turns.remove(each)
            self._join(each, self._flows.pop(each))
        self._join(end, pieces)

    def _join(self, sharer: int | Flow, pieces: Iterable[Piece]) -> None:
        mine = list(pieces)
        self._sharers.extend([sharer] * len(mine))
        self._sharing[sharer] = self._sharing.get(sharer, 0) + len(mine)
        self._line_up(_SHARED, mine)

    def _line_up(self, flow: Flow, pieces: Iterable[Piece]) -> None:
        waiting = self._flows.get(flow)
        if waiting is None:
            self._flows[flow] = deque(pieces)
            self._turns.append(flow)
        else:
            waiting.extend(pieces)

    def at_once(self, piece: Piece) -> tuple[int, Body] | None:
        """Return the number and the body of a record with this piece alone, which is not put here
        then; None: something waits before it."""
        if self._turns or self._sent != len(self._kept) or self._kept_bytes > WINDOW_BYTES:
            return None
        body: Body
        if isinstance(piece, bytes):
            body = [piece]
        else:
            body = piece if isinstance(piece, Part) else list(piece)
        return self._keep(_bytes_in(body), body), body

    def next(self) -> tuple[int, Body] | None:
        """Return the number and the body of the next record; None: nothing, or too much on its
        way."""
        if self._sent < len(self._kept):
            self._sent += 1
            number, _, kept = self._kept[self._sent - 1]
            return number, self._alone(kept)
        if not self._turns or self._kept_bytes > WINDOW_BYTES:
            return None
        body = self._gather()
        return self._keep(_bytes_in(body), body), body

    def share(self, size: int, body: Body | SharedBody) -> int:
        """Return the number of a record of `size` bytes that goes another way, with those of
        others; 0: it would overtake what waits to be sent."""
        if self._turns or self._sent != len(self._kept):
            return 0
        return self._keep(size, body)

    def _keep(self, size: int, body: Body | SharedBody) -> int:
        self._last = number = self._last + 1
        self._kept.append((number, size, body))
        self._kept_bytes += size
        self._sent += 1
        return number

    def acknowledge(self, number: int) -> bool:
        """Forget what the other end has; tell whether something may have to be sent. Raises
        `RemoteProtocolError` for what was never sent."""
        if number > self._last:
            raise RemoteProtocolError(f"record {number} is acknowledged, {self._last} was the last")
        kept = self._kept
        while kept and kept[0][0] <= number:
            self._kept_bytes -= kept.popleft()[1]
            if self._sent:
                self._sent -= 1
        return bool(self._turns) or self._sent != len(kept)

    def begin_again(self, received: int) -> None:
        """Send all over a new connection that the other end has not."""
        self.acknowledge(received)
        self._sent = 0

    def drain(self, received: int) -> list[Body]:
        """Return the bodies of all that the other end has not, which go another way now."""
        self.acknowledge(received)
        bodies = [self._alone(body) for _, _, body in self._kept]
        while self._turns:
            bodies.append(self._gather())
        self._kept.clear()
        return bodies

    def _gather(self) -> Body:
        # pieces of flows in turn, as many as fit into a record; a part is alone
        found: list[Bytes] = []
        size = 0
        while self._turns:
            first = self._flows[self._turns[0]][0]
            if found and (isinstance(first, Part) or size + _size(first) > _ROOM_BYTES):
                break
            piece = self._take_turn()
            if isinstance(piece, Part):
                return piece
            if isinstance(piece, bytes):
                found.append(piece)
            else:
                found += piece
            size += _size(piece)
        return found

    def _take_turn(self) -> Piece:
        flow = self._turns.popleft()
        waiting = self._flows[flow]
        piece = waiting.popleft()
        if flow is _SHARED:
            self._has_left(self._sharers.popleft())
        if waiting:
            self._turns.append(flow)
        else:
            del self._flows[flow]
        return piece

    def _alone(self, body: Body | SharedBody) -> Body:
        return body if isinstance(body, list | Part) else body.pieces_for(self._host)

    def _has_left(self, sharer: int | Flow) -> None:
        self._sharing[sharer] -= 1
        if not self._sharing[sharer]:
            del self._sharing[sharer]


class Incoming:
    """Counts what has come, and what of it the other end does not know yet."""

    def __init__(self) -> None:
        self.received = 0
        self.is_awaited = False
        """The other end waits to be told, because it has lent what has come."""
        self._records = 0
        self._bytes = 0

    def is_new(self, number: int) -> bool:
        """Tell whether a record is. Raises `RemoteProtocolError` for a gap."""
        if number > self.received + 1:
            raise RemoteProtocolError(f"record {number} after record {self.received}")
        return number > self.received

    def take(self, number: int, size: int) -> bool:
        """Note a record; tell whether it is new. Raises `RemoteProtocolError` for a gap."""
        return self.is_new(number) and self.take_next(number, size)

    def take_next(self, number: int, size: int) -> bool:
        """Note a record, unless it is an old one, or one before it was lost on a way that is no
        more: then both come again."""
        if number != self.received + 1:
            return False
        self.received = number
        self._records += 1
        self._bytes += size
        return True

    def is_to_be_told(self, records: int = ACK_RECORDS) -> bool:
        """Tell whether so many have come that the other end is to be told."""
        return self.is_awaited or self._records >= records or self._bytes >= ACK_BYTES

    def told(self) -> None:
        self._records = self._bytes = 0
        self.is_awaited = False


def _bytes_in(body: Body) -> int:
    return len(body.data) if isinstance(body, Part) else sum(map(len, body))


def _size(piece: bytes | tuple[Bytes, ...]) -> int:
    return len(piece) if isinstance(piece, bytes) else sum(map(len, piece))
