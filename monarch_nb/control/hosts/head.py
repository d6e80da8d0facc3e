"""The head of jobs: where hosts that a launcher has started join this controller.

It listens once a job needs it, with a key pair of its own. The keys of a ticket are let in while
hosts of its job are missing, and each place in a job is taken once.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from monarch_nb.core.wire.messages.codec import Refused
from monarch_nb.core.wire.messages.hosts import Offer, Taken
from monarch_nb.host.interfaces import reachable_at
from monarch_nb.host.versions import versions, why_unfit
from monarch_nb.net import wire
from monarch_nb.net.hosts.gateway import Gateway
from monarch_nb.net.hosts.handshake import Secret
from monarch_nb.net.hosts.joining import AllowList, Answer, JoinServer, Ticket
from monarch_nb.net.keys import KeyPair
from monarch_nb.net.loop import Loop


class _Job(NamedTuple):
    keys: bytes  # that are let in while some are missing
    hosts: Sequence[int]
    missing: set[int]  # places


class HeadEvents(NamedTuple):
    """`joined(host, offer)` once for each host that has come, `refused(host, why)` for one that
    cannot be taken. In the thread of who joins."""

    joined: Callable[[int, Offer], None]
    refused: Callable[[int, str], None]


class Head:
    """Takes hosts into jobs, and links them to the gateway of this controller."""

    def __init__(
        self, run_dir: Path, gateway: Gateway, loop: Loop, controller: int, events: HeadEvents
    ) -> None:
        self._gateway = gateway
        self._loop = loop
        self._controller = controller
        self._events = events
        self._versions = versions()
        self._keys = KeyPair.new()
        self._allowed = AllowList()
        self._jobs: dict[str, _Job] = {}
        self._addresses: dict[str | None, list[str]] = {}
        self._joins = JoinServer(run_dir, self._keys, self._allowed, Answer(Offer, self._take))

    def invite(self, hosts: Sequence[int], address: str | None) -> Ticket:
        """Let so many hosts join, which get these numbers in the order of their places.

        They are listened for at `address`; None: on every interface. Raises as
        `wire.listen_for_hosts`.
        """
        addresses = self._listen(address)
        job, pair = uuid.uuid4().hex, KeyPair.new()
        self._jobs[job] = _Job(pair.public, hosts, set(range(len(hosts))))
        self._allowed.add(pair.public)
        head = self._keys.public.decode()
        return Ticket(job, addresses, head, pair.public.decode(), pair.secret.decode(), {})

    def give_up(self, host: int) -> None:
        """Let a host join no more. Its key stays good for being told so. Any thread."""
        for job in self._jobs.values():
            if host in job.hosts:
                job.missing.discard(job.hosts.index(host))

    def close(self) -> None:
        self._joins.close()

    def _listen(self, address: str | None) -> list[str]:
        if address not in self._addresses:
            listener = wire.listen_for_hosts(address, anywhere=True)
            self._loop.call(functools.partial(self._gateway.listen, listener))
            self._addresses[address] = reachable_at(wire.listens_at(listener))
        return self._addresses[address]

    def _take(self, offered: Offer) -> Taken | Refused:
        # the thread of who joins
        job = self._jobs.get(offered.job)
        if job is None:
            return Refused("this controller has no such job")
        if not 0 <= offered.index < len(job.hosts):
            return Refused(f"the job has the places 0 to {len(job.hosts) - 1}, not {offered.index}")
        if offered.index not in job.missing:
            return Refused(f"place {offered.index} of the job is taken, or was given up")
        host = job.hosts[offered.index]
        if (why := why_unfit(self._versions, offered.versions)) is not None:
            self._events.refused(host, f"{offered.name}: {why}")
            return Refused(f"{offered.name}: {why}")
        job.missing.discard(offered.index)
        if not job.missing:
            self._allowed.remove(job.keys)
        secret = Secret.new()
        self._loop.call(lambda: self._gateway.link(host, secret, offered.addresses, []))
        self._events.joined(host, offered)
        return Taken(host, self._controller, secret.to_text())
