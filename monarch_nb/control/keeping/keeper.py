"""What a controller does, while it drives them, for its meshes to go on without it."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Final

from monarch_nb.control.keeping.journal import Journal
from monarch_nb.control.keeping.kept_record import KeptMesh, KeptRecord, own_notebook
from monarch_nb.core.wire.frames import ROOT_PORT
from monarch_nb.core.wire.messages.codec import Done, Refused
from monarch_nb.core.wire.messages.keeping import Keep, LogOutput
from monarch_nb.errors import LaunchError
from monarch_nb.host.guard import started_at
from monarch_nb.meshes.states import ProcsState, procs_of
from monarch_nb.process.futures.ask_all import Question
from monarch_nb.process.process import Proc
from monarch_nb.process.supervision.supervision import MeshState, Supervision

ANSWER_S: Final = 10.0
OUTPUT_BYTES: Final = 256 << 20
"""What is logged of each rank; then the older half goes."""


class Keeper:
    """Keeps meshes of a controller beyond its end. `agent_pid()` is the process of the agent of
    this host; `tell(text)` is called with what cannot be kept."""

    def __init__(
        self,
        proc: Proc,
        supervision: Supervision,
        agent_pid: Callable[[], int | None],
        tell: Callable[[str], None],
    ) -> None:
        self._tell = tell
        self._proc = proc
        self._supervision = supervision
        self._agent_pid = agent_pid
        self._journal = Journal(proc.links.run_dir)
        self._kept: set[int] = set()
        self._logging: set[int] = set()
        self._for_s = 0.0
        self._key = secrets.token_hex(32)
        self._lock = threading.Lock()
        supervision.on_owned.append(self._owned)
        supervision.on_disowned.append(self._disowned)
        supervision.on_heal.append(lambda state, _: self._owned(state))

    @property
    def kept(self) -> list[ProcsState]:
        """The meshes that go on when this process ends."""
        states = [self._supervision.states.get(number) for number in list(self._kept)]
        return [each for each in states if isinstance(each, ProcsState) and each.ended is None]

    def keeps(self, state: MeshState) -> bool:
        """Tell whether a mesh of processes goes on when this process ends."""
        return state.number in self._kept

    @property
    def for_s(self) -> float:
        return self._for_s

    def keep(self, states: Sequence[ProcsState], for_s: float) -> None:
        """Keep these meshes too: they go on for so long when this process has gone. Waits for the
        agent. Raises `LaunchError` where they cannot be kept."""
        for state in states:
            if set(state.agents) != {self._proc.agent}:
                raise LaunchError(
                    f"{state.name} has ranks on other hosts: meshes of this machine can be kept"
                )
        with self._lock:
            self._kept.update(each.number for each in states)
            self._for_s = for_s
            for state in states:
                for each in (state, *state.actors):
                    self._note(each)
            asked = self._renew()
        self._await(asked)

    def go_on(self, record: KeptRecord, states: Sequence[ProcsState]) -> None:
        """Keep what another controller has kept, as it did."""
        self._key = record.key
        self._logging.update(process for state in states for process in state.processes)
        self.keep(states, record.for_s)

    def taken_over(self) -> None:
        """Keep nothing any more: another controller does."""
        with self._lock:
            self._kept.clear()

    def let_go(self, states: Iterable[ProcsState]) -> None:
        """Keep these no longer: they end with this process."""
        with self._lock:
            for state in states:
                self._kept.discard(state.number)
                for each in (state, *state.actors):
                    self._journal.forget(each)
            asked = self._renew()
        self._await(asked)

    def _owned(self, state: MeshState) -> None:
        # A mesh is new, or has new processes
        procs = procs_of(state)
        if procs is None or procs.number not in self._kept or state.owner_port != ROOT_PORT:
            return
        with self._lock:
            self._note(state)
            if isinstance(state, ProcsState):
                self._renew()

    def _disowned(self, state: MeshState) -> None:
        self._journal.forget(state)
        if state.number in self._kept and not self._proc.closed:
            with self._lock:
                self._kept.discard(state.number)
                self._renew()

    def _note(self, state: MeshState) -> None:
        if (trouble := self._journal.note(state)) is not None:
            self._tell(trouble)

    def _renew(self) -> Question[Done]:
        kept = self.kept
        procs = [each for state in kept for each in state.processes]
        asked = Question(self._proc, {self._proc.agent: Keep(procs, self._for_s, self._key)})
        new = [each for each in procs if each not in self._logging]
        self._logging.update(new)
        self._proc.control_all(new, LogOutput(min(OUTPUT_BYTES, self._proc.config.log_bytes)))
        record = self._record(kept)
        if kept:
            record.write()
        else:
            record.remove()
        return asked

    def _await(self, asked: Question[Done]) -> None:
        answer = next(iter(asked.wait(ANSWER_S).values()), None)
        if isinstance(answer, Refused):
            raise LaunchError(f"the agent of this host cannot keep them: {answer.error}")
        if answer is None:
            raise LaunchError(f"the agent of this host has not answered within {ANSWER_S:g} s")

    def _record(self, kept: Sequence[ProcsState]) -> KeptRecord:
        pid, agent_pid = os.getpid(), self._agent_pid() or 0
        return KeptRecord(
            host=socket.gethostname(),
            run_dir=str(self._proc.links.run_dir),
            controller=self._proc.id,
            controller_pid=pid,
            controller_started=started_at(pid) or 0,
            agent=self._proc.agent,
            agent_pid=agent_pid,
            agent_started=started_at(agent_pid) or 0,
            key=self._key,
            for_s=self._for_s,
            config=asdict(self._proc.config),
            notebook=own_notebook(),
            meshes=[KeptMesh(each.name, dict(each.shape.extent)) for each in kept],
        )
