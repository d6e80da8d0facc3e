"""The one port of a host: who connects wants to join, over CURVE, or to go on with a session.

Rules: a stranger gets nothing but our random number, and takes a few bytes and a file for a few
seconds. What speaks ZeroMQ is passed on, byte by byte, to the socket behind which CURVE and the
allow-list stand (`joining.py`); what names a session has to prove that it knows the secret of it.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import time
from collections.abc import Callable
from typing import Final

from monarch_nb.errors import ProtocolError
from monarch_nb.net import wire
from monarch_nb.net.hosts import handshake
from monarch_nb.net.hosts.dialing import Connection
from monarch_nb.net.hosts.link import Link
from monarch_nb.net.loop import Loop

_MOST: Final = 64  # who is not let in yet; one more, and the first of them goes
_SHAKE_HANDS_S: Final = 3.0
_JOIN_S: Final = 30.0
_JOIN_BYTES: Final = 1 << 16  # each way: a hello and its answer are much shorter
_ZMTP: Final = b"\xff"
_READ_BYTES: Final = 1 << 14


class Listener:
    """Accepts connections. All of it happens in the loop's thread.

    `find(session)` returns the link of a session; `joins()` a connection to where CURVE is spoken.
    """

    def __init__(
        self,
        listener: socket.socket,
        loop: Loop,
        find: Callable[[bytes], Link | None],
        joins: Callable[[], socket.socket],
    ) -> None:
        self._listener = listener
        self._loop = loop
        self._find = find
        self._joins = joins
        self._arrivals: dict[int, _Arrival | _Passage] = {}
        listener.setblocking(False)
        loop.when_readable(listener.fileno(), self._on_connect)

    def reach(self) -> bool:
        """Accept whoever waits, if a file can be opened again."""
        if self._listener.fileno() >= 0:
            if not self._accept():
                return False
            self._loop.when_readable(self._listener.fileno(), self._on_connect)
        return True

    def tick(self, now: float) -> None:
        """Cut off who takes too long."""
        for fd, each in list(self._arrivals.items()):
            if now > each.until:
                self._end(fd)

    def stop(self) -> None:
        """Listen no more. The loop has ended, or this is its thread."""
        for fd in list(self._arrivals):
            self._end(fd)
        self.accept_no_more()

    def accept_no_more(self) -> None:
        """Go on with who has come, and let nobody else come. Harmless when repeated."""
        if self._listener.fileno() >= 0:
            self._loop.stop_reading(self._listener.fileno())
        self._listener.close()

    def sever(self) -> None:
        """Let go of the sockets in a forked child."""
        for each in self._arrivals.values():
            each.close()
        self._listener.close()

    def _on_connect(self) -> None:
        if not self._accept():
            self._loop.stop_reading(self._listener.fileno())
            self._loop.retry(self)

    def _accept(self) -> bool:
        try:
            peer, _ = self._listener.accept()
        except OSError as error:  # who has gone again is no matter
            return error.errno not in wire.NO_FILE_LEFT
        peer.setblocking(False)
        wire.send_at_once(peer)
        while len(self._arrivals) >= _MOST:
            self._end(next(iter(self._arrivals)))
        self._begin(_Arrival(peer))
        return True

    def _begin(self, arrival: _Arrival) -> None:
        fd = arrival.peer.fileno()
        self._arrivals[fd] = arrival
        self._loop.when_readable(fd, functools.partial(self._read, fd, arrival))

    def _read(self, fd: int, arrival: _Arrival) -> None:
        try:
            data = arrival.peer.recv(arrival.wants)
            if not data:
                self._end(fd)
            elif arrival.is_new and data.startswith(_ZMTP):
                self._pass_on(fd, arrival.peer, data)
            elif (connection := arrival.take(data, self._find)) is not None:
                del self._arrivals[fd]
                self._loop.stop_reading(fd)
                assert arrival.link is not None
                arrival.link.take_up(connection)
        except BlockingIOError:
            return
        except (OSError, ProtocolError):
            self._end(fd)

    def _pass_on(self, fd: int, peer: socket.socket, data: bytes) -> None:
        self._loop.stop_reading(fd)
        passage = self._arrivals[fd] = _Passage(peer, self._joins())
        passage.inside.sendall(data)
        for each, other in ((peer, passage.inside), (passage.inside, peer)):
            action = functools.partial(self._carry, fd, passage, each, other)
            self._loop.when_readable(each.fileno(), action)

    def _carry(self, fd: int, passage: _Passage, come: socket.socket, go: socket.socket) -> None:
        # what the other end does not take at once is no hello of ours
        try:
            data = come.recv(_READ_BYTES)
            if not data or not passage.takes(len(data)) or go.send(data) < len(data):
                self._end(fd)
        except OSError:
            self._end(fd)

    def _end(self, fd: int) -> None:
        ended = self._arrivals.pop(fd, None)
        if ended is not None:
            for each in ended.descriptors():
                self._loop.stop_reading(each)
            ended.close()


class _Arrival:
    """A connection of somebody who has not proved anything."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self.until = time.monotonic() + _SHAKE_HANDS_S
        self.link: Link | None = None
        self._got = b""
        self._ciphers: handshake.Ciphers | None = None

    @property
    def is_new(self) -> bool:
        return not self._got and self._ciphers is None

    @property
    def wants(self) -> int:
        whole = handshake.GREETING_BYTES if self._ciphers is None else handshake.PROOF_BYTES
        return whole - len(self._got)

    def take(self, data: bytes, find: Callable[[bytes], Link | None]) -> Connection | None:
        """Go on with the handshake; return the connection when it is done. Raises
        `ProtocolError`, `OSError`."""
        self._got += data
        if self._ciphers is None and not handshake.may_greet(self._got):
            raise ConnectionRefusedError("this is no greeting")
        if self.wants:
            return None
        got, self._got = self._got, b""
        if self._ciphers is None:
            self._greet(got, find)
            return None
        sealer, reader = self._ciphers
        reader.room[: len(got)] = got
        [body] = reader.take(len(got))
        return Connection(self.peer, sealer, reader, handshake.unpack_received(body))

    def _greet(self, greeting: bytes, find: Callable[[bytes], Link | None]) -> None:
        session, theirs = handshake.unpack_greeting(greeting)
        link = self.link = find(session)
        if link is None:
            raise ConnectionRefusedError("nobody here knows this session")
        ours = handshake.random_bytes()
        self._ciphers = handshake.ciphers(link.secret.key, theirs, ours, dials=False)
        proof = self._ciphers.sealer.seal(handshake.pack_received(link.received))
        self.peer.sendall(ours + proof)

    def descriptors(self) -> list[int]:
        return [self.peer.fileno()]

    def close(self) -> None:
        self.peer.close()


class _Passage:
    """A connection of somebody who speaks ZeroMQ, and ours to where that is understood."""

    def __init__(self, peer: socket.socket, inside: socket.socket) -> None:
        self.peer = peer
        self.inside = inside
        self.until = time.monotonic() + _JOIN_S
        self._left = 2 * _JOIN_BYTES

    def takes(self, size: int) -> bool:
        self._left -= size
        return self._left >= 0

    def descriptors(self) -> list[int]:
        return [self.peer.fileno(), self.inside.fileno()]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.inside.close()
        self.peer.close()
