"""Bringing back what a mesh has lost, or going on without it.

Rule: a heal changes the mesh in place, so that handles and slices of it work again; a shrink makes
a smaller mesh that takes its place. Survivors keep their state. Called by the owner of the mesh, in
the thread that asks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar

from monarch_nb.core.errors.folding import rank_words
from monarch_nb.core.shape.extent import Extent, Shape, Slice
from monarch_nb.core.text.units import are
from monarch_nb.core.wire.frames import HOST_SHIFT
from monarch_nb.core.wire.messages.actors import Regroup
from monarch_nb.errors import SupervisionError
from monarch_nb.meshes.healing.seats import Seats
from monarch_nb.meshes.hosts import Hosts
from monarch_nb.meshes.states import ActorsState, ProcsState
from monarch_nb.process.exit import Exit
from monarch_nb.process.futures.ask_all import Question
from monarch_nb.process.futures.future import Future, completed, make
from monarch_nb.process.process import Proc, new_process_ids
from monarch_nb.process.supervision.moved_ranks import MovedRanks
from monarch_nb.process.supervision.supervision import MeshFailure, Supervision

S = TypeVar("S", ProcsState, ActorsState)
REGROUP_S: Final = 2.0
_log: Final = logging.getLogger(__name__)


class Made(NamedTuple):
    """Actors that a restart has begun to construct on these ranks; `done` when it has ended, well
    or not."""

    actors: ActorsState
    ranks: list[int]
    done: Future[Any]


class Healing:
    def __init__(
        self, proc: Proc, supervision: Supervision, moved: MovedRanks, hosts: Hosts
    ) -> None:
        self._proc = proc
        self._moved = moved
        self._supervision = supervision
        self._hosts = hosts
        self._one_at_a_time = threading.RLock()
        self._something_changed = threading.Event()
        supervision.on_pulse.append(self._something_changed.set)
        supervision.on_exit.append(lambda _: self._something_changed.set())

    def procs(self, state: ProcsState, *, shrink: bool) -> ProcsState:
        if not state.owned:
            raise RuntimeError("only the process that spawned a mesh can heal it")
        state.check_not_stopped()
        if shrink:
            return self._shrunk(state)
        if state.respawn is None:
            raise RuntimeError(
                f"{state.name!r} has been shrunk, it cannot grow again; use heal(shrink=True)"
            )
        self._heal(state, range(len(state.processes)), keeps_groups=False)
        return state

    def of_loops(self, state: ProcsState, ranks: Collection[int]) -> None:
        """Bring back these ranks alone, if they are lost; the others keep their process groups."""
        state.check_not_stopped()
        self._heal(state, ranks, keeps_groups=True)

    def _heal(self, state: ProcsState, ranks: Collection[int], *, keeps_groups: bool) -> None:
        with self._one_at_a_time:
            self._respawn_lost(state, ranks, keeps_groups=keeps_groups)
            alive = [each for each in list(state.actors) if each.respawn and each.ended is None]
            missing = [self._missing(actors, state) for actors in alive]
            self._moved.announce([state, *alive])
            constructed = [
                self._construct(actors, ranks) for actors, ranks in zip(alive, missing, strict=True)
            ]
            for each in constructed:
                each.get()

    def restart(self, state: ProcsState) -> list[Made]:
        """Begin to bring back what of actors on this mesh is to return, and the processes there.
        Nobody who calls them has to wait any more when this returns.

        Raises `RuntimeError` for a mesh that has ended, `SupervisionError` as a heal does.
        """
        state.check_not_stopped()
        with self._one_at_a_time:
            wanted = [(each, each.returning) for each in list(state.actors) if each.returning]
            places = {each.proc_ranks[rank] for each, ranks in wanted for rank in ranks}
            lost = [rank for rank in self._dead(state) if rank in places]
            if lost:
                self._wait_for_silent_hosts(state, lost)
                self._take_seats(state, lost)
            made_on = [self._missing(actors, state, ranks) for actors, ranks in wanted]
            self._spawn(state, lost)
            meshes = [actors for actors, _ in wanted]
            self._moved.announce([state, *meshes])
            made = [
                Made(actors, ranks, self._construct(actors, ranks))
                for actors, ranks in zip(meshes, made_on, strict=True)
            ]
            self._end_stopped(state, lost, made)
            if lost:
                living = [rank for rank in range(len(state.processes)) if rank not in lost]
                self._regroup(state, living, limit_s=0.0)
        return made

    def _spawn(self, state: ProcsState, ranks: list[int]) -> None:
        if not ranks:
            return
        assert state.respawn is not None
        state.respawn(ranks)
        for listener in self._supervision.on_heal:
            listener(state, ranks)

    def _end_stopped(self, state: ProcsState, ranks: list[int], made: Sequence[Made]) -> None:
        # a stop that came meanwhile has not met what was started here
        spawner = self._hosts.spawner
        if state.ended is not None and ranks:
            spawner.end_processes(state, ranks, lambda: None)
        for each in made:
            if each.actors.ended is not None:
                spawner.tell_to_stop(each.actors, each.ranks, each.actors.ended)

    def _dead(self, state: ProcsState) -> list[int]:
        with self._proc.marking:
            dead = self._proc.dead
            return [rank for rank, process in enumerate(state.processes) if process in dead]

    def _respawn_lost(
        self, state: ProcsState, ranks: Collection[int], *, keeps_groups: bool
    ) -> None:
        # New processes in the places of the dead. May be tried again when one of them dies too.
        assert state.respawn is not None
        state.note_moves([])
        self._wait_for_silent_hosts(state, list(ranks))
        dead = self._dead(state)
        lost = [rank for rank in dead if rank in ranks]
        if not lost:
            return
        self._take_seats(state, lost)
        state.respawn(lost).get()
        for listener in self._supervision.on_heal:
            listener(state, lost)
        living = [rank for rank in range(len(state.processes)) if rank not in dead]
        self._regroup(state, living, keeps_groups=keeps_groups)

    def _take_seats(self, state: ProcsState, lost: list[int]) -> None:
        seats = Seats(self._hosts, state, lost)
        found = seats.find()
        state.note_moves(seats.moves())
        self._copy_workspaces({state.agents[rank]: seat.agent for rank, seat in found.items()})
        state.next_generation()
        for rank, seat in found.items():
            [process] = new_process_ids(seat.agent >> HOST_SHIFT, 1)
            state.take_seat(rank, seat, process)
        state.restore(lost)

    def _copy_workspaces(self, moves: Mapping[int, int]) -> None:
        # what the hosts had from which ranks go, where they come to has as well
        copies = self._hosts.copies
        for old, new in moves.items():
            there = copies.get(new, {})
            for copy in [copy for key, copy in copies.get(old, {}).items() if key not in there]:
                copy(new).get()

    def _wait_for_silent_hosts(self, state: ProcsState, ranks: Sequence[int]) -> None:
        # of these ranks, until they are heard again, or given up: `outage_s` at most
        if silent := self._on_silent_hosts(state, ranks):
            what = f"the host of {rank_words(silent)} cannot be heard"
            _log.warning("%s: %s; the heal waits until it is, or is given up", state.name, what)
        while state.ended is None and self._on_silent_hosts(state, ranks):
            self._something_changed.wait()
            self._something_changed.clear()

    def _on_silent_hosts(self, state: ProcsState, ranks: Sequence[int]) -> list[int]:
        silent = self._supervision.silent
        return [rank for rank in ranks if state.agents[rank] in silent]

    def _missing(
        self, actors: ActorsState, procs: ProcsState, of: Collection[int] | None = None
    ) -> list[int]:
        # the ranks (of these; None: of all) that have to be constructed, where they are now
        has = range(len(procs.processes))  # it may have fewer hosts since
        known = zip(actors.proc_ranks, actors.processes, strict=True)
        processes = [procs.processes[rank] if rank in has else was for rank, was in known]
        moved = {r for r, process in enumerate(processes) if process != actors.processes[r]}
        wanted = moved | actors.lost.keys() if of is None else of
        ranks = sorted(r for r in wanted if processes[r] not in self._proc.dead)
        actors.processes[:] = processes
        return ranks

    def _construct(self, actors: ActorsState, ranks: list[int]) -> Future[Any]:
        assert actors.respawn is not None
        if not ranks:
            return completed(None)
        actors.restore(ranks)
        return actors.respawn(ranks)

    def resize(self, state: ProcsState, agents: Sequence[int]) -> Any:
        """Make a mesh of the same ranks on these hosts, by their agents: with more of them new
        ranks, with fewer the last ones end. Returns its handle."""
        if not state.owned:
            raise RuntimeError("only the process that spawned a mesh can resize it")
        state.check_not_stopped()
        if state.resized is None or state.respawn is None:
            raise RuntimeError(f"{state.name!r} has been shrunk, it cannot have other hosts")
        with self._one_at_a_time:
            new, start, spans_hosts = state.resized(agents)
            kept = range(min(len(state.processes), len(new.processes)))
            if lost := [rank for rank in kept if state.processes[rank] in self._proc.dead]:
                raise SupervisionError(
                    f"{rank_words(lost)} of {state.name} {are(lost)} lost. Bring them back before: "
                    "mesh.heal(), or %mesh heal.",
                    ranks=tuple(lost),
                )
            mesh = new.view()  # before others find it by its name: see HandleToken
            gone = range(len(kept), len(state.processes))
            why = f"it has {len(agents)} hosts now; use the mesh that resize returned"
            state.end(why)
            self._supervision.own(new)
            for actors in list(state.actors):
                actors.move_to(new)
                self._lose_for_good(actors, gone, f"the mesh was resized to {len(agents)} hosts")
            start(list(range(len(kept), len(new.processes))))
            ended: Future[None] = make(Future)
            self._hosts.spawner.end_processes(state, gone, lambda: ended._set_result(None))
            self._regroup(new, list(kept), spans_hosts=spans_hosts)
            ended.get()
        return mesh

    def _lose_for_good(self, actors: ActorsState, gone: Collection[int], why: str) -> None:
        members = [rank for rank, of in enumerate(actors.proc_ranks) if of in gone]
        if members:
            ended = Exit(actors.processes[members[0]], reason=why, for_good=True)
            actors.lose(MeshFailure(actors, members, ended.describe(), ended=ended))

    def actors(self, state: ActorsState, *, shrink: bool) -> ActorsState:
        if state.procs is None or not state.owned:
            raise RuntimeError("only the process that spawned a mesh can heal it")
        if shrink:
            return self._shrunk(state)
        self.procs(state.procs, shrink=False)
        return state

    def _regroup(
        self,
        state: ProcsState,
        ranks: list[int],
        *,
        spans_hosts: bool = False,
        keeps_groups: bool = False,
        limit_s: float = REGROUP_S,
    ) -> None:
        # Tell processes who they are now, and where their process groups meet from now on. Waits
        # until they know, as the next call may reach an actor on another thread before; not for
        # long where user code keeps the main thread, which learns when that ends.
        extent = state.shape.extent
        store, size = state.store(), len(state.processes)
        requests = {
            state.processes[rank]: Regroup(
                store, rank, size, extent.labels, extent.sizes, spans_hosts, keeps_groups
            )
            for rank in ranks
        }
        Question(self._proc, requests).wait(limit_s)

    def _shrunk(self, state: S) -> S:
        # The living part: a grid where whole slices of one axis are gone, else a line. It takes the
        # place of the mesh that it was made from, whose handles and slices end.
        with self._proc.marking:
            dead = {r for r, process in enumerate(state.processes) if process in self._proc.dead}
            lost = dead | set(state.lost)
        living = [rank for rank in range(len(state.processes)) if rank not in lost]
        if not living:
            raise SupervisionError(
                f"no rank of {state.name!r} is left; bring it up again", ranks=tuple(lost)
            )
        smaller = state_of_living(state, living, shrink_shape(state.shape, set(living)))
        state.end("it was shrunk; use the mesh that heal(shrink=True) returned")
        if state.restarted_by is not None:
            ranks = range(len(state.processes))
            self._moved.announce_given_up(state, ranks, "the mesh was shrunk")
        self._supervision.own(smaller)
        if isinstance(smaller, ProcsState):
            self._regroup(smaller, list(range(len(living))))
        return smaller


def state_of_living(state: S, living: list[int], shape: Shape) -> S:
    processes = [state.processes[rank] for rank in living]
    if isinstance(state, ActorsState):
        proc_ranks = tuple(state.proc_ranks[rank] for rank in living)
        return replace(
            state,
            shape=shape,
            processes=processes,
            proc_ranks=proc_ranks,
            restarts=None,
            restarted_by=None,
        )
    return replace(
        state,
        shape=shape,
        processes=processes,
        agents=[state.agents[rank] for rank in living],
        pids={i: state.pids[rank] for i, rank in enumerate(living) if rank in state.pids},
        generation=state.generation + 1,
        watch=None,
    )


def shrink_shape(shape: Shape, living: set[int]) -> Shape:
    """Drop the slices of one axis with lost ranks, if that loses no survivor; else a line."""
    extent = shape.extent
    for axis, label in enumerate(shape.labels):
        kept = [i for i in range(extent[label]) if set(shape.at(label, i).ranks()) <= living]
        if kept and len(kept) * (len(shape) // extent[label]) == len(living):
            sizes = list(shape.ndslice.sizes)
            sizes[axis] = len(kept)
            return Shape(shape.labels, Slice.new_row_major(sizes))
    label = shape.labels[-1] if shape.labels else "ranks"
    return Extent([label], [len(living)]).region.as_shape()
