"""Which hosts may join the jobs of a controller, and under which number: each place is taken once.

Pure. Hosts of kept meshes, whose controller has gone, look for the next one: they are let in once
each, under the numbers that they have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from monarch_nb.core.wire.messages.codec import Refused
from monarch_nb.core.wire.messages.hosts import OVER, Offer


class Place(NamedTuple):
    """The number of a host that may join, with its job. `is_back`: it had it before; `is_last`:
    nobody else is missing."""

    host: int
    job: str
    is_back: bool
    is_last: bool


class Places:
    """Those of the jobs of one controller. `is_kept(host)` tells whether one that is lost may go
    on, for the next controller."""

    def __init__(self, is_kept: Callable[[int], bool]) -> None:
        self._is_kept = is_kept
        self._hosts: dict[str, Sequence[int]] = {}  # by job, in the order of their places
        self._missing: dict[str, set[int]] = {}  # places, by job
        self._awaited: set[int] = set()  # hosts that are to come back
        self._has_left = False

    def invite(self, job: str, hosts: Sequence[int]) -> None:
        """Let so many hosts join a job, which get these numbers in the order of their places."""
        self._hosts[job], self._missing[job] = hosts, set(range(len(hosts)))

    def await_back(self, job: str, hosts: Sequence[int]) -> None:
        """Let the hosts come back that another controller has left."""
        self._hosts[job], self._missing[job] = hosts, set()
        self._awaited.update(hosts)

    def leave(self) -> None:
        """Let nobody join any more, and end none: another controller takes them."""
        self._has_left = True

    def give_up(self, host: int) -> None:
        """Let a host join no more."""
        self._awaited.discard(host)
        for job, hosts in self._hosts.items():
            if host in hosts:
                self._missing[job].discard(hosts.index(host))

    def find(self, offered: Offer, *, is_coming: bool = False) -> Place | Refused:
        """Say under which number a host may join, or why it may not. `is_coming`: it was let in and
        is not there yet, so the answer was lost."""
        if self._has_left:
            return Refused("another controller takes the hosts of this one")
        hosts = self._hosts.get(offered.job)
        if hosts is None:
            return Refused("this controller has no such job")
        if offered.host:
            return self._find_back(offered, hosts, is_coming=is_coming)
        if not 0 <= offered.index < len(hosts):
            return Refused(f"the job has the places 0 to {len(hosts) - 1}, not {offered.index}")
        missing = self._missing[offered.job]
        if offered.index not in missing:
            return Refused(f"place {offered.index} of the job is taken, or was given up")
        return Place(hosts[offered.index], offered.job, is_back=False, is_last=len(missing) == 1)

    def _find_back(
        self, offered: Offer, hosts: Sequence[int], *, is_coming: bool
    ) -> Place | Refused:
        host = offered.host
        if host not in hosts:
            return Refused("the job has no such host", OVER)
        if host in self._awaited or is_coming:
            return Place(host, offered.job, is_back=True, is_last=False)
        if self._is_kept(host):
            return Refused("this controller has given the host up; the next one may have it")
        return Refused("the host is wanted no more", OVER)

    def fill(self, place: Place) -> None:
        """Note that the host has joined there."""
        self._awaited.discard(place.host)
        self._missing[place.job].discard(self._hosts[place.job].index(place.host))
