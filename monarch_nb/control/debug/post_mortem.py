"""The frames of what failed last on ranks: opened, kept or let go.

Rule of the file: asking waits no longer than `ANSWER_S`, whatever ranks do; who does not answer is
missing. Not to be called in the inbox thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

from monarch_nb.control.debug.sessions import DebugService, Key
from monarch_nb.core.wire.messages.codec import Request
from monarch_nb.core.wire.messages.debug import ForgetFailed, OpenPostMortem, StopAtFailure
from monarch_nb.meshes.states import ProcsState
from monarch_nb.process.futures import ask_all
from monarch_nb.process.supervision.supervision import MeshState

A = TypeVar("A")
ANSWER_S: Final = 2.0


class PostMortem:
    def __init__(self, service: DebugService) -> None:
        self._service = service
        self._proc = service.proc
        self._supervision = service.supervision
        self._stopping: set[int] = set()  # meshes, by number, whose ranks stop where they fail
        self._supervision.on_heal.append(self._healed)

    def open_failed(self, processes: Iterable[int], tag: int | None = None) -> list[Key]:
        """Let these stand in the frames of their last failure, or of the last for a notebook cell.

        Returns their debuggers; of a process that keeps nothing, none.
        """
        told = self._ask(processes, OpenPostMortem(tag))
        keys = [(process, said.stop) for process, said in told.items() if said.stop is not None]
        service = self._service
        service.wait(lambda: {stop.key for stop in service.stops()}.issuperset(keys), ANSWER_S)
        return keys

    def stop_at_failure(self, processes: Iterable[int], *, on: bool) -> list[int]:
        """From now on these stop where their code fails, or do no longer; so do those that take a
        place in the same mesh later. Returns who has heard."""
        wanted = set(processes)
        numbers = {state.number for state in self._meshes() if wanted & {*state.processes}}
        self._stopping = self._stopping | numbers if on else self._stopping - numbers
        return list(self._ask(wanted, StopAtFailure(on)))

    def forget_failed(self, processes: Iterable[int]) -> list[int]:
        """Let go of the frames, and of what they hold. Returns who has heard."""
        return list(self._ask(processes, ForgetFailed()))

    def living(self) -> list[int]:
        dead = self._proc.dead
        return [each for state in self._meshes() for each in state.processes if each not in dead]

    def _healed(self, state: MeshState, ranks: Iterable[int]) -> None:
        if state.number in self._stopping:
            processes = [state.processes[rank] for rank in ranks]
            self._ask(processes, StopAtFailure(on=True))

    def _meshes(self) -> list[ProcsState]:
        states = list(self._supervision.states.values())
        return [state for state in states if isinstance(state, ProcsState) and state.ended is None]

    def _ask(self, processes: Iterable[int], request: Request[A]) -> dict[int, A]:
        return ask_all.ask(self._proc, dict.fromkeys(processes, request), ANSWER_S)
