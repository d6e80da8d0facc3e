"""What a controller does, while it drives them, for its meshes to go on without it.

Meshes are of this host, or of hosts that have joined for a job. Each kind has a record of its own
(`kept_record.py`) and a folder in which its meshes are written down.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from monarch_nb.control.keeping import kept_record
from monarch_nb.control.keeping.journal import Journal
from monarch_nb.control.keeping.kept_record import KeptHosts, KeptMesh, KeptRecord, own_notebook
from monarch_nb.core.wire.frames import HOST_SHIFT, ROOT_PORT
from monarch_nb.core.wire.messages.codec import Done, Refused
from monarch_nb.core.wire.messages.keeping import Keep, LogOutput
from monarch_nb.errors import LaunchError
from monarch_nb.host.guard import started_at
from monarch_nb.meshes.states import ProcsState, procs_of
from monarch_nb.process.futures.ask_all import Question
from monarch_nb.process.process import Proc, agent_of
from monarch_nb.process.supervision.supervision import MeshState, Supervision

if TYPE_CHECKING:
    from monarch_nb.control.hosts.attached import AttachedHosts
    from monarch_nb.control.jobs.job import JobTrait

ANSWER_S: Final = 10.0
_HERE: Final = 0
_ELSEWHERE: Final = 1
_OWN_HOSTS: Final = (
    "{} cannot be kept: this program has got its hosts itself, and what runs there ends with it. "
    "Get them with %mesh up --on ENGINE ... --keep 8h"
)
OUTPUT_BYTES: Final = 256 << 20
"""What is logged of each rank; then the older half goes."""


class MeshJob(NamedTuple):
    """The job that has the hosts of a mesh, and what was asked for, as JSON."""

    job: JobTrait
    wanted: list[object]


class Keeper:
    """Keeps meshes of a controller beyond its end. `agent_pid()` is the process of the agent of
    this host; `tell(text)` is called with what cannot be kept; `hosts()` are those that have
    joined, None before there are any."""

    def __init__(
        self,
        proc: Proc,
        supervision: Supervision,
        agent_pid: Callable[[], int | None],
        tell: Callable[[str], None],
        hosts: Callable[[], AttachedHosts | None],
    ) -> None:
        self._tell = tell
        self._proc = proc
        self._supervision = supervision
        self._agent_pid = agent_pid
        self._hosts = hosts
        self._here = Journal(proc.links.run_dir)
        self._elsewhere: Path | None = None  # the folder of those on hosts of jobs
        self._jobs: dict[int, MeshJob] = {}  # by mesh
        self._settled: set[int] = set()  # whose hosts have said that they are kept
        self._kept: set[int] = set()
        self._records = [False, False]  # which are there, of this process
        self._asked: set[int] = set()  # agents that keep some
        self._to_come: set[int] = set()  # hosts of what another controller has kept, until `go_on`
        self._logging: set[int] = set()
        self._for_s = 0.0
        self._key = secrets.token_hex(32)
        self._lock = threading.Lock()
        self._over = threading.Event()
        supervision.on_owned.append(self._owned)
        supervision.on_disowned.append(self._disowned)
        supervision.on_heal.append(lambda state, _: self._owned(state))

    @property
    def kept(self) -> list[ProcsState]:
        """The meshes that go on when this process ends."""
        states = [self._supervision.states.get(number) for number in list(self._kept)]
        return [each for each in states if isinstance(each, ProcsState) and each.ended is None]

    @property
    def kept_here(self) -> list[ProcsState]:
        """Those of this host."""
        return [each for each in self.kept if self._is_here(each)]

    @property
    def kept_hosts(self) -> set[int]:
        """The hosts elsewhere that go on with those of them that they have, spares of their jobs
        among them."""
        states = [each for each in self.kept if not self._is_here(each)]
        used = {agent >> HOST_SHIFT for each in states for agent in each.agents} | self._to_come
        for state in states:
            if (found := self._jobs.get(state.number)) is not None:
                used.update(found.job.kept_hosts())
        return used

    def keeps(self, state: MeshState) -> bool:
        """Tell whether a mesh of processes goes on when this process ends."""
        return state.number in self._kept

    def is_key(self, key: str) -> bool:
        """Tell whether this is the key that takes the meshes over."""
        return bool(self._kept) and hmac.compare_digest(self._key, key)

    @property
    def for_s(self) -> float:
        return self._for_s

    def keep(self, states: Sequence[ProcsState], for_s: float, job: MeshJob | None = None) -> None:
        """Keep these meshes too: they go on for so long when this process has gone. `job` has
        their hosts, if these are no part of this host. Waits for the agents. Raises `LaunchError`
        where they cannot be kept."""
        for state in states:
            self._check(state, job)
        with self._lock:
            self._kept.update(each.number for each in states)
            if job is not None:
                self._jobs.update((each.number, job) for each in states)
            self._for_s = for_s
            for state in states:
                for each in (state, *state.actors):
                    self._note(each)
            asked = self._renew()
        self._await(asked)
        if job is not None:
            with self._lock:
                self._settled.update(each.number for each in states)
                self._renew_records()

    def await_hosts(self, hosts: Iterable[int]) -> None:
        """Note hosts of what this process is about to take over: who comes too late is to be there
        for the next one."""
        self._to_come = set(hosts)

    def go_on(self, record: KeptRecord, states: Sequence[ProcsState]) -> None:
        """Keep what another controller has kept, as it did."""
        self._key = record.key
        if record.hosts is not None:
            self._elsewhere = Path(record.run_dir)
            self._begin_to_touch()
        self._logging.update(process for state in states for process in state.processes)
        with self._lock:
            if record.hosts is None and self._proc.agent != record.agent:
                return  # another controller has taken them over meanwhile
            self._to_come = set()
            self._kept.update(each.number for each in states)
            self._for_s = record.for_s
            for state in states:
                for each in (state, *state.actors):
                    self._note(each)
            asked = self._renew()
        self._await(asked)

    def has_job(self, state: ProcsState, job: MeshJob) -> None:
        """Note the job that has the hosts of a mesh which is kept."""
        with self._lock:
            self._jobs[state.number] = job
            self._settled.add(state.number)
            self._renew()

    def taken_over(self, *, elsewhere: bool) -> None:
        """Keep nothing any more, of this host or of those elsewhere: another controller does."""
        with self._lock:
            gone = [each for each in self.kept if self._is_here(each) != elsewhere]
            self._kept.difference_update(each.number for each in gone)
            for each in gone:
                if (found := self._jobs.pop(each.number, None)) is not None:
                    found.job.leave()
            self._records[_ELSEWHERE if elsewhere else _HERE] = False

    def let_go(self, states: Iterable[ProcsState]) -> None:
        """Keep these no longer: they end with this process."""
        with self._lock:
            for state in states:
                self._kept.discard(state.number)
                for each in (state, *state.actors):
                    self._journal(state).forget(each)
            asked = self._renew()
        self._await(asked)

    def close(self) -> None:
        """Note for the last time that this process lives."""
        self._over.set()
        if self._elsewhere is not None and self._records[_ELSEWHERE]:
            kept_record.touch(self._elsewhere.name)

    def _check(self, state: ProcsState, job: MeshJob | None) -> None:
        hosts = {agent >> HOST_SHIFT for agent in state.agents}
        if self._is_here(state) and len(hosts) == 1:
            return
        if job is None or self._proc.host in hosts:
            raise LaunchError(_OWN_HOSTS.format(state.name))
        job.job.check_kept()

    def _is_here(self, state: ProcsState) -> bool:
        return state.agents[0] >> HOST_SHIFT == self._proc.host

    def _journal(self, state: ProcsState) -> Journal:
        if self._is_here(state):
            return self._here
        if self._elsewhere is None:
            self._elsewhere = kept_record.folder_for(f"{self._proc.links.run_dir.name}-hosts")
            self._begin_to_touch()
        return Journal(self._elsewhere)

    def _begin_to_touch(self) -> None:
        threading.Thread(target=self._touch, name="monarch-kept", daemon=True).start()

    def _touch(self) -> None:
        while not self._over.wait(kept_record.TOUCH_S):
            if self.kept_hosts and self._elsewhere is not None:
                kept_record.touch(self._elsewhere.name)

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
        procs = procs_of(state)
        if procs is None or procs.number not in self._kept:
            return
        self._journal(procs).forget(state)
        if state is procs and not self._proc.closed:
            with self._lock:
                self._kept.discard(state.number)
                self._renew()

    def _note(self, state: MeshState) -> None:
        procs = procs_of(state)
        assert procs is not None
        if (trouble := self._journal(procs).note(state)) is not None:
            self._tell(trouble)

    def _renew(self) -> Question[Done]:
        kept = self.kept
        procs: dict[int, list[int]] = {}
        for host in self.kept_hosts:
            procs[agent_of(host)] = []
        for state in kept:
            for agent, process in zip(state.agents, state.processes, strict=True):
                procs.setdefault(agent, []).append(process)
        wanted = {agent: Keep(some, self._for_s, self._key) for agent, some in procs.items()}
        wanted |= {agent: Keep([], 0.0, self._key) for agent in self._asked.difference(wanted)}
        self._asked = set(procs)
        living = {each: keep for each, keep in wanted.items() if each not in self._proc.dead}
        asked = Question(self._proc, living)
        new = [each for some in procs.values() for each in some if each not in self._logging]
        self._logging.update(new)
        self._proc.control_all(new, LogOutput(min(OUTPUT_BYTES, self._proc.config.log_bytes)))
        self._renew_records()
        return asked

    def _renew_records(self) -> None:
        kept, here = self.kept, self.kept_here
        self._renew_record(_HERE, here, self._record_here)
        elsewhere = [each for each in kept if each not in here]
        self._renew_record(_ELSEWHERE, elsewhere, self._record_elsewhere)

    def _renew_record(
        self,
        kind: int,
        kept: Sequence[ProcsState],
        made: Callable[[Sequence[ProcsState]], KeptRecord | None],
    ) -> None:
        # one that is not ours, as of meshes that are looked at, is left alone
        if (kept or self._records[kind]) and (record := made(kept)) is not None:
            self._records[kind] = bool(kept)
            if kept:
                record.write()
            else:
                record.remove()

    def _await(self, asked: Question[Done]) -> None:
        answers = asked.wait(ANSWER_S)
        for answer in answers.values():
            if isinstance(answer, Refused):
                raise LaunchError(f"the agent of a host cannot keep them: {answer.error}")
        if not asked.is_over:
            raise LaunchError(f"the agent of a host has not answered within {ANSWER_S:g} s")

    def _record_here(self, kept: Sequence[ProcsState]) -> KeptRecord:
        return self._record(kept, self._proc.links.run_dir, self._proc.agent, None)

    def _record_elsewhere(self, kept: Sequence[ProcsState]) -> KeptRecord | None:
        attached = self._hosts()
        head = None if attached is None else attached.keep()
        if attached is None or head is None or self._elsewhere is None:
            return None
        wanted = self.kept_hosts
        names = [(host, name) for host, name in attached.names.items() if host in wanted]
        found = [(each.name, self._jobs.get(each.number)) for each in kept]
        for each in kept:
            if each.number in self._settled:
                self._jobs[each.number].job.let_stay()
        jobs = [
            (name, each.wanted, each.job.kept_state()) for name, each in found if each is not None
        ]
        hosts = KeptHosts(str(self._proc.links.run_dir), head, names, jobs)
        return self._record(kept, self._elsewhere, 0, hosts)

    def _record(
        self, kept: Sequence[ProcsState], folder: Path, agent: int, hosts: KeptHosts | None
    ) -> KeptRecord:
        pid, agent_pid = os.getpid(), 0 if hosts else self._agent_pid() or 0
        return KeptRecord(
            host=socket.gethostname(),
            run_dir=str(folder),
            controller=self._proc.id,
            controller_pid=pid,
            controller_started=started_at(pid) or 0,
            agent=agent,
            agent_pid=agent_pid,
            agent_started=started_at(agent_pid) or 0,
            key=self._key,
            for_s=self._for_s,
            config=asdict(self._proc.config),
            notebook=own_notebook(),
            meshes=[KeptMesh(each.name, dict(each.shape.extent)) for each in kept],
            hosts=hosts,
        )
