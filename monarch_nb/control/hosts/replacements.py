"""Hosts that take the place of lost ones: spares, and hosts that join again.

Rules: a spare is joined, or on its way, and holds no ranks; one that is lost is no failure. A place
whose host is lost is asked for a host again when a heal has too few spares; who comes gets a new
number and is a spare until it is used. A host takes one place only, for all meshes.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from monarch_nb.core.wire.frames import HOST_SHIFT
from monarch_nb.net import wire
from monarch_nb.process.exit import Exit
from monarch_nb.process.futures.future import Future

_JOIN_S: Final = 30.0  # one that is dialled ends the wait itself, after `attach_s`
_log: Final = logging.getLogger(__name__)


@dataclass(eq=False)
class HostGroup:
    """Hosts that were asked for together, by their numbers; `spares` are among them.

    `ask_again(host)` asks for another one at the place of a lost one and returns its number; None:
    nobody can be asked. `advice` is what a person does to have it come.
    """

    hosts: list[int]
    spares: list[int]
    ask_again: Callable[[int], int] | None = None
    advice: str = ""

    def give_up(self) -> list[int]:
        """Have no spare any more, and ask for none; return those that there were."""
        spares, self.spares, self.ask_again = self.spares, [], None
        return spares

    def keep_only(self, hosts: Collection[int], spares: Collection[int]) -> None:
        """Forget the other hosts: nobody takes their place."""
        self.hosts = [host for host in self.hosts if host in hosts]
        self.spares = [host for host in self.hosts if host in spares]


def check_spares(spares: int, hosts: int) -> None:
    """Raise `ValueError` unless so many of these hosts can be spares."""
    if not 0 <= spares < hosts:
        raise ValueError(
            f"spares={spares} of {hosts} hosts: there is at least one host that is no spare"
        )


class Replacements:
    """Those of a client. `names`, `ready`: of hosts, by number, as people call them, and whether
    they have joined. `silent`: agents that cannot be heard now."""

    def __init__(
        self,
        dead: Mapping[int, Exit],
        silent: Container[int],
        names: Mapping[int, str],
        ready: Mapping[int, Future[bool]],
    ) -> None:
        self._dead = dead
        self._silent = silent
        self._names = names
        self._ready = ready
        self._groups: list[HostGroup] = []
        self._instead: dict[int, int] = {}  # agents
        self._asked_again: dict[str, int] = {}  # by place: the newest
        self._barred: set[str] = set()  # places

    def add(self, group: HostGroup) -> None:
        self._groups.append(group)
        self._barred.difference_update(self._names[host] for host in group.hosts)

    def bar(self, host: int) -> None:
        """Have a host no more, and ask for none at its place, until somebody names it again."""
        self._barred.add(self._names[host])
        for group in self._groups:
            group.keep_only(group.hosts, [each for each in group.spares if each != host])

    def living_agent(self, agent: int) -> int:
        """Return the agent of the host that has the place of this one's now."""
        while agent in self._dead and agent in self._instead:
            agent = self._instead[agent]
        return agent

    def find(self, agents: Sequence[int]) -> dict[int, int]:
        """Find hosts in the place of these, which are lost. Waits for those that are asked again.

        A place for which there is none is left out.
        """
        found: dict[int, int] = {}
        for group in self._groups:
            lost = [agent for agent in agents if agent >> HOST_SHIFT in group.hosts]
            if lost:
                found |= self._find_in(group, lost)
        self._instead |= found
        return found

    def words(self, agent: int) -> str:
        """Say why a host is lost, what was tried in vain, and what to do."""
        host = agent >> HOST_SHIFT
        said = self._dead[agent].reason or self._dead[agent].plainly()
        again = self._asked_again.get(self._place(agent))
        if again is not None:
            said += f"\n    asked again: {self._why_not(again)}"
        if self._place(agent) in self._barred:
            return said
        advice = [group.advice for group in self._groups if host in group.hosts and group.advice]
        return "\n    ".join([said, *advice])

    def spares_beside(self, agents: Collection[int]) -> list[int]:
        """Give up the spares of hosts that are shut down; return their agents."""
        hosts = {agent >> HOST_SHIFT for agent in agents}
        ended = [group for group in self._groups if not hosts.isdisjoint(group.hosts)]
        return [wire.agent_id(host) for group in ended for host in group.give_up()]

    def let_go(self, hosts: Collection[int]) -> None:
        """Forget hosts that are not wanted any more, and who had their places before."""
        gone = {self._names[host] for host in hosts}
        for group in self._groups:
            kept = [host for host in group.hosts if self._names[host] not in gone]
            group.keep_only(kept, group.spares)

    def host_lost(self, host: int, why: str, *, has_joined: bool) -> None:
        """Note the end of a host; that of a spare is told, and is no failure."""
        is_spare = any(host in group.spares for group in self._groups)
        if is_spare and (has_joined or host not in self._asked_again.values()):
            _log.warning("a spare host is lost: %s", why)

    def _find_in(self, group: HostGroup, agents: Sequence[int]) -> dict[int, int]:
        if len(self._usable(group)) < len(agents):
            self._ask_again(group)
            self._wait(group, len(agents))
        found: dict[int, int] = {}
        usable = self._usable(group)
        came = {self._names[host]: host for host in usable}
        for agent in sorted(agents, key=lambda each: self._place(each) not in came):
            if usable:
                host = came.get(self._place(agent), usable[0])  # at the same, if it is there again
                usable.remove(host)
                group.spares.remove(host)
                found[agent] = wire.agent_id(host)
        return found

    def _place(self, agent: int) -> str:
        return self._names[agent >> HOST_SHIFT]

    def _usable(self, group: HostGroup) -> list[int]:
        return [
            host
            for host in group.spares
            if self._has_joined(host) and self._is_alive(host) and not self._is_silent(host)
        ]

    def _ask_again(self, group: HostGroup) -> None:
        places = {self._names[host]: host for host in group.hosts}  # the newest at each
        for place, host in places.items():
            is_wanted = place not in self._barred and not self._is_alive(host)
            if group.ask_again is not None and is_wanted:
                new = group.ask_again(host)
                group.hosts.append(new)
                group.spares.append(new)
                self._asked_again[place] = new

    def _wait(self, group: HostGroup, count: int) -> None:
        deadline = time.monotonic() + _JOIN_S
        news: queue.SimpleQueue[object] = queue.SimpleQueue()
        for host in self._pending(group.spares):
            self._ready[host].add_done_callback(news.put)
        while self._pending(group.spares) and len(self._usable(group)) < count:
            try:
                news.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return

    def _pending(self, hosts: Iterable[int]) -> list[int]:
        return [host for host in hosts if not self._ready[host].done()]

    def _has_joined(self, host: int) -> bool:
        return self._ready[host].done() and self._ready[host].exception(0) is None

    def _is_alive(self, host: int) -> bool:
        has_failed = self._ready[host].done() and not self._has_joined(host)
        return not has_failed and wire.agent_id(host) not in self._dead

    def _is_silent(self, host: int) -> bool:
        return wire.agent_id(host) in self._silent

    def _why_not(self, host: int) -> str:
        if not self._ready[host].done():
            return f"it has not joined within {_JOIN_S:g} s"
        if (failed := self._ready[host].exception(0)) is not None:
            return str(failed)
        ended = self._dead.get(wire.agent_id(host))
        return "it cannot be heard" if ended is None else ended.reason or ended.plainly()
