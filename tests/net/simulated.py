"""Many hosts in one thread: real gateways and links, with a simulated network, clock and loop.

Connections break or stand still, and hosts die, when the script of a test says so. Nothing else is
simulated: tunnels, casts, folds, sessions and where hosts are in the tree are the real ones. Agents
and ranks there are none: those are in `tests/simulation`, as are the clock and the network.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from monarch_nb.core.casting import Cast, runs_of
from monarch_nb.core.reply_folding import unfold
from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import HEADER, HOST_SHIFT
from monarch_nb.net.hosts.gateway import Gateway
from monarch_nb.net.hosts.handshake import Secret
from monarch_nb.net.hosts.link import Timing
from tests.simulation import sockets
from tests.simulation.clock import Clock, Loop
from tests.simulation.sockets import MOST_DELAY_S, SimulatedHost, SimulatedLink, Socket

TIMING = Timing(pulse_s=0.5, silent_s=1.5, outage_s=30.0)
CONTROLLER = 1
PORT = 7


class Host(SimulatedHost):
    """A host of the simulation, whose processes answer at once."""

    def __init__(self, network: Network, number: int, fan_out: int) -> None:
        self.got: dict[int, list[int]] = {}
        self.answers: Counter[tuple[int, int]] = Counter()
        self.lost: list[int] = []
        self.takers = {number << HOST_SHIFT | each: self._taker(each) for each in range(1, 4)}
        super().__init__(
            Path("/nowhere"),
            number,
            Loop(network.clock),
            TIMING,
            on_lost=lambda host, *_: self.lost.append(host),
            here=self.takers,
            fan_out=fan_out,
        )

    @property
    def has_asked_for_a_way(self) -> bool:
        """Tell whether it wants the controller to go on through another host."""
        link = self._routes.controller
        return isinstance(link, SimulatedLink) and link.has_asked

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
        self.seen: Counter[str] = Counter()
        sockets.use(self, self.seen, monkeypatch)
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

    def at(self, address: str) -> Host:
        return self.controller if int(address) == CONTROLLER else self.hosts[int(address)]

    def delay_s(self, _here: int, _there: int) -> float:
        return self.clock.random.random() * MOST_DELAY_S

    def is_cut(self, _here: int, _there: int) -> bool:
        return False

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
