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

    def add(self, host: int, addresses: Sequence[str], *, is_back: bool = False) -> None:
        """Note where other hosts may reach this one. `is_back`: another controller has had it, so
        it may know others that are."""
        self._addresses[host] = addresses
        self._met[host] = set()
        if is_back:
            self._knew.add(host)

    def introduce(self, asks: int, host: int) -> Told:
        """Make the two known to each other, unless they are."""
        if asks not in self._met:
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
