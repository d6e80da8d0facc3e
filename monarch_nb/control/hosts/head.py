"""The head of jobs: where hosts that a launcher has started join this controller.

It listens once a job needs it, with a key pair of its own. The keys of a ticket are let in while
hosts of its job are missing; who may join, and as which host, `places.py` decides. Where meshes are
kept, the next controller has a head with the same keys at the same addresses (`KeptHead`), at which
their hosts look for it.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from monarch_nb.control.hosts.places import Places
from monarch_nb.control.keeping.kept_record import KeptHead, KeptJob
from monarch_nb.core.wire.messages.codec import Done, Refused
from monarch_nb.core.wire.messages.hosts import LetGo, Offer, Taken
from monarch_nb.errors import LaunchError
from monarch_nb.host.interfaces import reachable_at
from monarch_nb.host.versions import versions, why_unfit
from monarch_nb.net import wire
from monarch_nb.net.hosts.gateway import Gateway
from monarch_nb.net.hosts.handshake import Secret
from monarch_nb.net.hosts.joining import AllowList, Answer, JoinServer, Ticket
from monarch_nb.net.keys import KeyPair
from monarch_nb.net.loop import Loop

TAKEN_PORT: Final = (
    "{}. The hosts of the mesh look for their kernel there: end what listens at that address "
    "(ss -lp shows it), then type %mesh attach again"
)


class _Job(NamedTuple):
    keys: bytes  # that are let in while some are missing
    hosts: Sequence[int]


class HeadEvents(NamedTuple):
    """`joined(host, offer)` once for each host that has come, `refused(host, why)` for one that
    cannot be taken; `is_kept(host)` tells whether one that is lost may go on, for the next
    controller; `let_go(asked)` leaves the kept hosts to another one. In the thread of who joins."""

    joined: Callable[[int, Offer], None]
    refused: Callable[[int, str], None]
    is_kept: Callable[[int], bool]
    let_go: Callable[[LetGo], Done | Refused]


class Head:
    """Takes hosts into jobs, and links them to the gateway of this controller."""

    def __init__(
        self,
        run_dir: Path,
        gateway: Gateway,
        loop: Loop,
        controller: int,
        events: HeadEvents,
        kept: KeptHead | None = None,
    ) -> None:
        self._gateway = gateway
        self._loop = loop
        self._controller = controller
        self._events = events
        self._versions = versions()
        self._keys = KeyPair.new() if kept is None else kept.keys
        self._allowed = AllowList()
        self._jobs: dict[str, _Job] = {}
        self._places = Places(events.is_kept)
        self._addresses: dict[str | None, list[str]] = {}
        self._listens: dict[str | None, str] = {}
        self._is_keeping = False
        self._joins = JoinServer(
            run_dir,
            self._keys,
            self._allowed,
            Answer(Offer, self._take),
            Answer(LetGo, events.let_go),
        )
        if kept is not None:
            self._go_on(kept)

    def invite(self, hosts: Sequence[int], address: str | None) -> Ticket:
        """Let so many hosts join, which get these numbers in the order of their places.

        They are listened for at `address`; None: on every interface. Raises as
        `wire.listen_for_hosts`.
        """
        addresses = self._listen(address)
        job, pair = uuid.uuid4().hex, KeyPair.new()
        self._jobs[job] = _Job(pair.public, hosts)
        self._places.invite(job, hosts)
        self._allowed.add(pair.public)
        head = self._keys.public.decode()
        return Ticket(job, addresses, head, pair.public.decode(), pair.secret.decode(), {})

    def keep(self) -> KeptHead:
        """Let hosts that have joined look here again, and return what the next controller needs to
        be found there. Any thread."""
        self._is_keeping = True
        self._allowed.add(self._keys.public)  # who has the pair may have the hosts
        for job in self._jobs.values():
            self._allowed.add(job.keys)
        return KeptHead(
            self._keys.public.decode(),
            self._keys.secret.decode(),
            list(self._listens.items()),
            [KeptJob(name, job.keys.decode(), [*job.hosts]) for name, job in self._jobs.items()],
        )

    def _go_on(self, kept: KeptHead) -> None:
        for job in kept.jobs:
            self._jobs[job.id] = _Job(job.keys.encode(), job.hosts)
            self._places.await_back(job.id, job.hosts)
        self.keep()
        try:
            for asked, at in kept.listens:
                self._listen_at(asked, at)
        except LaunchError as error:
            self.close()
            raise LaunchError(TAKEN_PORT.format(error)) from None

    def leave(self) -> None:
        """Have no host back any more, and end none: another controller takes them. Any thread."""
        self._places.leave()

    def give_up(self, host: int) -> None:
        """Let a host join no more. Its key stays good for being told so. Any thread."""
        self._places.give_up(host)

    def close(self) -> None:
        self._joins.close()

    def _listen(self, address: str | None) -> list[str]:
        if address not in self._addresses:
            self._listen_at(address, address)
        return self._addresses[address]

    def _listen_at(self, asked: str | None, address: str | None) -> None:
        listener = wire.listen_for_hosts(address, anywhere=True)
        at = self._listens[asked] = wire.listens_at(listener)
        self._loop.call(functools.partial(self._gateway.listen, listener))
        self._addresses[asked] = reachable_at(at)

    def _take(self, offered: Offer) -> Taken | Refused:
        # the thread of who joins
        secret = self._gateway.awaited(offered.host)
        place = self._places.find(offered, is_coming=secret is not None)
        if isinstance(place, Refused):
            return place
        why = None if place.is_back else why_unfit(self._versions, offered.versions)
        if why is not None:
            self._events.refused(place.host, f"{offered.name}: {why}")
            return Refused(f"{offered.name}: {why}")
        if secret is not None:  # the answer was lost
            return Taken(place.host, self._controller, secret.to_text())
        self._places.fill(place)
        if place.is_last and not self._is_keeping:
            self._allowed.remove(self._jobs[place.job].keys)
        return self._taken(place.host, offered, is_back=place.is_back)

    def _taken(self, host: int, offered: Offer, *, is_back: bool) -> Taken:
        secret, others = Secret.new(), offered.addresses
        self._loop.call(lambda: self._gateway.link(host, secret, others, [], is_back=is_back))
        self._events.joined(host, offered)
        return Taken(host, self._controller, secret.to_text())
