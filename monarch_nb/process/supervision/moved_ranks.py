"""Handles of meshes that others own: they follow when their mesh is healed.

When the owner of a mesh replaces processes, it tells the controller and all that it owns itself;
whoever is told passes it on to what it owns. Handles that arrive later, in arguments that were
pickled before the heal, are corrected as they arrive.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable

from monarch_nb.core.wire.frames import Message
from monarch_nb.core.wire.messages.actors import Healed
from monarch_nb.process.process import Proc
from monarch_nb.process.supervision.supervision import MeshState, Supervision


class MovedRanks:
    def __init__(self, proc: Proc, supervision: Supervision) -> None:
        self._proc = proc
        self._supervision = supervision
        self._known: dict[int, weakref.WeakSet[MeshState]] = {}
        self._moved: dict[int, list[int]] = {}
        self._lock = threading.Lock()

    def adopt(self, state: MeshState) -> None:
        with self._lock:
            self._known.setdefault(state.number, weakref.WeakSet()).add(state)
            moved = self._moved.get(state.number)
        if moved is not None:
            state.follow(moved)

    def announce(self, states: Iterable[MeshState]) -> None:
        """Meshes of ours have new processes in some places: tell everybody."""
        moved = [(state.number, list(state.processes)) for state in states]
        self._tell(Healed(moved), {self._proc.controller} | self._below())

    def on_healed(self, healed: Healed, message: Message) -> None:
        """Meshes of others have new processes: pass it on."""
        for number, processes in healed.moved:
            with self._lock:
                self._moved[number] = processes
                found = list(self._known.get(number, ()))
            for state in found:
                state.follow(processes)
                state.restore(range(len(processes)))
        self._tell(healed, self._below() - {message.source})

    def _below(self) -> set[int]:
        return {
            process
            for state in list(self._supervision.states.values())
            if state.kind == "proc"
            for process in state.processes
        }

    def _tell(self, healed: Healed, processes: set[int]) -> None:
        for process in processes - {self._proc.id}:
            self._proc.control(process, healed)
