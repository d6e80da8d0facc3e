"""Handles of meshes that others own: they follow when their mesh is healed.

When the owner of a mesh replaces processes, it tells the controller and all that it owns itself;
whoever is told passes it on to what it owns. Handles that arrive later, in arguments that were
pickled before the heal, are corrected as they arrive.

Where the owner restarts what is lost, who uses a lost rank waits until it is told of the new
process, or that none will come. The owner says the latter also when the mesh is stopped, and its
own end means it: nobody waits in vain.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping

from monarch_nb.core.wire.frames import Message
from monarch_nb.core.wire.messages.actors import Healed, NotRestarted
from monarch_nb.process.exit import Exit
from monarch_nb.process.process import Proc
from monarch_nb.process.supervision.supervision import MeshFailure, MeshState, Supervision


class MovedRanks:
    def __init__(self, proc: Proc, supervision: Supervision) -> None:
        self._proc = proc
        self._supervision = supervision
        self._known: dict[int, weakref.WeakSet[MeshState]] = {}
        self._moved: dict[int, list[int]] = {}
        self._given_up: dict[int, dict[int, str]] = {}  # of meshes, by rank: why
        self._lock = threading.Lock()
        supervision.on_dead.append(self._died)

    def adopt(self, state: MeshState) -> None:
        with self._proc.marking:
            with self._lock:
                self._known.setdefault(state.number, weakref.WeakSet()).add(state)
                moved = self._moved.get(state.number)
                given_up = dict(self._given_up.get(state.number, {}))
            if moved is not None:
                state.follow(moved)
            for rank, why in given_up.items():
                state.give_up([rank], why)
            owner = state.restarted_by
            if owner == self._proc.id or owner in self._proc.dead:
                state.give_up(range(len(state.processes)), "nobody owns it any more")
            elif owner is not None:
                self._proc.watch(owner)
                self._lose(state, self._proc.dead)

    def _died(self, ended: Mapping[int, Exit]) -> None:
        with self._lock:
            known = [state for states in self._known.values() for state in list(states)]
        for state in known:
            if state.restarted_by is None:
                continue
            self._lose(state, ended)
            if (owner := ended.get(state.restarted_by)) is not None:
                why = f"its owner, who would have restarted it, {owner.plainly()}"
                state.give_up(range(len(state.processes)), why)

    def _lose(self, state: MeshState, ended: Mapping[int, Exit]) -> None:
        # what its owner brings back, unless somebody has stopped it
        for rank, process in enumerate(state.processes):
            gone = ended.get(process)
            if gone is not None and not gone.asked and state.is_restarted(rank):
                state.await_return([rank])
                state.lose(MeshFailure(state, [rank], gone.describe(), ended=gone))

    def announce(self, states: Iterable[MeshState]) -> None:
        """Meshes of ours have new processes in some places: tell everybody."""
        moved = [(state.number, list(state.processes)) for state in states]
        self._tell(Healed(moved), {self._proc.controller} | self._below())

    def on_healed(self, healed: Healed, message: Message) -> None:
        """Meshes of others have new processes: pass it on."""
        for number, processes in healed.moved:
            with self._lock:
                self._moved[number] = processes
                self._given_up.pop(number, None)
                found = list(self._known.get(number, ()))
            living = [rank for rank, each in enumerate(processes) if each not in self._proc.dead]
            for state in found:
                state.follow(processes)
                state.restore(living)
        self._tell(healed, self._below() - {message.source})

    def announce_given_up(self, state: MeshState, ranks: Iterable[int], why: str) -> None:
        """Ranks of a mesh of ours are brought back no more: tell everybody."""
        told = NotRestarted(state.number, list(ranks), why)
        self._tell(told, {self._proc.controller} | self._below())

    def on_not_restarted(self, told: NotRestarted, message: Message) -> None:
        """Ranks of a mesh of others are brought back no more: pass it on."""
        with self._lock:
            self._given_up.setdefault(told.number, {}).update(dict.fromkeys(told.ranks, told.why))
            found = list(self._known.get(told.number, ()))
        for state in found:
            state.give_up(told.ranks, told.why)
        self._tell(told, self._below() - {message.source})

    def _below(self) -> set[int]:
        return {
            process
            for state in list(self._supervision.states.values())
            if state.kind == "proc"
            for process in state.processes
        }

    def _tell(self, told: Healed | NotRestarted, processes: set[int]) -> None:
        for process in processes - {self._proc.id}:
            self._proc.control(process, told)
