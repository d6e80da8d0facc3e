"""The receiving end of unix streams: whoever may write to a process of this host does so here.

Rules: a peer that writes what is no message is cut off. Where this process has no file left to open
(an offered host, at whose port strangers hold them all), whoever connects waits until it has.
"""

from __future__ import annotations

import functools
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from monarch_nb.core.wire import frames
from monarch_nb.errors import ProtocolError
from monarch_nb.net import wire
from monarch_nb.net.loop import Loop
from monarch_nb.net.streams import READ_BYTES, StreamReader


class StreamInbox:
    """Listens for a process, and calls `deliver` in the loop's thread with each message."""

    def __init__(
        self, run_dir: Path, process: int, loop: Loop, deliver: Callable[[frames.Message], None]
    ) -> None:
        self.malformed = 0
        self._loop = loop
        self._deliver = deliver
        self._peers: dict[int, socket.socket] = {}
        self._listener = wire.bind_stream(run_dir, process)
        loop.when_readable(self._listener.fileno(), self._on_connect)

    def close(self) -> None:
        """Close every socket: in a forked child too, whose parent has them still."""
        for each in (self._listener, *self._peers.values()):
            each.close()

    def stop(self) -> None:
        """Receive nothing more, while the loop goes on."""
        for fd in (self._listener.fileno(), *self._peers):
            self._loop.stop_reading(fd)
        self.close()

    def reach(self) -> bool:
        """Accept whoever waits, if a file can be opened again."""
        if self._listener.fileno() < 0:
            return True
        if not self._accept():
            return False
        self._loop.when_readable(self._listener.fileno(), self._on_connect)
        return True

    def deliver(self, message: frames.Message) -> None:
        """Hand on one message; one that is bad must not keep the others from arriving."""
        try:
            self._deliver(message)
        except ProtocolError:
            self.malformed += 1
        except Exception:  # noqa: BLE001
            traceback.print_exc(file=sys.__stderr__)

    def _on_connect(self) -> None:
        if not self._accept():
            self._loop.stop_reading(self._listener.fileno())  # it would be readable all the time
            self._loop.retry(self)

    def _accept(self) -> bool:
        # False: there is no file left for the connection
        try:
            peer, _ = self._listener.accept()
        except OSError as error:  # who has gone again is no matter
            return error.errno not in wire.NO_FILE_LEFT
        peer.setblocking(False)
        self._peers[peer.fileno()] = peer
        read = functools.partial(self._read, peer, StreamReader())
        self._loop.when_readable(peer.fileno(), read)
        return True

    def _read(self, peer: socket.socket, reader: StreamReader) -> None:
        target = reader.target
        try:
            if target is None:
                data = peer.recv(READ_BYTES)
                count = len(data)
                found = reader.feed(data) if data else []
            else:
                count = peer.recv_into(target)
                found = reader.fill(count)
        except BlockingIOError:
            return
        except (OSError, ProtocolError) as error:
            self.malformed += isinstance(error, ProtocolError)
            count, found = 0, []
        if not count:
            self._drop(peer)
        for message in found:
            self.deliver(message)

    def _drop(self, peer: socket.socket) -> None:
        self._loop.stop_reading(peer.fileno())
        del self._peers[peer.fileno()]
        peer.close()
