"""A link to another host: one session, over one connection after another.

Rules: any thread sends, under the lock; the thread of the loop reads. A link is *silent* when
nothing has come for `silent_s`, pulses included, and *lost* after `outage_s` without a connection
that says anything. A connection that the other end has closed, without a word that it leaves, is
that of a process that has died, unless there is a new one soon.

Instead of a connection it may have a *tunnel*: its records are carried by the links of hosts
between, which watch each other. Where the tunnel ends, the link is as one without a connection.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from monarch_nb.config import Config
from monarch_nb.core.points import armed, breaks
from monarch_nb.core.wire.frames import Message
from monarch_nb.core.wire.messages.hosts import Way
from monarch_nb.errors import ProtocolError, RemoteProtocolError
from monarch_nb.net.hosts.dialing import Connection, Failure, dial
from monarch_nb.net.hosts.handshake import Secret
from monarch_nb.net.hosts.pieces import Bytes, Part, Piece, flows, read, read_part
from monarch_nb.net.hosts.session import (
    ACK_RECORDS,
    Body,
    Flow,
    Incoming,
    Outgoing,
    SharedBody,
)
from monarch_nb.net.loop import Loop
from monarch_nb.net.threads import helper_thread

LEFT: Final = "it was ended"
"""Why a link is lost whose other end has said that it leaves."""
_HEADER: Final = struct.Struct("<BQQ")  # kind, number, the last that has come
_DATA: Final = 1
_PULSE: Final = 2
_LEAVES: Final = 3
_PART: Final = 4  # the header of a part; the next record is what is in it
_OPEN: Final = 5  # a tunnel: the last record that has come; number: which attempt
_OPENED: Final = 6
_CLOSED: Final = 7  # it is used no more
_MOVES: Final = 8  # to a tunnel, which was asked for: the connection is closed then
_ABANDONED_S: Final = 2.0  # closed and not there again: who was there has died
_LONGEST_WHY: Final = 4_000
_FIRST_S: Final = 10.0  # until who was let in connects
_REFUSED_S: Final = 1.0  # there is a host, and nobody on it who knows the session
_TRY_S: Final = 1.0
_GONE: Final = "its worker has ended, or knows this client no more"
_PAUSE_S: Final = 0.1
_TUNNEL_ACK_RECORDS: Final = 512  # a word of what has come costs more there


class Timing(NamedTuple):
    """`pulse_s` between two signs of life; `silent_s` and `outage_s` as above."""

    pulse_s: float
    silent_s: float
    outage_s: float

    @staticmethod
    def of(config: Config) -> Timing:
        return Timing(config.pulse_interval_s, config.pulse_timeout_s, config.outage_s)


class LinkEvents(Protocol):
    """Takes what a link tells, in the thread of the loop. A part is put where `room_for` says;
    `on_part` tells whether it was the last of its message."""

    def on_piece(self, piece: Message) -> None: ...
    def room_for(self, part: Message) -> memoryview: ...
    def on_part(self, part: Message, data: memoryview) -> bool: ...
    def on_silent(self, link: Link, silent_s: float) -> None: ...
    def on_heard(self, link: Link) -> None: ...
    def on_lost(self, link: Link, why: str, silent_s: float | None) -> None: ...
    def on_way(self, link: Link) -> None: ...


class Tunnel(NamedTuple):
    """The way through another host, `through`, which has a link to both ends."""

    through: int
    carry: Callable[[Sequence[Bytes]], None]


class _Part(NamedTuple):
    """A part that is to come. `room`: where it goes; None: nowhere, it has come before."""

    number: int
    header: Message
    room: memoryview | None


class Link:
    """The way to `host`. With `addresses` of it this end dials, as often as it takes; `first` is a
    connection that it has already."""

    def __init__(
        self,
        host: int,
        secret: Secret,
        loop: Loop,
        timing: Timing,
        events: LinkEvents,
        addresses: Sequence[str] = (),
        first: Connection | None = None,
    ) -> None:
        self.host = host
        self.secret = secret
        self.malformed = 0
        self._loop = loop
        self._timing = timing
        self._events = events
        self._addresses = addresses
        self._lock = threading.RLock()
        self._outgoing = Outgoing(host)
        self._incoming = Incoming()
        self._connection: Connection | None = None
        self._tunnel: Tunnel | None = None
        self._opening: Tunnel | None = None  # asked for, as attempt `_attempt`, at `_opening_at`
        self._opening_at = 0.0
        self._attempt = 0
        self._known_address: str | None = None  # the last at which the other end was reached
        self._writer: socket.socket | None = None  # the same socket: a loop reads or writes one
        self._rest: memoryview | None = None  # of a record that the socket did not take whole
        self._part: _Part | None = None  # whose header has come
        self._said_at = self._heard_at = time.monotonic()
        self._began_at = 0.0  # the connection, or the one before
        self._closed_at: float | None = None  # by the other end, without a word
        self._has_been_reached = False
        self._has_moved = False  # the other end, to a tunnel that may not be one yet
        self._is_silent = False
        self._is_over = False
        self._is_dialling = False
        if first is None:
            self._dial()
        else:
            self.take_up(first)

    @property
    def received(self) -> int:
        return self._incoming.received

    @property
    def through(self) -> int | None:
        """The host that carries its records; None: it has a connection, or no way."""
        tunnel = self._tunnel
        return None if tunnel is None else tunnel.through

    @property
    def peer(self) -> str:
        """The address of the other end, as `10.0.0.3:41234`; `""` without a connection. Any
        thread."""
        connection = self._connection
        if connection is None:
            return ""
        try:
            host, port, *_ = connection.socket.getpeername()
        except OSError:  # it was closed just now
            return ""
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def has_been_reached(self) -> bool:
        """Tell whether the other end has ever been connected."""
        return self._has_been_reached

    @property
    def is_connected(self) -> bool:
        """Tell whether it has a connection of its own, over which something was heard lately."""
        return self._connection is not None and not self._is_silent

    def send(self, flow: Flow, pieces: Sequence[Piece]) -> None:
        """Send pieces of a message to who is reached over this link. Any thread."""
        with self._lock:
            if self._is_over:
                return
            is_one = len(pieces) == 1 and self._can_write
            if is_one and (record := self._outgoing.at_once(pieces[0])) is not None:
                self._emit(_DATA, *record)
            else:
                self._outgoing.put(flow, pieces)
                self._push()

    def take_up(self, connection: Connection) -> None:
        """Go on over a new connection. The loop's thread."""
        is_refused = not self._addresses and breaks("link.connect", self.host)
        if self._is_over or is_refused:
            connection.socket.close()
            return
        with self._lock:
            self._outgoing.begin_again(connection.peer_received)
            self._drop_way()
            self._connection = connection
            self._known_address = connection.address
            self._writer = connection.socket.dup()
            self._began_at = time.monotonic()
            self._closed_at = None
            self._has_moved = False
            self._push()
        self._loop.when_readable(connection.socket.fileno(), self._on_readable)
        self._heard()
        self._events.on_way(self)

    # tunnels

    def share(self, through: int, size: int, body: Body | SharedBody) -> int:
        """Return the number of a record that `through` carries with those of others; 0: it has to
        go alone. `size`: the bytes of it that nobody else keeps.

        Nothing else leaves here until `shared`, which has to follow: so what is numbered by
        several links leaves in the order of their numbers. Nobody is waited for, as who sends here
        now may wait for another of these links.
        """
        if not self._lock.acquire(False):
            return 0
        tunnel = self._tunnel
        if tunnel is None or tunnel.through != through or self._is_over:
            return 0
        return self._outgoing.share(size, body)

    def shared(self) -> None:
        """Let others send here again. Harmless where nobody was kept from it."""
        try:  # noqa: SIM105  # thousands of times for a cast
            self._lock.release()
        except RuntimeError:
            pass

    def take_shared(self, number: int, size: int, has_come: int = 0) -> bool:
        """Note a record that came with those of others; tell whether it is new. `has_come`: the
        last one that the other end has got. The loop's thread. Raises `RemoteProtocolError`."""
        if has_come:
            with self._lock:
                if self._outgoing.acknowledge(has_come):
                    self._push()
        if not self._incoming.take_next(number, size):
            self._come_again(number)
            return False
        if self._incoming.is_to_be_told(_TUNNEL_ACK_RECORDS):
            self._tell_what_has_come()
        return True

    def _take_carried(self, number: int, size: int) -> bool:
        is_new = self._incoming.take_next(number, size)
        if not is_new:
            self._come_again(number)
        return is_new

    def _come_again(self, number: int) -> None:
        # a record before this one was lost, unless this is an old one; then both come again
        tunnel = self._tunnel
        if number <= self._incoming.received or tunnel is None or self._opening is not None:
            return  # or that is under way
        if self._attempt:
            self.open(tunnel)
        else:  # the other end opens tunnels
            tunnel.carry([_HEADER.pack(_CLOSED, 0, self._incoming.received)])
            self.lose_tunnel(Way.LOST)

    def open(self, tunnel: Tunnel) -> None:
        """Ask the other end to go on through a tunnel. The loop's thread."""
        if self._is_over:
            return
        with self._lock:
            self._attempt += 1
            self._opening, self._opening_at = tunnel, time.monotonic()
            tunnel.carry([_HEADER.pack(_OPEN, self._attempt, self._incoming.received)])

    def take_carried(self, tunnel: Tunnel, record: memoryview) -> None:
        """Take a record that another host has carried. The loop's thread. Raises
        `RemoteProtocolError`."""
        if len(record) < _HEADER.size:
            raise RemoteProtocolError(f"a record of {len(record)} bytes")
        if self._is_over:
            return
        kind, number, has_come = _HEADER.unpack_from(record)
        if kind == _OPEN:
            opened = [_HEADER.pack(_OPENED, number, self._incoming.received)]
            self._go_through(tunnel, has_come, first=opened)
        elif kind == _OPENED:
            if number == self._attempt and self._opening is not None:
                self._go_through(self._opening, has_come)
        elif kind == _CLOSED:
            self.lose_tunnel(Way.LOST)
        else:
            if self._tunnel is None and self._opening is None:  # the other end does not know
                tunnel.carry([_HEADER.pack(_CLOSED, 0, self._incoming.received)])
            self._on_record(record, self._take_carried)

    def _go_through(
        self, tunnel: Tunnel, received: int, first: Sequence[Bytes] | None = None
    ) -> None:
        with self._lock:
            self._say(_MOVES)
            self._outgoing.begin_again(received)
            self._drop_way()
            self._tunnel = tunnel
            self._closed_at = None
            self._has_moved = False
            if first is not None:
                tunnel.carry(first)
            self._push()
        self._heard()
        self._events.on_way(self)

    def lose_tunnel(self, way: Way) -> None:
        """Look for another way: the tunnel is said to carry no more. The loop's thread."""
        if self._is_over or (way is Way.SILENT and not self._addresses):
            return  # who dials finds out, and comes
        if self._tunnel is not None:
            with self._lock:
                self._drop_way()
            self._heard_at = time.monotonic()
            self._dial()
            self._events.on_way(self)
        if way is Way.CLOSED and self._has_no_way and self._closed_at is None:
            self._closed_at = time.monotonic()

    def tick(self, now: float) -> None:
        """Do what is due. The loop's thread, every `pulse_s` or so."""
        if self._is_over:
            return
        if self._tunnel is not None:
            self._tick_tunnel(now)
        else:
            self._tick(now)

    def _tick_tunnel(self, now: float) -> None:
        # hosts between watch each other; but is there one at the other end too?
        if now - self._said_at > self._timing.outage_s / 3:
            with self._lock:
                self._say(_PULSE)
        if self._is_opened_late(now):
            self.lose_tunnel(Way.LOST)

    def _tick(self, now: float) -> None:
        if self._is_opened_late(now):
            self._opening = self._closed_at = None  # the other end may have gone that way
            self._heard_at = now
            self._dial()
        quiet_s = now - self._heard_at
        if quiet_s > self._timing.silent_s and not self._is_silent:
            self._is_silent = True
            self._events.on_silent(self, quiet_s)
        if self._wants_connection():
            self._dial()  # a silent connection may be dead without knowing
        if quiet_s > self._timing.outage_s:
            self.lose(f"nothing was heard of it for {quiet_s:.0f} s", quiet_s)
        elif self._is_abandoned(now):
            self.lose("it does not connect any more")
        if now - self._said_at >= self._timing.pulse_s:
            with self._lock:
                self._say(_PULSE)

    def _is_opened_late(self, now: float) -> bool:
        return self._opening is not None and now - self._opening_at > self._timing.silent_s

    def _is_abandoned(self, now: float) -> bool:
        # who dials finds out by itself whether anybody is there
        if self._addresses or self._connection is not None:
            return False
        if self._closed_at is None:
            return not self._has_been_reached and now - self._heard_at > _FIRST_S
        return now - self._closed_at > _ABANDONED_S

    def leave(self, linger_s: float, why: str = "") -> None:
        """Say that this end leaves, when what was sent is written; wait at most so long. Nothing
        more is told. `why`: where it was not meant to. The loop's thread."""
        with self._lock:
            self._is_over = True
            if self._connection is not None:
                self._leave_by(self._connection, linger_s, why)
            if self._opening is not None:  # the other end may have gone that way already
                self._drop_connection()
                self._tunnel = self._opening
                self._outgoing.begin_again(0)
            if self._tunnel is not None:
                while (record := self._outgoing.next()) is not None:
                    self._emit(_DATA, *record)
                self._emit(_LEAVES, 0, [why.encode()])
            self._drop_way()
            self._outgoing = Outgoing(self.host)  # with what was lent for it

    def _leave_by(self, connection: Connection, linger_s: float, why: str) -> None:
        found = connection.socket
        with contextlib.suppress(OSError):
            found.settimeout(linger_s)
            if self._rest is not None:
                found.sendall(self._rest)
            while (record := self._outgoing.next()) is not None:
                found.sendall(self._record(connection, _DATA, *record))
            found.sendall(self._sealed(connection, _LEAVES, 0, [why.encode()]))

    def end(self) -> None:
        """Close it, and tell nobody. What it has not delivered is left for `drain`. The loop's
        thread."""
        with self._lock:
            self._is_over = True
            self._drop_way()

    def drain(self, received: int) -> list[tuple[Flow, Piece]]:
        """Return the pieces that the other end, which has received so many records, has not, with
        whose they are. The link has ended. Raises `RemoteProtocolError` for a number that cannot
        be."""
        with self._lock:
            bodies = self._outgoing.drain(received)
        whole = [body if isinstance(body, Part) else b"".join(body) for body in bodies]
        return [found for each in whole for found in flows(each)]

    def lose(self, why: str, silent_s: float | None = None) -> None:
        """Give the host up. The loop's thread."""
        if not self._is_over:
            self.end()
            self._events.on_lost(self, why, silent_s)

    def sever(self) -> None:
        """Let go of the parent's sockets in a forked child, which says nothing to their ends."""
        self._is_over = True
        if self._connection is not None:
            self._connection.socket.close()
        if self._writer is not None:
            self._writer.close()

    # reading: the loop's thread

    def _on_readable(self) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            count = connection.socket.recv_into(connection.reader.room)
        except BlockingIOError:
            return
        except OSError:
            count = 0
        came = connection.reader.room[:count] if armed else None
        if not count or breaks("link.receive", self.host, came):
            self._broken()
            return
        self._heard()
        try:
            for body in connection.reader.take(count):
                if self._part is not None:
                    self._on_part(self._part, body)
                else:
                    self._on_record(body, self._incoming.take)
        except ProtocolError:
            self.malformed += 1
            self._broken()

    def _on_record(self, body: memoryview, take: Callable[[int, int], bool]) -> None:
        # nothing is missing on a connection; between one tunnel and the next something may be
        if len(body) < _HEADER.size:
            raise RemoteProtocolError(f"a record of {len(body)} bytes")
        kind, number, has_come = _HEADER.unpack_from(body)
        with self._lock:
            if self._outgoing.acknowledge(has_come):
                self._push()
        if kind == _LEAVES:
            why = bytes(body[_HEADER.size : _HEADER.size + _LONGEST_WHY])
            self.lose(why.decode(errors="replace") or LEFT)
        elif kind == _PART:
            self._expect_part(number, body[_HEADER.size :])
        elif kind == _MOVES:
            self._has_moved = True
        elif kind == _DATA and take(number, len(body)):
            self._hand_on(body)
            self._tell_what_has_come()

    def _tell_what_has_come(self) -> None:
        # the other end keeps it until then
        records = ACK_RECORDS if self._tunnel is None else _TUNNEL_ACK_RECORDS
        if self._incoming.is_to_be_told(records):
            with self._lock:
                self._say(_PULSE)

    def _expect_part(self, number: int, header: memoryview) -> None:
        # it has come when what is in it has: a connection that breaks in between loses nothing
        part, room = read_part(header), None
        if self._incoming.is_new(number):
            try:
                room = self._events.room_for(part)
            except ProtocolError:
                self.malformed += 1
        self._part = _Part(number, part, room)
        if room is not None and self._connection is not None:
            self._connection.reader.open_into(room)

    def _on_part(self, awaited: _Part, body: memoryview) -> None:
        number, part, room = awaited
        self._part = None
        if len(body) != part.reply:
            raise RemoteProtocolError(f"a part of {len(body)} bytes, not {part.reply}")
        if self._incoming.take(number, len(body)) and room is not None:
            try:
                if self._events.on_part(part, room):
                    self._incoming.is_awaited = True
            except ProtocolError:
                self.malformed += 1
        self._tell_what_has_come()

    def _hand_on(self, body: memoryview) -> None:
        # a record has whole pieces; what makes no sense is dropped, and the others come
        try:
            for piece in read(body[_HEADER.size :]):
                self._take(piece)
        except ProtocolError:
            self.malformed += 1

    def _take(self, piece: Message) -> None:
        try:
            self._events.on_piece(piece)
        except ProtocolError:
            self.malformed += 1

    def _heard(self) -> None:
        self._heard_at = time.monotonic()
        self._has_been_reached = True
        if self._is_silent:
            self._is_silent = False
            self._events.on_heard(self)

    def _broken(self) -> None:
        with self._lock:
            self._drop_connection()
        if not self._has_moved:  # else it says nothing of who was there
            self._closed_at = time.monotonic()
        self._dial()

    def _drop_way(self) -> None:
        # under the lock, in the loop's thread
        self._tunnel = self._opening = None
        self._drop_connection()

    def _drop_connection(self) -> None:
        found, writer = self._connection, self._writer
        if found is None or writer is None:
            return
        self._loop.stop_reading(found.socket.fileno())
        if self._rest is not None:
            self._loop.stop_writing(writer.fileno())
        self._connection = self._writer = self._rest = self._part = None
        writer.close()
        found.socket.close()

    # dialling: a thread of its own while there is no connection that says anything

    def _dial(self) -> None:
        if self._addresses and not self._is_dialling and self._wants_connection():
            self._is_dialling = True
            helper_thread(self._keep_dialling, "monarch-dial").start()

    def _keep_dialling(self) -> None:
        refused_at: float | None = None
        while self._wants_connection():
            found = self._dial_once()
            now = time.monotonic()
            if isinstance(found, Connection):
                if self._is_over:  # meanwhile, and the loop with it
                    found.socket.close()
                else:
                    self._loop.soon(functools.partial(self._has_dialled, found))
                return
            if found is Failure.UNREACHABLE:
                refused_at = None
            elif refused_at is None:
                refused_at = now
            elif now - refused_at > _REFUSED_S and self._has_no_way:
                self._loop.soon(lambda: self.lose(_GONE))
                break
            time.sleep(_PAUSE_S)
        self._is_dialling = False

    def _dial_once(self) -> Connection | Failure:
        if time.monotonic() - self._began_at < _PAUSE_S:  # it has broken at once, as the next may
            time.sleep(_PAUSE_S)
        if breaks("link.connect", self.host):
            return Failure.UNREACHABLE
        received, known = self._incoming.received, self._known_address
        return dial(self._addresses, self.secret, received, _TRY_S, known)

    def _has_dialled(self, found: Connection) -> None:
        # not before: a second connection would end this one
        self._is_dialling = False
        self.take_up(found)

    def _wants_connection(self) -> bool:
        return not self._is_over and (self._has_no_way or (self._is_silent and not self.through))

    @property
    def _has_no_way(self) -> bool:
        return self._connection is None and self._tunnel is None and self._opening is None

    # writing: whoever has the lock

    def _push(self) -> None:
        while self._can_write and (record := self._outgoing.next()) is not None:
            self._emit(_DATA, *record)

    def _say(self, kind: int) -> None:
        # a sign of life, and what has come; a record that is being written is one too
        if self._can_write:
            self._emit(kind, 0, [])

    @property
    def _can_write(self) -> bool:
        if self._connection is None:
            return self._tunnel is not None
        return self._rest is None

    def _emit(self, kind: int, number: int, body: Body) -> None:
        if self._connection is not None:
            self._write(self._connection, self._record(self._connection, kind, number, body))
        elif self._tunnel is not None:
            pieces = body.in_a_record if isinstance(body, Part) else body
            self._tunnel.carry([self._header(kind, number), *pieces])

    def _record(self, on: Connection, kind: int, number: int, body: Body) -> memoryview:
        if isinstance(body, Part):
            return self._sealed(on, _PART, number, [body.header], body.data)
        return self._sealed(on, kind, number, body)

    def _sealed(
        self,
        on: Connection,
        kind: int,
        number: int,
        body: Sequence[Bytes],
        behind: memoryview | None = None,
    ) -> memoryview:
        return on.sealer.seal(self._header(kind, number), *body, behind=behind)

    def _header(self, kind: int, number: int) -> bytes:
        self._incoming.told()
        self._said_at = time.monotonic()
        return _HEADER.pack(kind, number, self._incoming.received)

    def _write(self, on: Connection, record: memoryview) -> None:
        if breaks("link.send", self.host, record):
            with contextlib.suppress(OSError):  # the other end has gone
                on.socket.shutdown(socket.SHUT_RDWR)  # the loop will read that
        try:
            sent = on.socket.send(record)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # the loop will read that it is broken; what was sent is kept
        if sent < len(record) and self._writer is not None:
            self._rest = record[sent:]
            self._loop.when_writable(self._writer.fileno(), self._on_writable)

    def _on_writable(self) -> None:
        with self._lock:
            if self._connection is None or self._rest is None or self._writer is None:
                return
            try:
                sent = self._connection.socket.send(self._rest)
            except BlockingIOError:
                return
            except OSError:
                sent = len(self._rest)
            self._rest = self._rest[sent:] if sent < len(self._rest) else None
            if self._rest is None:
                self._loop.stop_writing(self._writer.fileno())
                self._push()
                if self._incoming.is_to_be_told():
                    self._say(_PULSE)
