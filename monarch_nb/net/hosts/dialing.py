"""A connection to another host, from the end that dials: all addresses at once, the first that
knows the session wins. Blocking, for a thread of its own.

Who dials proves last that it knows the secret, and only over the connection that it has chosen: the
other end goes on over the newest one that was proved, so a second one would end the first.
"""

from __future__ import annotations

import enum
import functools
import queue
import socket
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

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
    address: str | None = None
    """At which it was dialled, by this end."""


_BETTER_S: Final = 0.25


class Failure(enum.IntEnum):
    """Why there is none. `REFUSED`: the host is there, and nobody on it who knows the session."""

    REFUSED = 1
    UNREACHABLE = 2


def dial(
    addresses: Sequence[str],
    secret: Secret,
    received: int,
    limit_s: float,
    known: str | None = None,
) -> Connection | Failure:
    """Return a connection to the host that has one of these addresses, within `limit_s`.

    Of those that connect the first in the list is taken, if it does so soon after the fastest: a
    tunnel stands behind the network that it saves. Where none does, the failure is that of the
    address `known` to lead there: others may never have, or to somebody else.
    """
    found = _dial_all(addresses, secret, limit_s, known)
    return found if isinstance(found, Failure) else _prove(found, received, limit_s)


def _dial_all(
    addresses: Sequence[str], secret: Secret, limit_s: float, known: str | None
) -> Connection | Failure:
    if len(addresses) == 1:
        return _dial_one(addresses[0], secret, limit_s)
    came: queue.SimpleQueue[tuple[int, Connection | Failure]] = queue.SimpleQueue()
    for rank, address in enumerate(addresses):
        helper_thread(
            functools.partial(_into, came, rank, address, secret, limit_s), "monarch-dial"
        ).start()
    decisive = addresses.index(known) if known in addresses else None
    return _best(came, len(addresses), decisive)


def _into(
    came: queue.SimpleQueue[tuple[int, Connection | Failure]],
    rank: int,
    address: str,
    secret: Secret,
    limit_s: float,
) -> None:
    came.put((rank, _dial_one(address, secret, limit_s)))


def _best(
    came: queue.SimpleQueue[tuple[int, Connection | Failure]], count: int, decisive: int | None
) -> Connection | Failure:
    best: tuple[int, Connection] | None = None
    failures: dict[int, Failure] = {}
    left = count
    deadline: float | None = None
    while left and (best is None or best[0] > 0):
        try:
            pause_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            rank, result = came.get(timeout=pause_s)
        except queue.Empty:
            break
        left -= 1
        if isinstance(result, Failure):
            failures[rank] = result
        elif best is None or rank < best[0]:
            if best is not None:
                best[1].socket.close()
            best = rank, result
            deadline = deadline or time.monotonic() + _BETTER_S
        else:
            result.socket.close()
    helper_thread(functools.partial(_close_all, came, left), "monarch-dial").start()
    if best is not None:
        return best[1]
    return max(failures.values()) if decisive is None else failures[decisive]


def _close_all(came: queue.SimpleQueue[tuple[int, Connection | Failure]], count: int) -> None:
    for _ in range(count):
        _, late = came.get()
        if isinstance(late, Connection):
            late.socket.close()


def _dial_one(address: str, secret: Secret, limit_s: float) -> Connection | Failure:
    deadline = time.monotonic() + limit_s
    try:
        opened = wire.connect_host(address, limit_s)
    except (ConnectionRefusedError, FileNotFoundError):  # its unix socket went with it
        return Failure.REFUSED
    except OSError:
        return Failure.UNREACHABLE
    try:
        return _shake_hands(opened, secret, deadline)._replace(address=address)
    except TimeoutError:
        opened.close()
        return Failure.UNREACHABLE
    except (OSError, ProtocolError):  # closed: somebody is there
        opened.close()
        return Failure.REFUSED


def _shake_hands(opened: socket.socket, secret: Secret, deadline: float) -> Connection:
    # all but our own proof
    ours = handshake.random_bytes()
    opened.sendall(handshake.pack_greeting(secret.session, ours))
    theirs = _receive(opened, handshake.RANDOM_BYTES, deadline)
    sealer, reader = handshake.ciphers(secret.key, ours, theirs, dials=True)
    proof = _receive(opened, handshake.PROOF_BYTES, deadline)
    reader.room[: len(proof)] = proof
    [body] = reader.take(len(proof))
    return Connection(opened, sealer, reader, handshake.unpack_received(body))


def _prove(chosen: Connection, received: int, limit_s: float) -> Connection | Failure:
    opened = chosen.socket
    try:
        opened.settimeout(limit_s)
        opened.sendall(chosen.sealer.seal(handshake.pack_received(received)))
        opened.setblocking(False)
    except OSError:
        opened.close()
        return Failure.REFUSED
    return chosen


def _receive(opened: socket.socket, size: int, deadline: float) -> bytes:
    found = b""
    while len(found) < size:
        opened.settimeout(max(0.001, deadline - time.monotonic()))
        data = opened.recv(size - len(found))
        if not data:
            raise ConnectionResetError("closed")
        found += data
    return found
