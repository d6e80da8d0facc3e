"""The network between hosts: connections, and links that dial in it.

Records of a connection arrive in order, each after a time of its own; those of two connections in
any order. Nothing is encrypted, and nothing else is simulated: sessions, tunnels and where hosts
are in the tree are the real ones.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Protocol

import pytest

from monarch_nb.net.hosts import gateway as gateway_module
from monarch_nb.net.hosts.dialing import Connection, Failure
from monarch_nb.net.hosts.gateway import Gateway
from monarch_nb.net.hosts.link import Link, Tunnel
from monarch_nb.net.hosts.session import Incoming, Outgoing
from tests.simulation.clock import Clock, Loop

MOST_DELAY_S = 0.02


class Socket:
    """An end of a connection. A record arrives whole, behind those before it; `delay()` says
    after how long, if those are there."""

    _numbers = itertools.count(100)

    def __init__(self, loop: Loop, delay: Callable[[], float]) -> None:
        self.loop = loop
        self.fd = next(self._numbers)
        loop.wakers[self.fd] = self.wake
        self.other: Socket | None = None
        self.is_closed = self.is_broken = False
        self.came: deque[bytes] = deque()  # empty bytes: the other end has closed it
        self._delay = delay
        self._arrives_at = 0.0

    def send(self, record: memoryview) -> int:
        self._post(bytes(record))
        return len(record)

    def sendall(self, record: memoryview) -> None:
        self._post(bytes(record))

    def _post(self, record: bytes) -> None:
        other, clock = self.other, self.loop.clock
        assert other is not None
        self._arrives_at = max(clock.now + self._delay(), self._arrives_at + 1e-7)
        clock.after(self._arrives_at - clock.now, lambda: other.take(record))

    def take(self, record: bytes) -> None:
        if not self.is_closed and not self.is_broken and not self.loop.is_over:
            self.came.append(record)
            self.wake()

    def wake(self) -> None:
        """Have what has come read, if anybody reads."""
        if self.came:
            self.loop.turn(self._read)

    def _read(self) -> None:
        while self.came and not self.is_closed and self.fd in self.loop.readers:
            self.loop.readers[self.fd]()

    def recv_into(self, _room: object) -> int:
        if not self.came:
            raise BlockingIOError
        if self.came[0]:
            return 1
        self.came.clear()
        return 0

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.loop.wakers.pop(self.fd, None)
            self._post(b"")

    def freeze(self, seconds: float) -> None:
        """Let what is sent from now on arrive after so long."""
        self._arrives_at = self.loop.clock.now + seconds

    def break_off(self) -> None:
        """Lose what is on its way, and say that the other end has closed it."""
        self.is_broken = True
        self.came.clear()
        self.came.append(b"")
        self.loop.soon(self.wake)

    def fileno(self) -> int:
        return self.fd

    def dup(self) -> _Copy:
        return _Copy(next(self._numbers))

    def settimeout(self, _seconds: float) -> None:
        pass


class _Copy:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        pass


class Records:
    """Sealer and reader of a connection: nothing is encrypted."""

    def __init__(self, socket: Socket) -> None:
        self.socket = socket
        self.room = None

    def seal(self, *parts: bytes, behind: memoryview | None = None) -> memoryview:
        assert behind is None, "messages of the simulation are short"
        return memoryview(b"".join(parts))

    def take(self, _count: int) -> Iterator[memoryview]:
        yield memoryview(self.socket.came.popleft())


class Net(Protocol):
    """Where links dial. `at(address)` is who listens there; `delay_s` is that of the next record
    from one host to another; `is_cut`: nothing gets from one to the other, or back."""

    clock: Clock

    def at(self, address: str) -> SimulatedHost | None: ...
    def delay_s(self, here: int, there: int) -> float: ...
    def is_cut(self, here: int, there: int) -> bool: ...


class _NoInbox:
    malformed = 0

    def stop(self) -> None:
        pass


class SimulatedHost(Gateway):
    """A gateway with a loop in virtual time, which is given what processes send to it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.loop: Loop = args[2]
        super().__init__(*args, **options)

    def _new_inbox(self) -> Any:
        return _NoInbox()

    def find(self, session: bytes) -> Link | None:
        return self._link_of(session)

    def leave_all(self) -> None:
        """Say to all that this host leaves, as at the end of its process."""
        self._close(0.5)

    def close_quietly(self) -> None:
        """Give back what it has, once nobody cares any more."""
        self._local.close()


class SimulatedLink(Link):
    """A link that dials in a simulated network."""

    network: ClassVar[Net]
    has_asked = False
    _refused_at: float | None = None

    def open(self, tunnel: Tunnel) -> None:
        super().open(tunnel)
        self.has_asked = True

    @property
    def connected_by(self) -> Socket | None:
        found: Any = None if self._connection is None else self._connection.socket
        return found

    def _connect(self) -> Failure | None:
        # None: it is let in
        mine: Any = self._events
        there = self.network.at(self._addresses[0])
        if there is None or there.loop.is_over:
            return Failure.REFUSED
        if self.network.is_cut(mine.host, there.host) or there.loop.is_frozen:
            return Failure.UNREACHABLE
        other = there.find(self.secret.session)
        if other is None:
            return Failure.REFUSED
        self._meet(mine.host, there, other)
        return None

    def _meet(self, host: int, there: SimulatedHost, other: Link) -> None:
        network, here = self.network, self._loop
        ends: Any = (
            Socket(here, lambda: network.delay_s(host, there.host)),
            Socket(there.loop, lambda: network.delay_s(there.host, host)),
        )
        ends[0].other, ends[1].other = ends[1], ends[0]
        mine, theirs = Records(ends[0]), Records(ends[1])
        to_me: Any = Connection(ends[0], mine, mine, other.received)
        to_them: Any = Connection(ends[1], theirs, theirs, self.received)
        later = network.clock.random.random
        there.loop.after(later() * MOST_DELAY_S, lambda: other.take_up(to_them))
        here.after(later() * MOST_DELAY_S, lambda: self.take_up(to_me))

    def _dial(self) -> None:
        if self._addresses and not self._is_dialling and self._wants_connection():
            self._is_dialling = True
            self._refused_at = None
            self._loop.after(0.001, self._try)

    def _try(self) -> None:
        failure = self._connect() if self._wants_connection() else None
        if failure is None:
            self._is_dialling = False
            return
        now = self.network.clock.now
        self._refused_at = (self._refused_at or now) if failure is Failure.REFUSED else None
        if self._refused_at and now - self._refused_at > 1.0 and self._has_no_way:
            self._is_dialling = False
            self.lose("its worker has ended, or knows this client no more")
        else:
            self._loop.after(0.1, self._try)


def _counting(seen: Counter[str]) -> tuple[type[Outgoing], type[Incoming]]:
    """The ends of sessions, which count what came otherwise than it was sent."""

    class CountingOutgoing(Outgoing):
        def begin_again(self, received: int) -> None:
            super().begin_again(received)
            seen["records sent again"] += len(self._kept)

    class CountingIncoming(Incoming):
        def take(self, number: int, size: int) -> bool:
            is_new = super().take(number, size)
            seen["records that came twice"] += not is_new
            return is_new

        def take_next(self, number: int, size: int) -> bool:
            seen["records that came twice"] += number <= self.received
            return super().take_next(number, size)

    return CountingOutgoing, CountingIncoming


def use(network: Net, seen: Counter[str], patch: pytest.MonkeyPatch) -> None:
    """Have gateways that are made from now on use this network; count in `seen` what comes twice
    and is sent again."""
    patch.setattr("monarch_nb.net.hosts.link.time", network.clock)
    link = type("LinkHere", (SimulatedLink,), {"network": network})
    patch.setattr(gateway_module, "Link", link)
    outgoing, incoming = _counting(seen)
    patch.setattr("monarch_nb.net.hosts.link.Outgoing", outgoing)
    patch.setattr("monarch_nb.net.hosts.link.Incoming", incoming)
