"""A link to another host: one session, over one connection after another.

Rules: any thread sends, under the lock; the thread of the loop reads. A link is *silent* when
nothing has come for `silent_s`, pulses included, and *lost* after `outage_s` without a connection
that says anything. A connection that the other end has closed, without a word that it leaves, is
that of a process that has died, unless there is a new one soon.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from monarch_nb.config import Config
from monarch_nb.core.wire.frames import Message
from monarch_nb.errors import ProtocolError, RemoteProtocolError
from monarch_nb.net.hosts.dialing import Connection, Failure, dial
from monarch_nb.net.hosts.handshake import Secret
from monarch_nb.net.hosts.pieces import Part, Piece, flows, read, read_part
from monarch_nb.net.hosts.session import Body, Flow, Incoming, Outgoing
from monarch_nb.net.loop import Loop
from monarch_nb.net.threads import helper_thread

LEFT: Final = "it was ended"
"""Why a link is lost whose other end has said that it leaves."""
_HEADER: Final = struct.Struct("<BQQ")  # kind, number, the last that has come
_DATA: Final = 1
_PULSE: Final = 2
_LEAVES: Final = 3
_PART: Final = 4  # the header of a part; the next record is what is in it
_ABANDONED_S: Final = 2.0  # closed and not there again: who was there has died
_LONGEST_WHY: Final = 4_000
_FIRST_S: Final = 10.0  # until who was let in connects
_REFUSED_S: Final = 1.0  # there is a host, and nobody on it who knows the session
_TRY_S: Final = 1.0
_GONE: Final = "its worker has ended, or knows this client no more"
_PAUSE_S: Final = 0.1


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
        self._lock = threading.Lock()
        self._outgoing = Outgoing()
        self._incoming = Incoming()
        self._connection: Connection | None = None
        self._known_address: str | None = None  # the last at which the other end was reached
        self._writer: socket.socket | None = None  # the same socket: a loop reads or writes one
        self._rest: memoryview | None = None  # of a record that the socket did not take whole
        self._part: _Part | None = None  # whose header has come
        self._said_at = self._heard_at = time.monotonic()
        self._closed_at: float | None = None  # by the other end, without a word
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

    def send(self, flow: Flow, pieces: Sequence[Piece]) -> None:
        """Send pieces of a message to who is reached over this link. Any thread."""
        with self._lock:
            if not self._is_over:
                self._outgoing.put(flow, pieces)
                self._push()

    def take_up(self, connection: Connection) -> None:
        """Go on over a new connection. The loop's thread."""
        if self._is_over:
            connection.socket.close()
            return
        with self._lock:
            self._outgoing.begin_again(connection.peer_received)
            self._drop_connection()
            self._connection = connection
            self._known_address = connection.address
            self._writer = connection.socket.dup()
            self._closed_at = None
            self._push()
        self._loop.when_readable(connection.socket.fileno(), self._on_readable)
        self._heard()

    def tick(self, now: float) -> None:
        """Do what is due. The loop's thread, every `pulse_s` or so."""
        if self._is_over:
            return
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

    def _is_abandoned(self, now: float) -> bool:
        # who dials finds out by itself whether anybody is there
        if self._addresses or self._connection is not None:
            return False
        limit_s = _FIRST_S if self._closed_at is None else _ABANDONED_S
        return now - (self._closed_at or self._heard_at) > limit_s

    def leave(self, linger_s: float, why: str = "") -> None:
        """Say that this end leaves, when what was sent is written; wait at most so long. Nothing
        more is told. `why`: where it was not meant to. The loop's thread."""
        with self._lock:
            self._is_over = True
            if (found := self._connection) is not None:
                with contextlib.suppress(OSError):
                    found.socket.settimeout(linger_s)
                    if self._rest is not None:
                        found.socket.sendall(self._rest)
                    while (record := self._outgoing.next()) is not None:
                        found.socket.sendall(self._data(found, *record))
                    found.socket.sendall(self._sealed(found, _LEAVES, 0, [why.encode()]))
                self._drop_connection()
            self._outgoing = Outgoing()  # with what was lent for it

    def end(self) -> None:
        """Close it, and tell nobody. What it has not delivered is left for `drain`. The loop's
        thread."""
        with self._lock:
            self._is_over = True
            self._drop_connection()

    def drain(self, received: int) -> list[tuple[Flow, Piece]]:
        """Return the pieces that the other end, which has received so many records, has not, with
        whose they are. The link has ended. Raises `RemoteProtocolError` for a number that cannot
        be."""
        with self._lock:
            bodies = self._outgoing.drain(received)
        pieces = [each for body in bodies for each in ([body] if isinstance(body, Part) else body)]
        return [found for each in pieces for found in flows(each)]

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
        if not count:
            self._broken()
            return
        self._heard()
        try:
            for body in connection.reader.take(count):
                self._on_record(body)
        except ProtocolError:
            self.malformed += 1
            self._broken()

    def _on_record(self, body: memoryview) -> None:
        if self._part is not None:
            self._on_part(self._part, body)
            return
        if len(body) < _HEADER.size:
            raise RemoteProtocolError(f"a record of {len(body)} bytes")
        kind, number, has_come = _HEADER.unpack_from(body)
        with self._lock:
            self._outgoing.acknowledge(has_come)
            self._push()
        if kind == _LEAVES:
            why = bytes(body[_HEADER.size : _HEADER.size + _LONGEST_WHY])
            self.lose(why.decode(errors="replace") or LEFT)
        elif kind == _PART:
            self._expect_part(number, body[_HEADER.size :])
        elif kind == _DATA and self._incoming.take(number, len(body)):
            self._hand_on(body)
            self._tell()

    def _tell(self) -> None:
        # what has come: the other end keeps it until then
        if self._incoming.is_to_be_told:
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
        self._tell()

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
        if self._is_silent:
            self._is_silent = False
            self._events.on_heard(self)

    def _broken(self) -> None:
        with self._lock:
            self._drop_connection()
        self._closed_at = time.monotonic()
        self._dial()

    def _drop_connection(self) -> None:
        # under the lock, in the loop's thread
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
        if self._addresses and not self._is_dialling and not self._is_over:
            self._is_dialling = True
            helper_thread(self._keep_dialling, "monarch-dial").start()

    def _keep_dialling(self) -> None:
        refused_at: float | None = None
        while self._wants_connection():
            received, known = self._incoming.received, self._known_address
            found = dial(self._addresses, self.secret, received, _TRY_S, known)
            now = time.monotonic()
            if isinstance(found, Connection):
                if self._is_over:  # meanwhile, and the loop with it
                    found.socket.close()
                else:
                    self._loop.soon(functools.partial(self.take_up, found))
                break
            if found is Failure.UNREACHABLE:
                refused_at = None
            elif refused_at is None:
                refused_at = now
            elif now - refused_at > _REFUSED_S and self._connection is None:
                self._loop.soon(lambda: self.lose(_GONE))
                break
            time.sleep(_PAUSE_S)
        self._is_dialling = False

    def _wants_connection(self) -> bool:
        return not self._is_over and (self._connection is None or self._is_silent)

    # writing: whoever has the lock

    def _push(self) -> None:
        while self._rest is None and self._connection is not None:
            record = self._outgoing.next()
            if record is None:
                return
            self._write(self._connection, self._data(self._connection, *record))

    def _say(self, kind: int) -> None:
        # a sign of life, and what has come; a record that is being written is one too
        if self._rest is None and self._connection is not None:
            self._write(self._connection, self._sealed(self._connection, kind, 0, []))

    def _data(self, on: Connection, number: int, body: Body) -> memoryview:
        if isinstance(body, Part):
            return self._sealed(on, _PART, number, [body.header], body.data)
        return self._sealed(on, _DATA, number, body)

    def _sealed(
        self,
        on: Connection,
        kind: int,
        number: int,
        body: Sequence[bytes],
        behind: memoryview | None = None,
    ) -> memoryview:
        header = _HEADER.pack(kind, number, self._incoming.received)
        self._incoming.told()
        self._said_at = time.monotonic()
        return on.sealer.seal(header, *body, behind=behind)

    def _write(self, on: Connection, record: memoryview) -> None:
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
                if self._incoming.is_to_be_told:
                    self._say(_PULSE)
