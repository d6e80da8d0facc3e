"""Looking at meshes that another process drives, or nobody. Any number of processes may.

What is seen are the states of the ranks, their ends, and what they print, which is read from their
logs. Nothing is asked of ranks but questions that their inbox thread answers.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from monarch_nb.config import Config
from monarch_nb.control import client as client_module
from monarch_nb.control.keeping import adoption, journal
from monarch_nb.core.wire.frames import OUTPUT, OUTPUT_PORT, Message
from monarch_nb.core.wire.messages import codec
from monarch_nb.core.wire.messages.agents import RawOutput, Watch
from monarch_nb.core.wire.messages.keeping import Look
from monarch_nb.data.record_log import FollowedLog, LogRecord, output_log
from monarch_nb.errors import LaunchError
from monarch_nb.host import rundir
from monarch_nb.meshes.hosts import KeptProcs
from monarch_nb.meshes.proc_mesh import ProcMesh, whole_mesh
from monarch_nb.meshes.states import ProcsState

if TYPE_CHECKING:
    from monarch_nb.control.client import Client
    from monarch_nb.control.keeping.kept_record import KeptRecord

LOOK_S: Final = 0.2
WHY: Final = (
    "{} is looked at only: another notebook may drive it. %mesh attach {} --fence takes it over"
)

_ELSEWHERE: Final = (
    "{0} is on hosts of a job, and --view is for meshes of this machine. %mesh list says what "
    "ranks do that nobody drives; %mesh attach {0} brings them back, --fence from a kernel that "
    "lives"
)


def look_at(record: KeptRecord, tag: int) -> list[ProcMesh]:
    """Look at the meshes of a record, until the client of this process is shut down. What ranks
    print from now on is shown for the notebook cell `tag`.

    Raises `LaunchError` where they have ended or are on hosts of a job, `RuntimeError` where this
    process has meshes of its own.
    """
    if record.hosts is not None:
        raise LaunchError(_ELSEWHERE.format(record.meshes[0].name))
    run_dir = rundir.hold(Path(record.run_dir))
    client = client_module.start_in(run_dir, Config(**record.config), record.agent, looks=True)
    try:
        there = adoption.let_in(client, record.agent, Look(record.key, os.getpid()))
        client.agent_found(there.pid, there.gpus)
        looking = Looking(client, Path(record.run_dir), tag)
    except BaseException:
        client.shutdown(0)
        raise
    looking.begin()
    return [whole_mesh(state) for state in looking.states]


class Looking:
    """Follows the meshes in a run dir, in a thread that ends with the client."""

    def __init__(self, client: Client, run_dir: Path, tag: int) -> None:
        self._client = client
        self._run_dir = run_dir
        self._tag = tag
        self._states: dict[int, ProcsState] = {}
        self._logs: dict[int, FollowedLog] = {}  # by process
        self._over = threading.Event()
        self._written: frozenset[tuple[str, int]] = frozenset()
        self._follow_meshes()
        self._read(shown=False)  # what was before

    @property
    def states(self) -> list[ProcsState]:
        return list(self._states.values())

    def begin(self) -> None:
        self._client.at_close.append(self._over.set)
        threading.Thread(target=self._run, name="monarch-look", daemon=True).start()

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            self._follow_meshes()
            self._read(shown=True)
        for log in self._logs.values():
            log.close()

    def _follow_meshes(self) -> None:
        written = journal.written(self._run_dir)
        if written == self._written:
            return
        self._written = written
        found = {kept.number: kept for kept in journal.read_procs(self._run_dir)}
        for number, kept in found.items():
            known = self._states.get(number)
            if known is None:
                self._begin(kept)
            elif known.processes != kept.processes:  # it was healed
                self._renew(known, kept)
        for number, state in self._states.items():
            if number not in found:
                state.end("it was stopped")

    def _begin(self, kept: KeptProcs) -> None:
        why = WHY.format(kept.name, kept.name)
        self._states[kept.number] = self._client.look_at(kept, why, whole_mesh)
        self._watch(kept.processes)

    def _renew(self, state: ProcsState, kept: KeptProcs) -> None:
        pairs = zip(state.processes, kept.processes, strict=True)
        new = [rank for rank, (old, now) in enumerate(pairs) if old != now]
        state.follow(kept.processes)
        state.restore(new)
        self._watch([kept.processes[rank] for rank in new])

    def _watch(self, processes: list[int]) -> None:
        proc = self._client.proc
        proc.watching(processes)
        proc.control(proc.agent, Watch(processes))
        for each in processes:
            self._logs[each] = FollowedLog(output_log(self._run_dir, each), 0)

    def _read(self, *, shown: bool) -> None:
        agent = self._client.proc.agent
        if agent not in self._logs:
            self._logs[agent] = FollowedLog(output_log(self._run_dir, agent), 0)
        for process, log in list(self._logs.items()):
            for record in log.read():
                if process == agent:
                    raw = codec.decode(RawOutput, codec.json_of(record.payload))
                    self._client.output.recall_raw(raw, self._tag, shown=shown)
                elif record.port == OUTPUT_PORT:
                    self._client.output.recall(self._message(process, record), shown=shown)

    def _message(self, process: int, record: LogRecord) -> Message:
        header = (OUTPUT, 0, 0, 0, self._tag, record.port, process, 0)
        return Message(header, memoryview(record.payload))
