"""One mesh of processes as a snapshot shows it.

Rule: what has not changed is the same object as before, so that a reader of a thousand ranks
compares with `is`; and it is not even looked at, unless something happened that may concern it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from monarch_nb.control.status.boards import NOTHING, Boards
from monarch_nb.control.status.snapshots import ActorStatus, HostStatus, MeshStatus, RankStatus
from monarch_nb.control.status.timeline import Sample, Timeline
from monarch_nb.core.shape.extent import Point
from monarch_nb.core.wire.frames import HOST_SHIFT
from monarch_nb.meshes.states import ActorsState, ProcsState
from monarch_nb.process.exit import Exit

SILENT = "no sign of life: stopped, frozen or swapped out"
_RUNNING = {"busy", "collective"}
_new: Final[Callable[..., RankStatus]] = tuple.__new__

Place = tuple[dict[str, int], int | None, int]
"""Coordinates, pid and host of a rank."""


class KnownHosts:
    """The hosts that a snapshot names, in the order in which meshes first used them.

    A host keeps its place in the list for good, so that the places which ranks refer to stay true.
    """

    def __init__(self) -> None:
        self.places: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._agents: dict[int, list[int]] = {}  # of each host, the newest last
        self._told: tuple[HostStatus, ...] = ()
        self._key = (0, 0)
        self._version = 0

    def use(self, agents: Iterable[int]) -> None:
        for agent in agents:
            host = agent >> HOST_SHIFT
            self.places.setdefault(host, len(self.places))
            if agent not in (known := self._agents.setdefault(host, [])):
                known.append(agent)
                self._version += 1

    def name(self, agent: int, name: str) -> None:
        host = agent >> HOST_SHIFT
        if self._names.get(host) != name:  # each fresh snapshot names all of them
            self._names[host] = name
            self._version += 1

    def told(self, dead: Mapping[int, Exit]) -> tuple[HostStatus, ...]:
        """Return the list; the same object while nothing changes."""
        if (key := (self._version, len(dead))) != self._key:
            ends = {each: self._end(each, dead) for each in self.places}
            new = tuple(HostStatus(self._name(each, ends), end) for each, end in ends.items())
            self._key, self._told = key, new if new != self._told else self._told
        return self._told

    def _name(self, host: int, ends: Mapping[int, str | None]) -> str:
        # two workers on one machine are two hosts; those of before have left it the plain name
        name = self._names.get(host, f"host {host}")
        there = [each for each, end in ends.items() if end is None]
        alike = [each for each in there if self._names.get(each) == name]
        return f"{name} ({alike.index(host) + 1})" if host in alike and len(alike) > 1 else name

    def _end(self, host: int, dead: Mapping[int, Exit]) -> str | None:
        ends = [dead.get(agent) for agent in self._agents[host]]
        last = ends[-1]
        return None if None in ends or last is None else last.plainly()


@dataclass
class Sources:
    """What is known of processes."""

    boards: Boards
    dead: Mapping[int, Exit]
    silent: Mapping[int, float]
    hosts: KnownHosts = field(default_factory=KnownHosts)
    pids: dict[int, int] = field(default_factory=dict)
    ended_at: dict[int, float] = field(default_factory=dict)
    name_place: Callable[[str], str] = str
    """What people call the place of a rank that is paused."""

    def name_places(self, name: Callable[[str], str]) -> None:
        self.name_place = name


class MeshView:
    """Makes the `MeshStatus` of `state`; `seconds` have ended on the clock of timelines."""

    def __init__(self, state: ProcsState, sources: Sources, seconds: int) -> None:
        extent, size = state.shape.extent, len(state.processes)
        self.state = state
        self.timeline = Timeline(size, seconds)
        self.agents: set[int] = set()
        self.missing: set[int] = set()
        """Living processes whose board nobody has told yet."""
        self._sources = sources
        self._coords = [dict(Point(rank, extent)) for rank in range(size)]
        self._labels, self._sizes = tuple(extent.labels), tuple(extent.sizes)
        self._key: Any = None
        self._rank_of: dict[int, int] = {}
        self._ranks: list[RankStatus | None] = [None] * size
        self._actors_key: object = None
        self._actors: tuple[ActorStatus, ...] = ()
        self._any_odd = False  # dead, silent or stopped
        self._places: list[Place | None] = [None] * size
        self._status: MeshStatus | None = None

    def is_over(self) -> bool:
        """Return whether it was stopped and nothing of it is left."""
        return self.state.ended is not None and self._sources.dead.keys() >= self._rank_of.keys()

    def status(self, changed: Iterable[int]) -> MeshStatus:
        """Return it as it is now. `changed`: processes with news."""
        any_changed = self._look_at(self._to_look_at(changed))
        if self.missing:
            self.missing -= self._sources.boards.rows.keys()
        if any_changed or self._actors_changed() or self._status is None:
            known = tuple(each for each in self._ranks if each is not None)
            state = self.state
            self._status = MeshStatus(
                state.name,
                self._labels,
                self._sizes,
                known,
                self._actors,
                state.ended,
                state.number,
            )
        return self._status

    def samples(self) -> list[Sample]:
        rows = self._sources.boards.rows
        found = []
        for status, process in zip(self._ranks, self.state.processes, strict=True):
            assert status is not None
            state = status.state
            if (known := rows.get(process)) is None:
                found.append(Sample(process, state, status.since, 0.0, False, 0.0))
                continue
            (_, running, since_ns, _, busy_ns, _, _, failed, _), told = known
            since, runs = told.time_s(since_ns), running in _RUNNING
            seen = busy_ns / 1e9, runs, told.seen_at, failed
            found.append(Sample(process, state, since, *seen))
        return found

    def _to_look_at(self, changed: Iterable[int]) -> Iterable[int]:
        # The ranks that may have changed: all, after what is told of no rank
        state, sources = self.state, self._sources
        silent = frozenset(sources.silent) if sources.silent else None
        restarting = tuple(state.restarting)
        key = (state.version, state.ended, state.initialized.done(), len(sources.dead), silent,
               restarting)  # fmt: skip
        if key == self._key:
            return [self._rank_of[each] for each in changed if each in self._rank_of]
        if self._key is None or key[:2] != self._key[:2]:
            self._status = None
        self._key = key
        self._rank_of = {process: rank for rank, process in enumerate(state.processes)}
        self.agents = set(state.agents)
        sources.hosts.use(self.agents)
        living = {process for process in state.processes if process not in sources.dead}
        self.missing = living if state.initialized.done() else set()
        all_well = len(living) == len(self._rank_of) and living.isdisjoint(sources.silent)
        self._any_odd = not all_well or state.ended is not None or bool(restarting)
        self._places = [None] * len(state.processes)
        return range(len(state.processes))

    def _look_at(self, ranks: Iterable[int]) -> bool:
        any_changed = False
        for rank in ranks:
            new = self._status_of(rank)
            if new != self._ranks[rank]:
                self._ranks[rank] = new
                any_changed = True
        return any_changed

    def _status_of(self, rank: int) -> RankStatus:
        mesh, sources = self.state, self._sources
        process = mesh.processes[rank]
        if (known := sources.boards.rows.get(process)) is None:
            state = "idle" if mesh.initialized.done() else "starting"
            what, since, queue, calls, failed, beat = "", 0.0, 0, 0, 0, 0
        else:
            (_, state, since_ns, what, _, queue, calls, failed, beat), told = known
            since = told.time_s(since_ns)
            if state == "paused":
                what = f"paused at {sources.name_place(what)}"
        detail, usage = "", sources.boards.usage.get(process, NOTHING)
        if self._any_odd:
            if (ended := sources.dead.get(process)) is not None:
                state = "unreachable" if ended.unreachable_s is not None else "exited"
                what, since, detail = "", sources.ended_at.get(process, 0.0), ended.plainly()
                usage = NOTHING
            elif mesh.ended is not None:
                state, what, since, detail = "stopped", "", 0.0, mesh.ended
            elif process in sources.silent:
                state, detail = "silent", SILENT
            if known is None or ended is not None:
                state, detail = self._restarting(rank, state, detail)
        place = self._places[rank] or self._place_of(rank, process)
        counts = queue, calls, failed, beat
        # of a tuple: a call with thirteen arguments would take three times as long
        return _new(RankStatus, (rank, *place, state, what, since, detail, *counts, usage))

    def _restarting(self, rank: int, state: str, detail: str) -> tuple[str, str]:
        if (why := self.state.restarting.get(rank)) is None:
            return state, detail
        return "starting", f"restarts: it {why}"

    def _place_of(self, rank: int, process: int) -> Place:
        # kept once its agent has told the pid: `state.pids` may have that of the life before
        sources, state = self._sources, self.state
        if process >> HOST_SHIFT not in sources.hosts.places:  # it has moved just now
            sources.hosts.use(state.agents)
        coords, host = self._coords[rank], sources.hosts.places[process >> HOST_SHIFT]
        if (pid := sources.pids.get(process)) is None:
            return coords, state.pids.get(rank), host
        place = self._places[rank] = coords, pid, host
        return place

    def _actors_changed(self) -> bool:
        key = [(each, each.ended, len(each.lost)) for each in self.state.actors]
        if key == self._actors_key:
            return False
        self._actors_key = key
        self._actors = tuple(_actor(each) for each in self.state.actors)
        return True


def _actor(state: ActorsState) -> ActorStatus:
    size, ended = len(state.processes), state.ended
    if ended is None and state.lost and len(state.lost) == size:
        ended = next(iter(state.lost.values())).event
    return ActorStatus(state.name, state.cls.__name__, size, ended)
