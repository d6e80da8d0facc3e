"""The processes of one host, and how they reach each other and those of other hosts.

Messages of one process to another arrive in order, each after a time of its own, also those of a
process that has died meanwhile. What is for a process that is not there yet waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from monarch_nb.core.casting import Cast
from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import HEADER, HOST_SHIFT, Buffer, Message
from monarch_nb.net import wire
from monarch_nb.net.hosts.gateway import GatewayRelay
from tests.simulation.clock import Clock, Loop

NOWHERE = Path("/nowhere")
Take = Callable[[Sequence[Buffer]], None]
_MOST_DELAY_S = 0.002
_LATE = 0.01
_LATE_S = 1.0


class Site:
    """One host. `dawdles`: now and then a process waits for a processor, for up to a second."""

    def __init__(self, clock: Clock, host: int, *, dawdles: bool) -> None:
        self.host = host
        self.is_over = False
        self._clock = clock
        self._dawdles = dawdles
        self._takers: dict[int, Take] = {}
        self._waiting: dict[int, list[Sequence[Buffer]]] = {}
        self._ended: set[int] = set()
        self._arrives_at: dict[tuple[int, int], float] = {}

    def post(self, source: int, process: int, bodies: Sequence[Buffer]) -> None:
        if self.is_over or process in self._ended:
            return
        clock, flow = self._clock, (source, process)
        is_late = self._dawdles and clock.random.random() < _LATE
        soonest = clock.now + clock.random.random() * (_LATE_S if is_late else _MOST_DELAY_S)
        at = self._arrives_at[flow] = max(soonest, self._arrives_at.get(flow, 0.0) + 1e-7)
        clock.after(at - clock.now, lambda: self._arrive(process, bodies))

    def _arrive(self, process: int, bodies: Sequence[Buffer]) -> None:
        if self.is_over or process in self._ended:
            return
        if (take := self._takers.get(process)) is None:
            self._waiting.setdefault(process, []).append(bodies)
        else:
            take(bodies)

    def begin(self, process: int, take: Take) -> None:
        """Give a process what is for it, from now on."""
        self._takers[process] = take
        for bodies in self._waiting.pop(process, ()):
            take(bodies)

    def end(self, process: int) -> None:
        """Drop what is for a process: it has died."""
        self._takers.pop(process, None)
        self._waiting.pop(process, None)
        self._ended.add(process)


class Reached(Mapping[int, Take]):
    """What a gateway knows as the processes of its host: whichever there are. `own` is given what
    comes to it at once: the gateway is a part of it."""

    def __init__(self, site: Site, own: Mapping[int, Take]) -> None:
        self._site = site
        self._own = own

    def __getitem__(self, process: int) -> Take:
        if (take := self._own.get(process)) is not None:
            return take
        gateway = wire.gateway_id(self._site.host)
        return lambda bodies: self._site.post(gateway, process, list(bodies))

    def __iter__(self) -> Iterator[int]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)

    def __bool__(self) -> bool:
        return True


class Place(NamedTuple):
    """Where a process is: what it has in place of a run dir."""

    site: Site
    loop: Loop


class Links:
    """What a process knows as its sockets."""

    held = ()

    def __init__(self, place: Place, process: int, deliver: Callable[[Message], None]) -> None:
        self.process = process
        self._site, self._loop = place
        self._deliver = deliver
        self._came: deque[Sequence[Buffer]] = deque()
        self._relay: GatewayRelay | None = None

    def start(self) -> None:
        self._site.begin(self.process, self.take)

    def relay_through(self, relay: GatewayRelay) -> None:
        """Reach other hosts by a gateway that is a part of this process."""
        self._relay = relay

    def take(self, bodies: Sequence[Buffer]) -> None:
        self._came.append(bodies)
        self._loop.turn(self._read)

    def _read(self) -> None:
        while self._came and not self._loop.is_over:
            for message in frames.open_frames(self._came.popleft()):
                self._deliver(message)

    def send(self, process: int, bodies: Sequence[Buffer]) -> None:
        if process >> HOST_SHIFT == self._site.host and not frames.is_gateway(process):
            self._site.post(self.process, process, bodies)
        elif self._relay is not None:
            self._relay.send(process, bodies)
        else:
            first, *others = bodies
            header = (frames.RELAY, 0, len(others), 0, 0, process, self.process, 0)
            relayed: list[Buffer] = [HEADER.pack(*header) + bytes(memoryview(first)), *others]
            self._site.post(self.process, wire.gateway_id(self._site.host), relayed)

    def cast(self, cast: Cast) -> None:
        if self._relay is not None:
            self._relay.cast(cast)
        else:
            self.send(wire.gateway_id(self._site.host), cast.pack(self.process))

    def outbox(self, process: int) -> Any:
        return _Outbox(self, process)

    def drop(self, process: int) -> None:
        pass

    def is_receiving(self) -> bool:
        return True

    def flush(self) -> None:
        pass


class _Outbox:
    def __init__(self, links: Links, process: int) -> None:
        self._links = links
        self._process = process

    def send(self, frame: bytes) -> None:
        self._links.send(self._process, [frame])

    def send_frames(self, bodies: Sequence[Buffer]) -> None:
        self._links.send(self._process, bodies)
