"""Looking at meshes that another process drives; those of this machine also when nobody does. Any
number of processes may.

What is seen are the states of the ranks, their ends, and what they print, which their agents read
from their logs. Nothing is asked of ranks but questions that their inbox thread answers. Hosts of
jobs are reached through the run dir of the process that drives them: the look ends with that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from monarch_nb.config import Config
from monarch_nb.control import client as client_module
from monarch_nb.control.keeping import journal
from monarch_nb.control.status.sampling import affordable_s
from monarch_nb.core.wire.frames import OUTPUT, OUTPUT_PORT, Message
from monarch_nb.core.wire.messages import codec
from monarch_nb.core.wire.messages.agents import RawOutput, Watch
from monarch_nb.core.wire.messages.codec import Refused
from monarch_nb.core.wire.messages.keeping import Adopted, Follow, Followed, Look, Printed
from monarch_nb.errors import LaunchError
from monarch_nb.host import rundir
from monarch_nb.meshes.hosts import KeptProcs
from monarch_nb.meshes.proc_mesh import ProcMesh, whole_mesh
from monarch_nb.meshes.states import ProcsState

if TYPE_CHECKING:
    from monarch_nb.control.client import Client
    from monarch_nb.control.keeping.kept_record import KeptRecord

LOOK_S: Final = 0.2
ANSWER_S: Final = 5.0
"""For the first host to tell what its ranks have printed before."""
WHY: Final = (
    "{} is looked at only: another notebook may drive it. %mesh attach {} --fence takes it over"
)
_UNDRIVEN: Final = (
    "no other notebook drives {0}, and of meshes on hosts of a job --view shows what one does. "
    "%mesh attach {0} brings it back; %mesh list says what its ranks do"
)
_STOPPED: Final = "{} was stopped"
_OVER: Final = "{0}: nobody drives it now, or another notebook. %mesh attach {0} brings it back"
_REFUSED: Final = "{0}: {1}. %mesh attach {0} --view looks again"


def look_at(record: KeptRecord, tag: int, tell: Callable[[str], None]) -> list[ProcMesh]:
    """Look at the meshes of a record, until the client of this process is shut down. What ranks
    print from now on is shown for the notebook cell `tag`. `tell(line)` is called, in a thread of
    its own, with each of which nothing is seen any more, and why.

    Raises `LaunchError` where they have ended, or are on hosts of a job and nobody drives them;
    `RuntimeError` where this process has meshes of its own.
    """
    hosts = record.hosts
    if hosts is not None and not record.is_driven():
        raise LaunchError(_UNDRIVEN.format(record.meshes[0].name))
    run_dir = rundir.hold(Path(record.run_dir if hosts is None else hosts.run_dir))
    agent = record.agent if hosts is None else None
    client = client_module.start_in(run_dir, Config(**record.config), agent, looks=True)
    try:
        looking = Looking(client, record, tag, tell)
        looking.await_hosts(ANSWER_S)
    except BaseException:
        client.shutdown(0)
        raise
    looking.begin()
    return [whole_mesh(state) for state in looking.states]


class Looking:
    """Follows the meshes of a record, in a thread that ends with the client."""

    def __init__(
        self, client: Client, record: KeptRecord, tag: int, tell: Callable[[str], None]
    ) -> None:
        self._client = client
        self._record = record
        self._tag = tag
        self._tell = tell
        self._states: dict[int, ProcsState] = {}
        self._hosts: dict[int, FollowedHost] = {}  # by their agents
        self._has_begun = False
        self._over = threading.Event()
        self._written: frozenset[tuple[str, int]] = frozenset()
        if record.hosts is not None:
            client.proc.watching([record.controller])  # whose end is seen in `is_in_force`
        self._follow_meshes()

    @property
    def states(self) -> list[ProcsState]:
        return list(self._states.values())

    def await_hosts(self, limit_s: float) -> None:
        """Wait until the hosts have told what was printed before. Raises `LaunchError` where none
        lets this process look."""
        deadline = time.monotonic() + limit_s
        self._ask()
        for host in self._hosts.values():
            host.has_told.wait(max(0.0, deadline - time.monotonic()))
        if not any(host.there for host in self._hosts.values()):
            why = {host.refused for host in self._hosts.values()} - {""}
            raise LaunchError(min(why, default=f"no host has answered within {limit_s:g} s"))
        if self._record.hosts is None:
            there = self._hosts[self._record.agent].there
            assert there is not None
            self._client.agent_found(there.pid, there.gpus)

    def begin(self) -> None:
        self._has_begun = True
        self._client.at_close.append(self._over.set)
        threading.Thread(target=self._run, name="monarch-look", daemon=True).start()

    def _run(self) -> None:
        while not self._over.wait(affordable_s(LOOK_S, len(self._hosts))):
            self._follow_meshes()
            if (why := self._ended()) is not None:
                self._end(self._states.values(), why)
                return
            self._ask()

    def _ended(self) -> str | None:
        if self._record.hosts is not None and not self._record.is_in_force():
            return _OVER
        dead = self._client.proc.dead
        refused = [each.refused for agent, each in self._hosts.items() if agent not in dead]
        why = next(filter(None, refused), None)
        return None if why is None else _REFUSED.format("{0}", why)

    def _end(self, states: Iterable[ProcsState], why: str) -> None:
        for state in states:
            if state.ended is None:
                line = why.format(state.name)
                state.end(line)
                self._tell(line)

    def _follow_meshes(self) -> None:
        run_dir = Path(self._record.run_dir)
        written = journal.written(run_dir)
        if written == self._written:
            return
        self._written = written
        found = {kept.number: kept for kept in journal.read_procs(run_dir)}
        for number, kept in found.items():
            known = self._states.get(number)
            if known is None:
                self._begin(kept)
            elif known.processes != kept.processes:  # it was healed
                self._renew(known, kept)
        self._end([self._states[each] for each in self._states.keys() - found.keys()], _STOPPED)

    def _begin(self, kept: KeptProcs) -> None:
        why = WHY.format(kept.name, kept.name)
        state = self._client.look_at(kept, why, whole_mesh)
        self._states[kept.number] = state
        self._watch(state, range(len(state.processes)))

    def _renew(self, state: ProcsState, kept: KeptProcs) -> None:
        pairs = zip(state.processes, kept.processes, strict=True)
        new = [rank for rank, (old, now) in enumerate(pairs) if old != now]
        state.follow(kept.processes)
        state.restore(new)
        self._watch(state, new)

    def _watch(self, state: ProcsState, ranks: Iterable[int]) -> None:
        proc = self._client.proc
        watched: dict[int, list[int]] = {}
        for rank in ranks:
            watched.setdefault(state.agents[rank], []).append(state.processes[rank])
        for agent, some in watched.items():
            proc.watching([agent, *some])
            proc.control(agent, Watch(some))  # which tells of ends and pulses
            if self._record.hosts is not None:  # a host that is lost does not say so
                proc.control(self._record.controller, Watch([agent, *some]))

    def _ask(self) -> None:
        processes: dict[int, list[int]] = {}
        for state in self._states.values():
            for agent, process in zip(state.agents, state.processes, strict=True):
                processes.setdefault(agent, []).append(process)
        for agent, some in processes.items():
            if agent not in self._hosts:
                shown = self._has_begun  # a new host has printed nothing before
                host = FollowedHost(self._client, agent, self._record.key, self._tag, shown=shown)
                self._hosts[agent] = host
            self._hosts[agent].ask(some)


class FollowedHost:
    """What is printed on one host, as its agent reads it from the logs, a part at a time. The first
    parts are what was printed before: they are kept, and not `shown`. Answers come in the inbox
    thread."""

    def __init__(self, client: Client, agent: int, key: str, tag: int, *, shown: bool) -> None:
        self.there: Adopted | None = None
        """What the agent has told when it let this process look."""
        self.refused = ""
        """Why it does not, or not any more."""
        self.has_told = threading.Event()
        """What was printed before is known, or will not be."""
        self._client = client
        self._agent = agent
        self._key = key
        self._tag = tag
        self._shown = shown
        self._processes: list[int] = []
        self._is_asked = False

    def ask(self, processes: list[int]) -> None:
        """Ask for what these have printed since; nothing while an answer is due. Any thread but the
        inbox thread."""
        self._processes = processes
        if not self._is_asked and not self.refused:
            self._ask()

    def _ask(self) -> None:
        self._is_asked = True
        proc = self._client.proc
        if self.there is None:
            proc.ask(self._agent, Look(self._key), self._let_in)
        else:
            proc.ask(self._agent, Follow([self._agent, *self._processes]), self._told)

    def _let_in(self, answer: Adopted | Refused) -> None:
        if isinstance(answer, Refused):
            self._end(answer)
            return
        self.there = answer
        self._client.hosts_found({self._agent: answer.gpus})
        self._ask()

    def _told(self, answer: Followed | Refused) -> None:
        if isinstance(answer, Refused):
            self._end(answer)
            return
        for printed in answer.printed:
            self._take(printed)
        if answer.is_all:
            self._shown = True
            self.has_told.set()
            self._is_asked = False
        else:
            self._ask()

    def _end(self, answer: Refused) -> None:
        self.refused = answer.error
        self._is_asked = False
        self.has_told.set()

    def _take(self, printed: Printed) -> None:
        output = self._client.output
        payload = printed.output.encode()
        if printed.proc == self._agent:
            raw = codec.decode(RawOutput, codec.json_of(payload))
            output.recall_raw(raw, self._tag, shown=self._shown)
        else:
            header = (OUTPUT, 0, 0, 0, self._tag, OUTPUT_PORT, printed.proc, 0)
            output.recall(Message(header, memoryview(payload)), shown=self._shown)
