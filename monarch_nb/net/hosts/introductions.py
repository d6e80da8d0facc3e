"""Who makes two hosts known to each other: the controller, which both trust. Pure.

The first message between two hosts has the controller choose a secret for the two, and tell one of
them to connect to the other. So their messages and data go directly, and no host has to know the
keys of another.
"""

from __future__ import annotations

from collections.abc import Sequence

from monarch_nb.core.wire.messages.hosts import Expect, HostGone, Meet
from monarch_nb.net.hosts.handshake import Secret

Told = list[tuple[int, object]]
"""Messages, each with the host to which it goes."""


class Introductions:
    """Which hosts there are, and which of them know each other."""

    def __init__(self) -> None:
        self._addresses: dict[int, Sequence[str]] = {}
        self._met: dict[int, set[int]] = {}
        self._knew: set[int] = set()  # that may know each other from another controller
        self._asked: dict[int, list[int]] = {}  # for a host that is to come: by whom

    def expect(self, host: int) -> None:
        """Let those wait that ask for this host: it is to come, or to come back."""
        self._asked.setdefault(host, [])

    def give_up(self, host: int) -> Told:
        """Have this host not come; those that wait for it are told."""
        return [(each, HostGone(host)) for each in self._asked.pop(host, ())]

    def add(self, host: int, addresses: Sequence[str], *, is_back: bool = False) -> Told:
        """Note where other hosts may reach this one, and make it known to those that wait for it.
        `is_back`: another controller has had it, so it may know others that are."""
        self._addresses[host] = addresses
        self._met[host] = set()
        if is_back:
            self._knew.add(host)
        asked = self._asked.pop(host, ())
        return [told for each in asked for told in self.introduce(each, host)]

    def introduce(self, asks: int, host: int) -> Told:
        """Make the two known to each other, unless they are."""
        if asks not in self._met:
            return []
        if host in self._asked:
            self._asked[host].append(asks)
            return []
        if host not in self._met or host == asks:
            return [(asks, HostGone(host))]
        if host in self._met[asks]:
            return []
        self._met[asks].add(host)
        self._met[host].add(asks)
        secret = Secret.new().to_text()
        there = list(self._addresses[host])
        return [(host, Expect(asks, secret)), (asks, Meet(host, secret, there))]

    def remove(self, host: int) -> Told:
        """Forget a host that is lost; those that know it are told."""
        self._addresses.pop(host, None)
        known = self._met.pop(host, set())
        for each in known:
            self._met[each].discard(host)
        if host in self._knew:
            self._knew.discard(host)
            known = known | self._knew
        return [(each, HostGone(host)) for each in sorted(known)]
