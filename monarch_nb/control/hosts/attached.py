"""Hosts that are attached, dialled through a gateway in the controller's inbox thread.

Loaded when the first host is attached: the kernel's start does not wait for what encrypts.
"""

from __future__ import annotations

import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final, NamedTuple

from monarch_nb.config import Config
from monarch_nb.control.hosts.head import Head, HeadEvents
from monarch_nb.control.hosts.listing import ListedHost, Peer
from monarch_nb.control.hosts.replacements import HostGroup, Replacements
from monarch_nb.control.keeping.kept_record import KeptHead
from monarch_nb.core.wire.messages.codec import Done, Refused
from monarch_nb.core.wire.messages.hosts import PROTOCOL, Join, Joined, LetGo, Offer
from monarch_nb.host.lending import Lending
from monarch_nb.host.versions import difference, versions
from monarch_nb.net import wire
from monarch_nb.net.hosts.gateway import Gateway, GatewayRelay
from monarch_nb.net.hosts.handshake import Secret
from monarch_nb.net.hosts.joining import OTHER_KEYS, Joins, Ticket
from monarch_nb.net.hosts.link import Timing
from monarch_nb.net.known_hosts import Trust, fingerprint
from monarch_nb.net.links import Links
from monarch_nb.process.exit import Exit
from monarch_nb.process.futures.future import Future, make

_NOT_ATTACHED: Final = "attach failed: config push failed during attach: {}: {}"  # as Monarch says
_NOT_JOINED: Final = "{} did not join: {}"
_START_A_WORKER: Final = "A worker that offers its host there again will be used."
_GOES_ON: Final = (
    "; what runs there is kept. When the network is back, %mesh attach brings it here again, and "
    "%mesh heal gives it up"
)
REVOKED: Final = "it was revoked"
_log: Final = logging.getLogger(__name__)
OnHostLost = Callable[[int, str, float | None], None]
"""The number of a host, why it is lost, and for how long it was silent; None: it never was ours."""
Explain = Callable[[int, str, Callable[[str], None]], None]
"""A host that was lost, what is known of that, and who is to be told more; any thread may."""


class HostKeeping(NamedTuple):
    """`is_kept(host)`: whether its ranks may go on without this controller; `let_go(asked)` leaves
    them to another one."""

    is_kept: Callable[[int], bool]
    let_go: Callable[[LetGo], Done | Refused]


class AttachedHosts:
    """The client's end: a gateway in its inbox thread, and the hosts that it has dialled.

    A host's number is chosen here; with it come the ids of its gateway, its agent and its ranks.
    """

    def __init__(
        self,
        links: Links,
        own_host: int,
        config: Config,
        controller: int,
        on_lost: OnHostLost,
        on_pulse: Callable[[int, float | None], None],
        dead: Mapping[int, Exit],
        silent: Container[int],
        keeping: HostKeeping,
    ) -> None:
        self._dead, self._silent = dead, silent
        self._keeping = keeping
        self._gateway = Gateway(
            links.run_dir,
            own_host,
            links.loop,
            Timing.of(config),
            on_lost=self._lost,
            on_pulse=on_pulse,
            here={links.process: links.take},
            fan_out=config.fan_out,
            lender=Lending(config.shared_bytes, config.shared_threshold_bytes),
            watch=self._watch,
        )
        links.relay_through(GatewayRelay(self._gateway, links.process))
        self._links = links
        self._loop = links.loop
        self._controller = controller
        self._versions = versions()
        self._numbers = itertools.count(own_host + 1)
        self.ready: dict[int, Future[bool]] = {}
        self.names: dict[int, str] = {}
        """By number, for people."""
        self.replacements = Replacements(dead, silent, self.names, self.ready)
        self._limits: list[threading.Timer] = []
        self._dialled: dict[int, _Dialled] = {}
        self._explained: dict[int, Explain] = {}
        self.hostnames: dict[int, str] = {}
        """By number, of those that were asked for under another name and have come."""
        self._since: dict[int, float] = {}  # when each has come, in seconds since the epoch
        self._head: Head | None = None
        self._heads_left: list[Head] = []  # to another controller, which may wait for an answer
        self._is_over = False
        self._on_lost = on_lost
        self._joins = Joins(self._joined, self._failed)

    def attach(
        self,
        addresses: Sequence[str],
        trust: Trust,
        limit_s: Callable[[], float],
        spares: int,
    ) -> list[int]:
        """Attach hosts, so many spares the last of them; return their numbers. They are dialled
        again when others are wanted in the place of lost ones. One that is attached already is the
        same host, unless spares are wanted: nobody else may use those."""

        def again(host: int) -> int:
            return self.dial(self.names[host], trust, limit_s(), instead_of=host)

        mine = {} if spares else self._dialled_and_alive(trust)
        new = [self.dial(each, trust, limit_s()) for each in addresses if each not in mine]
        group = HostGroup(list(new), new[len(new) - spares :], again, _START_A_WORKER)
        self.replacements.add(group)
        dialled = iter(new)
        return [mine[each] if each in mine else next(dialled) for each in addresses]

    def _dialled_and_alive(self, trust: Trust) -> dict[str, int]:
        # those that have shown the key which they must show now
        def is_alive(host: int) -> bool:
            ready = self.ready[host]
            has_failed = ready.done() and ready.exception(0) is not None
            return not has_failed and wire.agent_id(host) not in self._dead

        def is_same(each: _Dialled) -> bool:
            return each.trust.key_at(each.address) == trust.key_at(each.address)

        dialled = self._dialled.items()
        return {each.address: host for host, each in dialled if is_same(each) and is_alive(host)}

    def dial(self, address: str, trust: Trust, limit_s: float, instead_of: int = 0) -> int:
        """Attach the host that is offered at an address; return its number. `instead_of`: the
        number under which it was ours before and is lost."""
        host = next(self._numbers)
        self.ready[host] = make(Future)
        dialled = self._dialled[host] = _Dialled(address, Secret.new(), trust)
        self.names[host] = address
        self._gateway.expect(host)
        secret = dialled.secret.to_text()
        question = Join(PROTOCOL, self._versions, host, self._controller, secret, instead_of)
        self._joins.ask(host, address, trust.pair, trust.key_at(address), question)
        limit = threading.Timer(limit_s, self._too_late, (host, limit_s))
        limit.daemon = True
        limit.name = "monarch-attach"
        limit.start()
        self._limits.append(limit)
        self.ready[host].add_done_callback(lambda _: limit.cancel())
        return host

    def _too_late(self, host: int, limit_s: float) -> None:
        self._joins.give_up(host)
        why = f"no answer within {limit_s:g} s; is a worker running there with the same keys?"
        self._failed(host, why)

    def invite(
        self, names: Sequence[str], address: str | None, explain: Explain | None
    ) -> tuple[list[int], Ticket]:
        """Expect hosts that join with a ticket; return their numbers, and the ticket.

        With `explain`, a host that is lost later is told of once that has said why.

        Raises as `wire.listen_for_hosts`.
        """
        if self._head is None:
            self._head = self._new_head(None)
        hosts = [next(self._numbers) for _ in names]
        for host, name in zip(hosts, names, strict=True):
            self.ready[host] = make(Future)
            self.names[host] = name
            if explain is not None:
                self._explained[host] = explain
            self._gateway.expect(host)
        return hosts, self._head.invite(hosts, address)

    def _new_head(self, kept: KeptHead | None) -> Head:
        is_kept, let_go = self._keeping
        events = HeadEvents(self._came, self._failed, is_kept, let_go)
        run_dir = self._links.run_dir
        return Head(run_dir, self._gateway, self._loop, self._controller, events, kept)

    # hosts of kept meshes

    def keep(self) -> KeptHead | None:
        """Let hosts that have joined look for their controller here when they have lost it; what
        the next one needs for them to find it. None where no host has joined."""
        return None if self._head is None else self._head.keep()

    def go_on(self, kept: KeptHead, names: Mapping[int, str]) -> None:
        """Be who hosts of these names look for, whose controller has gone: they join under the
        numbers that they have. Raises `LaunchError` where the address is taken."""
        for host, name in names.items():
            self.ready[host] = make(Future)
            self.names[host] = name
            self._gateway.expect(host)
        self._numbers = itertools.count(max(names) + 1)
        self._head = self._new_head(kept)

    def not_back(self, host: int, why: str) -> None:
        """Give up a host that has not come back, or has and whose agent has said nothing: it is
        lost here, and the next controller may have it. Any thread but the loop's."""
        if self._head is not None:
            self._head.give_up(host)

        def lose() -> None:
            if wire.agent_id(host) in self._dead:
                return
            if self.ready[host].done():
                self._gateway.let_go(host)
            else:
                self._gateway.give_up(host)
                self.ready[host]._set_exception(RuntimeError(f"{self.names[host]}: {why}"))
            self._on_lost(host, f"{self.names[host]}: {why}", 0.0)

        self._loop.call(lose)

    def leave(self, why: str) -> None:
        """Leave all hosts, whose ranks go on, to another controller, and let nobody else come. Any
        thread but the loop's."""
        self._loop.call(self._gateway.accept_no_more)
        if self._head is not None:
            self._head.leave()
            self._heads_left.append(self._head)
            self._head = None
        hosts = [host for host in self.names if self._is_here(host)]
        for host in hosts:
            self._explained.pop(host, None)
            self._loop.call(functools.partial(self._gateway.let_go, host))
        for host in hosts:  # now that none of them can be told that others are lost: they are not
            self._on_lost(host, why, 0.0)

    def called(self, host: int) -> str:
        """Return what to call a host of these: where it was asked for, and what it calls itself."""
        known = self.hostnames.get(host)
        return self.names[host] if known is None else f"{self.names[host]} ({known})"

    def give_up(self, host: int, why: str) -> None:
        """End the wait for a host that will not come, and may not any more. Any thread."""
        if self._head is not None:
            self._head.give_up(host)
        self._failed(host, why)

    def revoke(self, host: int) -> None:
        """Have a host no more: its ranks end, and it is asked for no more. Any thread but the
        loop's."""
        self.replacements.bar(host)
        self._explained.pop(host, None)
        self._joins.give_up(host)
        self.give_up(host, REVOKED)
        self._loop.call(functools.partial(self._gateway.turn_out, host, REVOKED))

    def hears(self, host: int) -> bool:
        """Tell whether there is a way to a host, on which it says something. Any thread."""
        link = next((each for each in self._gateway.links if each.host == host), None)
        return link is not None and (link.is_connected or link.through is not None)

    def listed(self) -> list[ListedHost]:
        """Return the hosts that there are, or are to be; of those that are lost the last at each
        place. Any thread."""
        peers = {link.host: Peer(link.peer, link.through) for link in self._gateway.links}
        newest = {self.names[host]: host for host in self.names}
        return [
            self._listed(host, peers.get(host, Peer("", None)))
            for host in self.names
            if self._is_here(host) or newest[self.names[host]] == host
        ]

    def _listed(self, host: int, peer: Peer) -> ListedHost:
        address = peer.address
        if peer.through is not None:
            address = f"through {self.called(peer.through)}"
        name, since = self.called(host), self._since.get(host)
        return ListedHost(host, name, address, self._key(host), since, self._state(host))

    def _key(self, host: int) -> str:
        dialled = self._dialled.get(host)
        if dialled is None:
            return "the ticket of its job"
        return fingerprint(dialled.trust.key_at(dialled.address))

    def _state(self, host: int) -> str:
        ready, ended = self.ready[host], self._dead.get(wire.agent_id(host))
        if not ready.done():
            return "joining"
        if (failed := ready.exception(0)) is not None:
            return str(failed)
        if ended is not None:
            return ended.reason or ended.plainly()
        return "cannot be heard" if wire.agent_id(host) in self._silent else "here"

    def _is_here(self, host: int) -> bool:
        return self._state(host) in ("joining", "here", "cannot be heard")

    def _came(self, host: int, offered: Offer) -> None:
        # the thread of who joins; the host is linked
        if (differs := difference(self._versions, offered.versions)) is not None:
            _log.warning("%s: %s", offered.name, differs)
        if offered.name != self.names[host]:
            self.hostnames[host] = offered.name
        self._since[host] = time.time()
        self.ready[host]._set_result(True)

    def process_ended(self, ended: Exit) -> None:
        """Hold nothing for a process of this host, which has ended. Any thread."""
        self._loop.soon(functools.partial(self._gateway.ended, ended.process))

    def _watch(self, process: int) -> None:
        # the client is told of all ends; this may have been one of the past
        if (ended := self._dead.get(process)) is not None:
            self.process_ended(ended)

    # the thread that joins

    def _joined(self, host: int, joined: Joined) -> None:
        dialled = self._dialled[host]
        if (differs := difference(self._versions, joined.versions)) is not None:
            _log.warning("%s: %s", dialled.address, differs)

        def link() -> None:
            others = list(dict.fromkeys([dialled.address, *joined.addresses]))
            self._gateway.link(host, dialled.secret, others, [dialled.address])
            self._since[host] = time.time()
            self.ready[host]._set_result(True)

        self._loop.soon(link)

    def _failed(self, host: int, why: str) -> None:
        if not self._is_over:  # else nobody waits any more
            self._loop.soon(functools.partial(self._not_attached, host, why))

    # the inbox thread

    def _not_attached(self, host: int, why: str) -> None:
        if self.ready[host].done():
            return  # it has answered meanwhile
        self._gateway.give_up(host)
        dialled = self._dialled.get(host)
        how = _NOT_JOINED if dialled is None else _NOT_ATTACHED
        if dialled is not None and why == OTHER_KEYS:
            why = f"{why}. {dialled.trust.advice(dialled.address)}"
        text = how.format(self.names[host], why)
        self.ready[host]._set_exception(RuntimeError(text))
        self._on_lost(host, text, None)

    def _lost(self, host: int, why: str, silent_s: float | None) -> None:
        if silent_s is not None and self._keeping.is_kept(host):
            why += _GOES_ON
        name = self.called(host)

        def tell(words: str) -> None:
            self._on_lost(host, f"{name}: {words}", silent_s or 0.0)

        explain = self._explained.get(host)
        if explain is None:
            tell(why)
        else:
            explain(host, why, lambda words: self._loop.soon(functools.partial(tell, words)))

    def close(self) -> None:
        self._is_over = True
        for limit in self._limits:
            limit.cancel()
            limit.join()
        self._joins.close()
        for head in (self._head, *self._heads_left):
            if head is not None:
                head.close()
        self._gateway.close()


class _Dialled(NamedTuple):
    address: str
    secret: Secret
    trust: Trust
