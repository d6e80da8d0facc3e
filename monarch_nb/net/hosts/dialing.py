"""A connection to another host, from the end that dials: all addresses at once, the first that
knows the session wins. Blocking, for a thread of its own.
"""

from __future__ import annotations

import enum
import functools
import queue
import socket
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from monarch_nb.errors import ProtocolError
from monarch_nb.net import wire
from monarch_nb.net.hosts import handshake
from monarch_nb.net.hosts.handshake import Secret
from monarch_nb.net.hosts.records import RecordReader, Sealer
from monarch_nb.net.threads import helper_thread


class Connection(NamedTuple):
    """A connection of a session, whose ends have proved that they know its secret."""

    socket: socket.socket
    sealer: Sealer
    reader: RecordReader
    peer_received: int
    """The number of the last record that the other end has."""


class Failure(enum.Enum):
    """Why there is none. `REFUSED`: the host is there, and nobody on it who knows the session."""

    REFUSED = enum.auto()
    UNREACHABLE = enum.auto()


def dial(
    addresses: Sequence[str], secret: Secret, received: int, limit_s: float
) -> Connection | Failure:
    """Return a connection to the host that has one of these addresses, within `limit_s`."""
    if len(addresses) == 1:
        return _dial_one(addresses[0], secret, received, limit_s)
    found: queue.SimpleQueue[Connection | Failure] = queue.SimpleQueue()
    for address in addresses:
        helper_thread(_into(found, address, secret, received, limit_s), "monarch-dial").start()
    return _first(found, len(addresses))


def _into(
    found: queue.SimpleQueue[Connection | Failure],
    address: str,
    secret: Secret,
    received: int,
    limit_s: float,
) -> Callable[[], None]:
    return lambda: found.put(_dial_one(address, secret, received, limit_s))


def _first(found: queue.SimpleQueue[Connection | Failure], count: int) -> Connection | Failure:
    failures: list[Failure] = []
    while len(failures) < count:
        result = found.get()
        if isinstance(result, Connection):
            others = functools.partial(_close_all, found, count - len(failures) - 1)
            helper_thread(others, "monarch-dial").start()
            return result
        failures.append(result)
    return max(failures, key=lambda each: each is Failure.UNREACHABLE)


def _close_all(found: queue.SimpleQueue[Connection | Failure], count: int) -> None:
    for _ in range(count):
        if isinstance(late := found.get(), Connection):
            late.socket.close()


def _dial_one(address: str, secret: Secret, received: int, limit_s: float) -> Connection | Failure:
    deadline = time.monotonic() + limit_s
    try:
        opened = wire.connect_host(address, limit_s)
    except ConnectionRefusedError:
        return Failure.REFUSED
    except OSError:
        return Failure.UNREACHABLE
    try:
        return _shake_hands(opened, secret, received, deadline)
    except TimeoutError:
        opened.close()
        return Failure.UNREACHABLE
    except (OSError, ProtocolError):  # closed: somebody is there
        opened.close()
        return Failure.REFUSED


def _shake_hands(
    opened: socket.socket, secret: Secret, received: int, deadline: float
) -> Connection:
    ours = handshake.random_bytes()
    opened.sendall(handshake.pack_greeting(secret.session, ours))
    theirs = _receive(opened, handshake.RANDOM_BYTES, deadline)
    sealer, reader = handshake.ciphers(secret.key, ours, theirs, dials=True)
    proof = _receive(opened, handshake.PROOF_BYTES, deadline)
    reader.room[: len(proof)] = proof
    [body] = reader.take(len(proof))
    opened.sendall(sealer.seal(handshake.pack_received(received)))
    opened.setblocking(False)
    return Connection(opened, sealer, reader, handshake.unpack_received(body))


def _receive(opened: socket.socket, size: int, deadline: float) -> bytes:
    found = b""
    while len(found) < size:
        opened.settimeout(max(0.001, deadline - time.monotonic()))
        data = opened.recv(size - len(found))
        if not data:
            raise ConnectionResetError("closed")
        found += data
    return found
