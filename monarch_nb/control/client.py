"""The client: the process that a person drives. It starts hosts, owns the run dir, and is the root
of supervision.

Rules: one client per process, started at first use, ended at exit; after it nothing is left,
whatever happened. A failure that nobody waits for goes to `unhandled_fault_hook`, once; the default
leaves notebooks alone and ends scripts.
"""

from __future__ import annotations

import atexit
import contextlib
import linecache
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from monarch_nb.actors.endpoints import returns_future
from monarch_nb.config import Config
from monarch_nb.control import started
from monarch_nb.control.cell_history import CellHistory
from monarch_nb.control.debug.dap import DapService
from monarch_nb.control.debug.server import DebugServer
from monarch_nb.control.debug.sessions import DebugService, PauseService, PostMortem
from monarch_nb.control.elastic.loops import ElasticLoops, Mended
from monarch_nb.control.faults import FaultService, exit_when_told
from monarch_nb.control.hangs.agreement import Agreements
from monarch_nb.control.hosts.agents import AgentProcess, FoundAgent
from monarch_nb.control.hosts.watchers import Watchers
from monarch_nb.control.inspection.answering import InspectionServer
from monarch_nb.control.inspection.reports import Inspected
from monarch_nb.control.keeping.keeper import Keeper
from monarch_nb.control.output.comms import CommService
from monarch_nb.control.output.failures import Failures
from monarch_nb.control.output.logbook import Logbook
from monarch_nb.control.output.routing import OutputEvent, OutputService
from monarch_nb.control.status.sampling import StatusService
from monarch_nb.control.status.snapshots import Snapshot
from monarch_nb.core.wire.frames import COMM_PORT, HOST_SHIFT, OUTPUT_PORT, Message
from monarch_nb.core.wire.messages import (
    actors,
    agents,
    cells,
    debug,
    groups,
    hosts,
    keeping,
    status,
)
from monarch_nb.core.wire.messages.codec import Done, Refused
from monarch_nb.errors import LaunchError
from monarch_nb.host import guard, rundir
from monarch_nb.host.rundir import RunDir, new_run_dir
from monarch_nb.meshes.bootstrap import Environment, changes
from monarch_nb.meshes.healing.healing import Healing
from monarch_nb.meshes.restarting.restarts import Restarts
from monarch_nb.meshes.states import ProcsState, procs_of
from monarch_nb.net import wire
from monarch_nb.net.known_hosts import Trust
from monarch_nb.process import current
from monarch_nb.process.exit import Exit
from monarch_nb.process.futures.calls import cancel_made_by, cancel_owed_by
from monarch_nb.process.futures.future import Future, LazyFuture, completed, make
from monarch_nb.process.instance import CallContext, here
from monarch_nb.process.process import Serve, Wait, new_agent_id, new_process_ids, serve
from monarch_nb.process.supervision.supervision import MeshFailure, MeshState
from monarch_nb.services.controllers import serve_controllers
from monarch_nb.services.runtime import Runtime

if TYPE_CHECKING:
    from monarch_nb.control.hosts.attached import AttachedHosts, Explain
    from monarch_nb.control.hosts.listing import ListedHost
    from monarch_nb.control.hosts.replacements import HostGroup
    from monarch_nb.control.keeping.kept_record import KeptHead
    from monarch_nb.net.hosts.joining import Ticket

T = TypeVar("T")
_log: Final = logging.getLogger("monarch_nb")
LOCAL_HOST: Final = 1
NO_CELL: Final = 0
"""The tag of what no notebook cell has asked for."""


class Client(Runtime):
    """The runtime of the controlling process."""

    def __init__(
        self, run_dir: RunDir, config: Config, agent: int | None = None, *, looks: bool = False
    ) -> None:
        [process] = new_process_ids(LOCAL_HOST, 1)
        self.faults = FaultService()
        super().__init__(
            process=process,
            agent=agent or new_agent_id(LOCAL_HOST),
            controller=process,
            run_dir=run_dir.path,
            config=config,
            on_root_failure=self.faults.root_failed,
        )
        self._run_dir = run_dir
        self._shares_run_dir = looks or agent is not None
        self._looks = looks  # at meshes that another process drives, or nobody
        self._agent: AgentProcess | None = None
        self._lifeline = -1
        self._attached: AttachedHosts | None = None
        self._gpus: dict[int, list[str]] = {}  # of hosts, by their agents
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.output = OutputService(self.supervision, Logbook(self._log_dir(), config.log_bytes))
        self.tail, self.metrics = self.output.tail, self.output.metrics
        self.failures = Failures(self.proc, self.supervision, self.tail)
        self.comms = CommService(self.proc, self.supervision, self.output.called)
        self.debuggers = DapService(self.proc)
        self.status = StatusService(self.proc, self.supervision)
        self.debugging = DebugService(self.proc, self.supervision, config.breakpoints)
        self.post_mortem = PostMortem(self.debugging)
        self._debug_server: DebugServer | None = None
        self._inspection: InspectionServer | None = None
        if not looks:
            self._debug_server = DebugServer(self.debugging, run_dir.path, os.getuid())
            self._inspection = InspectionServer(self._inspected(), run_dir.path, os.getuid())
        self._watchers = Watchers(self.proc, self._agent_on)
        self.supervision.on_exit.append(self._watchers.exited)
        self.agreements = Agreements(self.proc, self.supervision)
        self.at_close.append(self.agreements.close)
        self.history = CellHistory()
        self.supervision.on_disowned.append(lambda mesh: self.history.forget(mesh.number))
        self.elastic = ElasticLoops(
            self.proc, self.supervision, self.parts[Healing], self.history, self._hears
        )
        self.proc.on_call_failed.append(self.agreements.call_failed)
        self.proc.on_calls_cancelled.append(self.agreements.calls_cancelled)
        self.hosting.booted()
        serve_controllers(self.proc)
        self.proc.ports[OUTPUT_PORT] = self.output.on_output
        self.proc.ports[COMM_PORT] = self.comms.on_message
        self.pauses = PauseService(self.proc, self.supervision)
        self.keeper = Keeper(
            self.proc,
            self.supervision,
            lambda: None if self._agent is None else self._agent.pid,
            _log.warning,
            lambda: self._attached,
        )

    def start(
        self, handlers: Iterable[Serve] = (), after_interrupt: Sequence[Callable[[], None]] = ()
    ) -> None:
        own = [
            serve(agents.Ready, self._on_ready),
            serve(agents.ZygoteFailed, self._on_failed),
            serve(agents.Spawned, self.status.on_spawned),
            serve(agents.Board, self.status.on_board),
            serve(agents.Watch, self._watchers.on_watch),
            serve(agents.RawOutput, self.output.on_raw),
            serve(actors.AggregateOutput, self.output.on_logging_option),
            serve(cells.GetSource, self._on_get_source),
            serve(groups.OutOfStep, self.agreements.on_out_of_step),
            serve(status.GetHeldOfMesh, self.pauses.on_asked),
            serve(debug.DebugEvent, self._on_debug_event),
            serve(debug.DapEvent, self._on_dap_event),
            serve(keeping.TakenOver, self._on_taken_over),
            *self.elastic.handlers(),
        ]
        super().start([*own, *handlers], after_interrupt)

    def _inspected(self) -> Inspected:
        return Inspected(
            *(self.proc, self.supervision, self.status, self.failures, self.output),
            self.debugging,
        )

    def _log_dir(self) -> Path:
        if not self.config.log_dir:
            # of each controller: the next one recalls what ranks have logged
            return self._run_dir.path / f"logs-{self.proc.id:016x}"
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{self._run_dir.path.name}"
        return Path(self.config.log_dir).expanduser() / name

    @property
    def config(self) -> Config:
        """The settings as they are now."""
        return self.proc.config

    # meshes that are kept

    def make_lifeline(self) -> None:
        """Let an agent that another process has started notice the end of this one."""
        self._lifeline = rundir.new_lifeline(self._run_dir.path, self.proc.id)

    def agent_found(self, pid: int, gpus: list[str]) -> None:
        """Have the agent that another controller has left."""
        self._agent = AgentProcess(self.proc, self._agent_ended, FoundAgent.of(pid))
        self._agent.ready._set_result(True)
        self._gpus[self.proc.agent] = gpus

    def own_run_dir(self) -> None:
        """Be who removes the run dir in the end: the one before has gone."""
        self._run_dir.own()
        self._shares_run_dir = False

    @property
    def looks(self) -> bool:
        """Tell whether it looks at meshes that it does not drive, and has none of its own."""
        return self._looks

    def _on_taken_over(self, taken: keeping.TakenOver, _: Message) -> None:
        when = time.strftime("%H:%M:%S", time.localtime(taken.at))
        reason = f"{taken.who} has taken it over at {when}"
        agent, old = self._agent, self.proc.agent
        with self._lock:
            self._agent, self._shares_run_dir = None, True
            self.proc.replace_agent(new_agent_id(LOCAL_HOST))
        self.keeper.taken_over(elsewhere=False)
        if agent is not None:
            agent.let_go()
        for state in list(self.supervision.states.values()):
            procs = procs_of(state)
            if procs is not None and old in procs.agents:
                back = f"%mesh attach {procs.name} --fence brings it back here"
                state.only_see(f"{state.name}: {reason}. {back}")
        lost = [old, *self._processes_below(old)]
        self.supervision.exited(*(Exit(each, reason=reason, for_good=True) for each in lost))

    def have_hosts_back(self, head: KeptHead, names: Mapping[int, str]) -> None:
        """Be who these hosts look for, whose controller has gone. Raises `LaunchError` where
        another program listens in its place."""
        self.keeper.await_hosts(names)
        self._hosts_elsewhere().go_on(head, names)

    def host_not_back(self, host: int, why: str) -> None:
        """Give up a host that has not come back."""
        self._hosts_elsewhere().not_back(host, why)

    def hosts_found(self, gpus: Mapping[int, list[str]]) -> None:
        """Know the GPUs of hosts, by their agents, that another controller has left."""
        self._gpus.update(gpus)

    def _on_let_go(self, asked: hosts.LetGo) -> Done | Refused:
        # the thread of who joins
        if not self.keeper.is_key(asked.key):
            return Refused("nothing is kept here under this key")
        self._leave_kept_hosts(asked.who)
        return Done()

    def _leave_kept_hosts(self, who: str) -> None:
        reason = f"{who} has taken it over at {time.strftime('%H:%M:%S')}"
        states = [each for each in self.keeper.kept if each not in self.keeper.kept_here]
        self.keeper.taken_over(elsewhere=True)
        for state in states:
            back = f"%mesh attach {state.name} --fence brings it back here"
            state.only_see(f"{state.name}: {reason}. {back}")
        if self._attached is not None:
            self._attached.leave(reason)

    # what notebooks use

    @property
    def tag(self) -> int:
        """The notebook cell whose calls are made now; 0 outside of notebooks."""
        return self.root.tag

    def tag_calls(self, tag: int) -> None:
        """Make the calls from now on for this notebook cell; 0: for none."""
        self.root.tag_calls(tag)

    def on_output(self, callback: Callable[[OutputEvent], None]) -> None:
        """Call `callback(event)` in the inbox thread for everything that ranks print or show."""
        self.output.listen(callback)

    def on_failure(self, callback: Callable[[MeshFailure], None]) -> None:
        """Call `callback(failure)` for failures that nobody waits for, instead of ending the
        program. The death of a rank that an elastic loop brings back is none."""

        def told(failure: MeshFailure) -> None:
            if failure.ended is None or not self.elastic.holds(failure.ended.process):
                callback(failure)

        self.faults.listen(told)

    def on_heal(self, callback: Callable[[str, Sequence[int]], None]) -> None:
        """Call `callback(mesh, ranks)` when ranks that were lost are there again, before they run
        code of the user's, in the thread that heals."""
        self.supervision.on_heal.append(lambda state, ranks: callback(state.name, ranks))

    def on_pulse(self, callback: Callable[[], object]) -> None:
        """Call back in the inbox thread when a rank has become silent, or is heard again."""
        self.supervision.on_pulse.append(callback)

    def on_groups_made(self, callback: Callable[[str, str], None]) -> None:
        """Call `callback(mesh, line)` when ranks of a mesh that were out of step have new process
        groups, in the thread that uses the mesh next. Else the line is logged."""
        self.agreements.on_made.append(callback)

    def on_mended(self, callback: Callable[[Mended], None]) -> None:
        """Call back when a rank was brought back in an elastic loop. Any thread."""
        self.elastic.on_mended.append(callback)

    def on_restarted(self, callback: Callable[[str], None]) -> None:
        """Call back with a line for people when actors that have failed are there again. Any
        thread. Else the line is logged."""
        self.parts[Restarts].on_restarted.append(callback)

    def snapshot(self) -> Snapshot:
        """Return the state of every mesh, as one immutable value: as it is now, not as it was seen
        last."""
        return self.status.snapshot(fresh=True)

    def run_untagged(self, run: Callable[[], T]) -> T:
        """Run this as the root, under the tag of no cell, whatever cell runs meanwhile: a button of
        the mesh view."""

        def untagged() -> T:
            here.set(CallContext(self.root, (), (), 0, NO_CELL))
            return run()

        return copy_context().run(untagged)

    def interrupt(self, tag: int | None = None) -> None:
        """Interrupt the calls in flight that were made by the cell `tag` (None: all). Returns at
        once."""
        cancel_made_by(self.proc, tag)

    def interrupt_processes(self, processes: Sequence[int]) -> bool:
        """Interrupt the calls and cells that these owe an answer to. Returns at once; whether there
        were any."""
        return cancel_owed_by(self.proc, processes)

    def waits(self, tag: int) -> list[Wait]:
        """Return what the notebook cell `tag` is waiting for."""
        found = [waiter.wait_for_people() for waiter in self.proc.waiters()]
        return [each for each in found if each is not None and each.tag in {None, tag}]

    # hosts

    def local_agent(self) -> int:
        with self._lock:
            if self._closed.is_set():
                raise RuntimeError(
                    "the client has been shut down; use any mesh function to start a new one"
                )
            if self._looks:
                raise RuntimeError(
                    "this notebook only looks at a mesh, so it has none of its own. "
                    "%mesh down ends the look, and not the mesh"
                )
            if self._agent is None:
                self._agent = AgentProcess(self.proc, self._agent_ended)
        return self.proc.agent

    def living_agent(self, agent: int) -> int:
        if agent not in self.proc.dead:
            return agent
        if agent >> HOST_SHIFT == self.proc.host:
            return self.local_agent()
        return agent if self._attached is None else self._attached.replacements.living_agent(agent)

    def replace_hosts(self, agents: Sequence[int]) -> dict[int, int]:
        return {} if self._attached is None else self._attached.replacements.find(agents)

    def host_words(self, agent: int) -> str:
        host = agent >> HOST_SHIFT
        names = {} if self._attached is None else self._attached.names
        return "this host" if host == self.proc.host else names.get(host, super().host_words(agent))

    def loss_words(self, agent: int) -> str:
        if self._attached is None or agent >> HOST_SHIFT not in self._attached.names:
            return super().loss_words(agent)
        return self._attached.replacements.words(agent)

    def gpus_of(self, agent: int) -> Sequence[str]:
        return self._gpus.get(agent) or super().gpus_of(agent)

    def environment_changes(self, agent: int) -> Environment:
        if agent != self.proc.agent or self._agent is None:
            return super().environment_changes(agent)
        return changes(self._agent.environment, os.environ)

    def hosts_ready(self, agents: Sequence[int]) -> Future[bool]:
        if list(agents) == [self.proc.agent] and self._agent is not None:
            return self._agent.ready
        if self._attached is None:
            return super().hosts_ready(agents)
        waiting = [self._attached.ready[agent >> HOST_SHIFT] for agent in agents]
        if len(waiting) == 1:
            return waiting[0]

        async def all_ready() -> bool:
            return all([await each for each in waiting])

        return returns_future(all_ready)()

    def attach_hosts(self, addresses: Sequence[str], trust: Trust, spares: int = 0) -> list[int]:
        """Dial other hosts, so many spares the last of them; their numbers. They are dialled again
        when a heal wants hosts in the place of lost ones."""
        limit_s = lambda: self.proc.config.attach_s  # noqa: E731
        return self._hosts_elsewhere().attach(addresses, trust, limit_s, spares)

    def replace_from(self, group: HostGroup) -> None:
        """Take the hosts that replace lost ones of a group from its spares, or ask for them again,
        as it says."""
        self._hosts_elsewhere().replacements.add(group)

    def _hosts_elsewhere(self) -> AttachedHosts:
        with self._lock:
            if self._attached is None:
                from monarch_nb.control.hosts.attached import AttachedHosts, HostKeeping

                self._attached = AttachedHosts(
                    self.proc.links,
                    self.proc.host,
                    self.config,
                    self.proc.id,
                    self._host_lost,
                    self._host_pulse,
                    self.proc.dead,
                    self.supervision.silent,
                    HostKeeping(lambda host: host in self.keeper.kept_hosts, self._on_let_go),
                )
                self.supervision.on_exit.append(self._attached.process_ended)
            return self._attached

    def await_hosts(
        self, names: Sequence[str], address: str | None = None, explain: Explain | None = None
    ) -> tuple[list[int], Ticket]:
        """Let hosts join, which a launcher starts with the ticket; return their numbers.

        They are called by their names in what goes wrong, and listened for at `address`; None: on
        every interface. `explain(host, why, tell)` is asked about one that is lost later, and calls
        `tell` with what is known then.
        """
        with guard.held_back(signal.SIGINT):  # what listens then is whole, and closed at the end
            return self._hosts_elsewhere().invite(names, address, explain)

    def give_up_host(self, host: int, why: str) -> None:
        """End the wait for a host that will not join."""
        self._hosts_elsewhere().give_up(host, why)

    def host_ready(self, host: int) -> Future[bool]:
        """Return the wait for a host that was asked for, by its number."""
        return self._hosts_elsewhere().ready[host]

    def host_name(self, host: int) -> str | None:
        """Return what a host that has joined calls itself; None where none has."""
        elsewhere = self._hosts_elsewhere()
        ready = elsewhere.ready[host]
        if not ready.done() or ready.exception() is not None:
            return None
        return elsewhere.hostnames.get(host) or elsewhere.names.get(host)

    def host_called(self, host: int) -> str:
        """Return where a host was asked for, by its number."""
        return self._hosts_elsewhere().names[host]

    def hosts_listed(self) -> list[ListedHost]:
        """Return the hosts that have joined, or are to, with who has ranks there."""
        if self._attached is None:
            return []
        return [
            each._replace(meshes=tuple(self.meshes_on([wire.agent_id(each.number)])))
            for each in self._attached.listed()
        ]

    def revoke_host(self, host: int) -> None:
        """Have a host no more, by its number: its ranks end, and it is asked for no more."""
        self._hosts_elsewhere().revoke(host)

    def meshes_on(self, agents: Sequence[int]) -> list[str]:
        """Return the names of meshes that have ranks on these hosts."""
        return [
            state.name
            for state in list(self.supervision.states.values())
            if isinstance(state, ProcsState) and state.ended is None and not state.internal
            if not set(agents).isdisjoint(state.agents)
        ]

    def every_mesh(self) -> list[str]:
        """Return the names of all meshes that this process drives."""
        return [
            state.name
            for state in list(self.supervision.states.values())
            if isinstance(state, ProcsState) and state.ended is None and not state.internal
        ]

    def has_lost_hosts(self, hosts: Iterable[int]) -> bool:
        """Tell whether some of these have joined and are lost."""
        return any(wire.agent_id(host) in self.proc.dead for host in hosts)

    @property
    def has_hosts(self) -> bool:
        """Tell whether hosts have joined, or were to."""
        return self._attached is not None

    def let_hosts_go(self, gone: Sequence[int], here: Sequence[int]) -> Future[None]:
        """Shut down those hosts of the ones that are wanted no more which are here. By their
        agents; the others of their job stay, and so do its spares."""
        self._hosts_elsewhere().replacements.let_go([agent >> HOST_SHIFT for agent in gone])
        return super().shut_hosts(here)

    def hosts_here(self, hosts: Sequence[int]) -> int:
        """Return how many of these hosts, which were awaited, have come and are here."""
        ready, dead = self._hosts_elsewhere().ready, self.proc.dead
        return sum(ready[each].done() and wire.agent_id(each) not in dead for each in hosts)

    def _host_pulse(self, host: int, silent_s: float | None) -> None:
        there = self.supervision.processes_on(host)
        processes = [each for each in there if each not in self.proc.dead]
        self.supervision.note_pulse([wire.agent_id(host), *processes], silent_s)

    def _host_lost(self, host: int, why: str, silent_s: float | None) -> None:
        has_joined = silent_s is not None
        lost = self.supervision.processes_on(host)
        self.supervision.exited(
            *(
                Exit(process, reason=why, unreachable_s=silent_s, for_good=not has_joined)
                for process in (wire.agent_id(host), *lost)
            )
        )
        if self._attached is not None:
            self._attached.replacements.host_lost(host, why, has_joined=has_joined)

    def _agent_on(self, host: int) -> int | None:
        if host == self.proc.host:
            return self.proc.agent
        is_attached = self._attached is not None and host in self._attached.ready
        return wire.agent_id(host) if is_attached else None

    def _hears(self, host: int) -> bool:
        return self._attached is None or host == self.proc.host or self._attached.hears(host)

    def shut_hosts(self, agents: Sequence[int]) -> Future[None]:
        if self._attached is not None:
            agents = [*agents, *self._attached.replacements.spares_beside(agents)]
        there = self._meshes_on(agents)
        for state in there:
            state.end("its host was shut down")
        agent, here = self._agent, self.proc.agent in agents
        told = super().shut_hosts(agents)
        told.add_done_callback(lambda _: self._disown(there))
        if agent is None or not here:
            return told
        gone: Future[None] = make(Future)
        told.add_done_callback(
            lambda _: agent.ended.add_done_callback(lambda _: gone._set_result(None))
        )
        return gone

    def _meshes_on(self, agents: Sequence[int]) -> list[MeshState]:
        found = [(state, procs_of(state)) for state in list(self.supervision.states.values())]
        return [
            state
            for state, below in found
            if below is not None and not set(agents).isdisjoint(below.agents)
        ]

    def _disown(self, states: Sequence[MeshState]) -> None:
        for state in states:
            self.supervision.disown(state)

    def _on_get_source(self, wanted: cells.GetSource, message: Message) -> None:
        self.proc.answer(message, cells.SourceText(text_of_cell(wanted.filename)))

    def _on_debug_event(self, event: debug.DebugEvent, message: Message) -> None:
        self.debugging.on_event(event, message)
        if event.event in ("asks", "goes"):
            self.status.hurry()

    def _on_dap_event(self, event: debug.DapEvent, message: Message) -> None:
        self.debuggers.on_event(event, message)
        if event.message.get("event") in ("stopped", "continued"):
            self.status.hurry()

    def _on_ready(self, told: agents.Ready, message: Message) -> None:
        self._gpus[message.source] = told.gpus
        if self._agent is not None and message.source == self.proc.agent:
            self._agent.ready._set_result(True)

    def _on_failed(self, failed: agents.ZygoteFailed, message: Message) -> None:
        host = message.source >> HOST_SHIFT
        if self._agent is not None and message.source == self.proc.agent:
            error = LaunchError(f"{failed.stage}: {failed.text}")
            self._agent.ready._set_exception(error)
            why = failed.text.partition("\n")[0]
        elif self._attached is not None and host in self._attached.names:
            why = f"{self._attached.called(host)}: {failed.text}".rstrip()
        else:
            return
        # not those that were asked for since: another zygote forks them
        below = self._processes_below(message.source)
        lost = [each for each in failed.procs if each in below]
        self.supervision.exited(*(Exit(each, signal=9, reason=why) for each in lost))

    def _agent_ended(self, how: str, last_words: str, silent_s: float | None) -> None:
        # the thread of the agent's process
        agent = self.proc.agent
        with self._lock:
            self._agent = None
            if not self._closed.is_set():
                self.proc.replace_agent(new_agent_id(LOCAL_HOST))
        reason = f"the agent of its host {how}"
        text = f"{reason}\n{last_words}" if last_words.strip() else reason
        lost = [agent, *self._processes_below(agent)]
        self.supervision.exited(
            *(Exit(process, reason=text, unreachable_s=silent_s) for process in lost)
        )

    def _processes_below(self, agent: int) -> list[int]:
        return [
            process
            for state in list(self.supervision.states.values())
            if isinstance(state, ProcsState)
            for process, of in zip(state.processes, state.agents, strict=True)
            if of == agent and process not in self.proc.dead
        ]

    # the end

    def shutdown(self, timeout_s: float | None = None) -> None:
        """End everything that this client started; bounded, and harmless when repeated."""
        if self._closed.is_set():
            return
        self._closed.set()
        limit_s = self.config.exit_s if timeout_s is None else timeout_s
        is_kept, kept_hosts = bool(self.keeper.kept_here), self.keeper.kept_hosts
        self.keeper.close()
        for state in list(self.supervision.states.values()):
            state.end("the client was shut down")
        self._end_local_actors(limit_s)
        if self._agent is not None:
            if is_kept or self._looks:
                self._agent.let_go()
            else:
                self._agent.end(limit_s)
        self._leave_attached(limit_s, kept_hosts)
        self._fail_waiters()
        if self._debug_server is not None:
            self._debug_server.close()
        if self._inspection is not None:
            self._inspection.close()
        self.output.close()
        self.comms.close()
        self.status.close()
        self.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
        if is_kept or self._shares_run_dir:
            self._run_dir.leave()
        else:
            self._run_dir.remove()
        if current.running() is self:
            current.install(None)

    def _leave_attached(self, limit_s: float, kept: Container[int]) -> None:
        if self._attached is None:
            return
        ready = self._attached.ready
        agents = [wire.agent_id(host) for host in ready if host not in kept and ready[host].done()]
        living = [agent for agent in agents if agent not in self.proc.dead]
        with contextlib.suppress(TimeoutError):
            if living:
                self.stop_hosts(living).get(limit_s)
        self._attached.close()

    def _end_local_actors(self, limit_s: float) -> None:
        drivers = list(self.hosting.drivers.values())
        for driver in drivers:
            driver.request_stop(None, "the client was shut down")
        deadline = time.monotonic() + limit_s / 2  # of all together
        for driver in drivers:
            driver.wait_until_over(max(0.0, deadline - time.monotonic()))

    def _fail_waiters(self) -> None:
        gone = Exit(0, reason="the client was shut down")
        for waiter in self.proc.waiters():
            waiter.abandon(gone)


def text_of_cell(filename: str) -> str | None:
    """Return the text that IPython or a mesh cell has left under that name; None for files."""
    match linecache.cache.get(filename):
        case (_, None, list() as lines, _):
            return "".join(lines)
        case _:
            return None


def start() -> Client:
    """Start the client of this process, or return it. Called by whatever is used first."""
    with _slot.lock:
        found = current.running()
        if isinstance(found, Client):
            return found
        if found is not None:
            raise RuntimeError("this process is a rank of a mesh, it cannot be a client too")
        config = Config.from_environ()
        made = _made_ahead(config) or _make(config)
        current.install(made)
    exit_when_told()
    started.tell()
    return made


def start_in(run_dir: RunDir, config: Config, agent: int | None, *, looks: bool = False) -> Client:
    """Start the client of this process in the run dir of another one, with its agent: in its place,
    or to look at its meshes. None: to look at those on hosts of jobs.

    Raises `RuntimeError` where this process has meshes already.
    """
    with _slot.lock:
        found = current.running()
        if isinstance(found, Client):
            names = [] if found.looks else found.meshes_on([found.proc.agent])
            if names:
                raise RuntimeError(f"this kernel has meshes already: {', '.join(names)}")
            found.shutdown(0)
        ahead, _slot.ahead = _slot.ahead, None
        made = _started(Client(run_dir, config, agent, looks=looks))
        current.install(made)
    if ahead is not None:
        threading.Thread(target=ahead.shutdown, args=(0,), name="monarch-spare").start()
    exit_when_told()
    started.tell()
    return made


def start_for_hosts(left_by: int) -> Client:
    """Start the client of this process, or return it where it has meshes of this host only: it is
    to have hosts that another one has left, or itself has lost: then all that it keeps goes on, and
    another one is started. Raises `RuntimeError` where it has meshes that would end."""
    with _slot.lock:
        found = current.running()
        if isinstance(found, Client):
            names = [] if found.looks else found.every_mesh()
            if found.proc.id == left_by:
                kept = {
                    each.name for each in found.keeper.kept if each not in found.keeper.kept_here
                }
                names = [name for name in names if name not in kept]
            if found.has_hosts and names:
                raise RuntimeError(f"this kernel has meshes already: {', '.join(names)}")
            if not names:
                found.shutdown(0)
    made = start()
    made.local_agent()  # which removes the run dir, however this process ends
    return made


def prewarm() -> None:
    """Start the agent and the zygote of this host before they are needed: importing torch takes a
    second.

    Nobody sees the client that is made here before `start` takes it, which it does if the settings
    of `MONARCH_NB_*` are still the same.
    """
    with _slot.lock:
        if current.running() is None and _slot.ahead is None:
            _slot.ahead = _make(Config.from_environ())
            _slot.ahead.local_agent()


def _made_ahead(config: Config) -> Client | None:
    made, _slot.ahead = _slot.ahead, None
    if made is not None and made.config != config:
        made.shutdown(0)
        return None
    return made


def _make(config: Config) -> Client:
    return _started(Client(new_run_dir(), config))


def _started(made: Client) -> Client:
    made.start()
    pid = os.getpid()

    def end() -> None:
        if os.getpid() == pid:  # not in a forked child
            made.shutdown()

    atexit.register(end)
    return made


class _Slot:
    """What is being started in this process; in a fork of it, nothing is."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.ahead: Client | None = None


_slot: Final = _Slot()


def _forget_after_fork() -> None:
    _slot.lock, _slot.ahead = threading.RLock(), None


os.register_at_fork(after_in_child=_forget_after_fork)


def client() -> Client:
    """Return the client; started on demand. Raises `RuntimeError` in a rank."""
    return start()


def running_client() -> Client | None:
    """Return the client, if one runs in this process."""
    found = current.running()
    return found if isinstance(found, Client) else None


def shutdown_context(host_timeout: float | None = None) -> Future[None]:
    """End the client in an orderly way; harmless when there is none. Starts when observed.

    Args:
        host_timeout: seconds for the hosts to end before they are killed.
    """
    found = running_client()
    if found is None:
        return completed(None)

    def end(future: Future[None]) -> None:
        try:
            found.shutdown(host_timeout)
        except BaseException as error:
            future._set_exception(error)
            raise
        future._set_result(None)

    return LazyFuture.starting(end)
