"""Many hosts in one thread: real gateways and links, with a simulated network, clock and loop.

Records of a connection arrive in order, each after a time of its own; those of two connections in
any order. Connections break or stand still, and hosts die, when the script of a test says so.
Nothing else is simulated: tunnels, casts, folds, sessions and where hosts are in the tree are the
real ones.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

from monarch_nb.core.casting import Cast, runs_of
from monarch_nb.core.reply_folding import unfold
from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import HEADER, HOST_SHIFT
from monarch_nb.net.hosts import gateway as gateway_module
from monarch_nb.net.hosts.dialing import Connection
from monarch_nb.net.hosts.gateway import Gateway
from monarch_nb.net.hosts.handshake import Secret
from monarch_nb.net.hosts.link import Link, Timing, Tunnel
from monarch_nb.net.hosts.session import Incoming, Outgoing

TIMING = Timing(pulse_s=0.5, silent_s=1.5, outage_s=30.0)
CONTROLLER = 1
PORT = 7
MOST_DELAY_S = 0.02


class Clock:
    """What is to happen, in its order. Ties are broken by chance."""

    def __init__(self, seed: int) -> None:
        self.now = 1000.0
        self.random = random.Random(seed)
        self._events: list[tuple[float, float, Callable[[], object]]] = []
        self._order = itertools.count()

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        place = (self.now + seconds, self.random.random(), next(self._order), action)
        heapq.heappush(self._events, place)

    def run(self, seconds: float) -> None:
        """Let so much time go by."""
        until = self.now + seconds
        while self._events and self._events[0][0] <= until:
            self.now, _, _, action = heapq.heappop(self._events)
            action()
        self.now = until

    def run_until(self, is_so: Callable[[], object], limit_s: float, step_s: float = 0.1) -> bool:
        until = self.now + limit_s
        while not is_so() and self.now < until:
            self.run(step_s)
        return bool(is_so())

    # what a link knows as the module `time`

    def monotonic(self) -> float:
        return self.now


class Loop:
    """The loop of a host."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.is_over = False
        self.readers: dict[int, Callable[[], object]] = {}
        self.sockets: dict[int, Socket] = {}

    @property
    def now(self) -> float:
        return self.clock.now

    def turn(self, action: Callable[[], object]) -> None:
        """Do it when this host's processor has time: at once."""
        action()

    def when_readable(self, fd: int, action: Callable[[], object]) -> None:
        self.readers[fd] = action
        self.soon(self.sockets[fd].wake)

    def stop_reading(self, fd: int) -> None:
        self.readers.pop(fd, None)

    def stop_writing(self, fd: int) -> None:
        pass

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        self.clock.after(seconds, lambda: self.is_over or action())

    def soon(self, action: Callable[[], object]) -> None:
        self.after(0.0, action)

    def every(self, seconds: float, action: Callable[[float], object]) -> None:
        def again() -> None:
            action(self.clock.now)
            self.after(seconds, again)

        self.after(seconds * self.clock.random.random(), again)


class Socket:
    """An end of a connection. A record arrives whole, behind those before it."""

    _numbers = itertools.count(100)

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.fd = next(self._numbers)
        loop.sockets[self.fd] = self
        self.other: Socket | None = None
        self.is_closed = self.is_broken = False
        self.came: deque[bytes] = deque()  # empty bytes: the other end has closed it
        self._arrives_at = 0.0

    def send(self, record: memoryview) -> int:
        self._post(bytes(record))
        return len(record)

    def sendall(self, record: memoryview) -> None:
        self._post(bytes(record))

    def _post(self, record: bytes) -> None:
        other, clock = self.other, self.loop.clock
        assert other is not None
        delay = clock.random.random() * MOST_DELAY_S
        self._arrives_at = max(self.loop.now + delay, self._arrives_at + 1e-7)
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

    def dup(self) -> Socket:
        return _Copy()

    def settimeout(self, _seconds: float) -> None:
        pass


class _Copy(Socket):
    def __init__(self) -> None:
        self.fd = next(self._numbers)

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

    def take(self, _count: int):
        yield memoryview(self.socket.came.popleft())


class SimulatedLink(Link):
    """A link that dials in the simulated network."""

    network: Network
    has_asked = False

    def open(self, tunnel: Tunnel) -> None:
        super().open(tunnel)
        self.has_asked = True

    @property
    def connected_by(self) -> Socket | None:
        return None if self._connection is None else self._connection.socket

    def _connect(self) -> bool:
        # to the host at its address; tells whether that lets it in
        there = self.network.host(int(self._addresses[0]))
        other = there.find(self.secret.session)
        if there.loop.is_over or other is None:
            return False
        ends = Socket(self._loop), Socket(there.loop)
        ends[0].other, ends[1].other = ends[1], ends[0]
        mine, theirs = Records(ends[0]), Records(ends[1])
        here = Connection(ends[0], mine, mine, other.received)
        over_there = Connection(ends[1], theirs, theirs, self.received)
        later = self.network.clock.random.random
        there.loop.after(later() * MOST_DELAY_S, lambda: other.take_up(over_there))
        self._loop.after(later() * MOST_DELAY_S, lambda: self.take_up(here))
        return True

    def _dial(self) -> None:
        if self._addresses and not self._is_dialling and self._wants_connection():
            self._is_dialling = True
            self._refused_at = None
            self._loop.after(0.001, self._try)

    def _try(self) -> None:
        network = self.network
        if not self._wants_connection() or self._connect():
            self._is_dialling = False
        else:
            now = network.clock.now
            self._refused_at = self._refused_at or now
            if now - self._refused_at > 1.0 and self._has_no_way:
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


class Host(Gateway):
    """A host of the simulation, whose processes answer at once."""

    def __init__(self, network: Network, number: int, fan_out: int) -> None:
        self.network = network
        self.loop = Loop(network.clock)
        self.got: dict[int, list[int]] = {}
        self.answers: Counter[tuple[int, int]] = Counter()
        self.lost: list[int] = []
        self.takers = {number << HOST_SHIFT | each: self._taker(each) for each in range(1, 4)}
        super().__init__(
            Path("/nowhere"),
            number,
            self.loop,
            TIMING,
            on_lost=lambda host, *_: self.lost.append(host),
            here=self.takers,
            fan_out=fan_out,
        )

    def _new_inbox(self):
        return None

    @property
    def has_asked_for_a_way(self) -> bool:
        """Tell whether it wants the controller to go on through another host."""
        link = self._routes.controller
        return isinstance(link, SimulatedLink) and link.has_asked

    def find(self, session: bytes) -> Link | None:
        return self._link_of(session)

    def close_quietly(self) -> None:
        self._local.close()

    def _hand_out(self, cast: Cast) -> None:
        for process, bodies in cast.messages():
            self.takers[process](bodies)

    def _taker(self, serial: int):
        def take(bodies) -> None:
            for message in frames.open_frames(bodies):
                self._take(message, serial)

        return take

    def _take(self, message, serial: int) -> None:
        process = self.host << HOST_SHIFT | serial
        if message.kind == frames.FOLD:
            port, groups = unfold(message.payload)
            for group in groups:
                for run in group.runs:
                    self.answers.update((port, member) for member, _ in run.members())
        elif message.kind == frames.REPLY:
            self.answers[message.port, message.source] += 1
        else:
            self.got.setdefault(process, []).append(message.tag)
            if message.reply:
                fields = (message.rank, 0, message.reply, process, 0)
                answer = HEADER.pack(frames.REPLY, 0, 0, *fields) + b"None"
                caller = message.source
                self._send_all(caller, self._folder.take(process, caller, [answer]))


class Network:
    """A controller and its hosts. `hosts_dial`: else the controller does."""

    def __init__(self, seed: int, hosts: int, fan_out: int, monkeypatch, *, hosts_dial: bool):
        self.clock = Clock(seed)
        monkeypatch.setattr("monarch_nb.net.hosts.link.time", self.clock)
        monkeypatch.setattr(SimulatedLink, "network", self, raising=False)
        monkeypatch.setattr(gateway_module, "Link", SimulatedLink)
        self.seen: Counter[str] = Counter()
        outgoing, incoming = _counting(self.seen)
        monkeypatch.setattr("monarch_nb.net.hosts.link.Outgoing", outgoing)
        monkeypatch.setattr("monarch_nb.net.hosts.link.Incoming", incoming)
        self.fan_out = fan_out
        self.hosts_dial = hosts_dial
        self.controller = Host(self, CONTROLLER, fan_out)
        self.hosts = {number: Host(self, number, fan_out) for number in range(2, 2 + hosts)}
        self.dead: set[int] = set()
        for host in self.hosts.values():
            self._join(host)

    def _join(self, host: Host) -> None:
        secret, number = Secret.new(), host.host
        host.serve(CONTROLLER, secret, [str(CONTROLLER)] if self.hosts_dial else [])
        to = [] if self.hosts_dial else [str(number)]
        self.controller.link(number, secret, [str(number)], to)

    def close(self) -> None:
        for host in (self.controller, *self.hosts.values()):
            host.close_quietly()

    def host(self, number: int) -> Host:
        return self.controller if number == CONTROLLER else self.hosts[number]

    # the network

    def kill(self, number: int) -> None:
        """End a host: its connections are closed, and it says nothing more."""
        host = self.hosts[number]
        self.seen["deaths of hosts that carried"] += number in self.carriers()
        self.seen["deaths"] += 1
        self.dead.add(number)
        for link in host.links:
            if link.connected_by is not None:
                link.connected_by.close()
        host.loop.is_over = True

    def break_connection(self, number: int) -> None:
        """Close a connection of a host, with what is on its way on it."""
        if (mine := self._some_connection(number)) is not None:
            self.seen["broken connections"] += 1
            mine.break_off()
            mine.other.break_off()

    def freeze_connection(self, number: int, seconds: float) -> None:
        """Let nothing more arrive on a connection of a host for so long."""
        if (mine := self._some_connection(number)) is not None:
            self.seen["frozen connections"] += 1
            mine.freeze(seconds)
            mine.other.freeze(seconds)

    def lose_direct_link(self, number: int) -> None:
        """Have a host give up a link to another host than the controller's, with what is there."""
        direct = [each for each in self.hosts[number].links if each.host != CONTROLLER]
        if direct:
            self.seen["direct links given up"] += 1
            self.clock.random.choice(direct).lose("the test has it so")

    def _some_connection(self, number: int) -> Socket | None:
        found = [each.connected_by for each in self.hosts[number].links if each.connected_by]
        return self.clock.random.choice(found) if found else None

    # what the controller does

    def processes(self, hosts) -> list[int]:
        return [host << HOST_SHIFT | each for host in hosts for each in (1, 2)]

    @property
    def own(self) -> int:
        return CONTROLLER << HOST_SHIFT | 1

    def cast(self, hosts, tag: int, reply: int, *, as_runs=None) -> None:
        runs = as_runs or runs_of((each, at) for at, each in enumerate(self.processes(hosts)))
        header = HEADER.pack(frames.CALL, 0, 0, 0, tag, PORT, self.own, reply)
        Gateway.cast(self.controller, self.own, Cast(runs, [header]))

    def call(self, process: int, tag: int, reply: int) -> None:
        header = HEADER.pack(frames.CALL, 0, 0, 0, tag, PORT, self.own, reply)
        self.controller.send(self.own, process, [header])

    def carriers(self) -> set[int]:
        """Those through which the controller reaches others."""
        return {each.through for each in self.controller.links if each.through is not None}

    def connected(self) -> list[int]:
        return [each.host for each in self.controller.links if each.through is None]
