"""The hosts that a snapshot names. A host keeps its place in the list for good, so that the places
which ranks refer to stay true."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from monarch_nb.control.status.snapshots import HostStatus
from monarch_nb.core.wire.frames import HOST_SHIFT
from monarch_nb.process.exit import Exit


class KnownHosts:
    """By number, in the order in which meshes first used them."""

    def __init__(self) -> None:
        self.places: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._agents: dict[int, list[int]] = {}  # of each host, the newest last
        self._told: tuple[HostStatus, ...] = ()
        self._key = (0, 0)
        self._version = 0

    def use(self, agents: Iterable[int]) -> None:
        """These agents look after ranks."""
        for agent in agents:
            host = agent >> HOST_SHIFT
            self.places.setdefault(host, len(self.places))
            if agent not in (known := self._agents.setdefault(host, [])):
                known.append(agent)
                self._version += 1

    def name(self, agent: int, name: str) -> None:
        """The agent has told what its host is called."""
        self._names[agent >> HOST_SHIFT] = name
        self._version += 1

    def told(self, dead: Mapping[int, Exit]) -> tuple[HostStatus, ...]:
        """The list; the same object while nothing changes."""
        if (key := (self._version, len(dead))) != self._key:
            new = tuple(HostStatus(self._name(each), self._end(each, dead)) for each in self.places)
            self._key, self._told = key, new if new != self._told else self._told
        return self._told

    def _name(self, host: int) -> str:
        """Two workers on one machine are two hosts."""
        name = self._names.get(host, f"host {host}")
        alike = [other for other in self.places if self._names.get(other) == name]
        return f"{name} ({alike.index(host) + 1})" if len(alike) > 1 else name

    def _end(self, host: int, dead: Mapping[int, Exit]) -> str | None:
        ends = [dead.get(agent) for agent in self._agents[host]]
        last = ends[-1]
        return None if None in ends or last is None else last.plainly()
