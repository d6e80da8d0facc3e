"""`Hosts`: what this process may ask of the agents of hosts, and how processes are spawned there.

A host is known by its agent's process id; what an agent does is no business of this box.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from monarch_nb.core.shape.extent import Extent, Shape
from monarch_nb.core.wire.frames import HOST_SHIFT
from monarch_nb.core.wire.messages.agents import Hello, Here, Shutdown, Spawn, StopAll
from monarch_nb.core.wire.messages.codec import Done, Refused, Request
from monarch_nb.data import gpus
from monarch_nb.meshes.bootstrap import (
    Command,
    Environment,
    bindings,
    check_programs,
    default_bootstrap_cmd,
    other_python_command,
    starts,
    this_python,
)
from monarch_nb.meshes.spawning import Spawner
from monarch_nb.meshes.states import ProcsState, Resized, Seat
from monarch_nb.meshes.synced import WORKSPACE_DIR, SyncedFolders
from monarch_nb.process import context, libraries
from monarch_nb.process.exit import Exit
from monarch_nb.process.futures.ask_all import Question
from monarch_nb.process.futures.future import Future, make
from monarch_nb.process.payloads import Payload
from monarch_nb.process.process import Proc, new_process_ids
from monarch_nb.process.supervision.supervision import Supervision

H = TypeVar("H")

_PASSED_ON: Final = ("MONARCH_NB_COMPAT",)  # to every host


class HostPart(NamedTuple):
    """Hosts, by their agents. `python`: that ranks are started with; None: they are forked."""

    agents: list[int]
    shape: Shape
    python: str | None


Copy = Callable[[int], "Future[Any]"]
"""Copies a workspace to the host of an agent."""


class SpawnOptions(NamedTuple):
    """What `HostMesh.spawn_procs` was told. `anywhere`: the processes are the runtime's own, and
    need neither our current folder nor a workspace."""

    bootstrap: Callable[[], object] | None = None
    name: str | None = None
    bind: Sequence[Mapping[str, str]] | None = None
    command: Command | None = None
    env: Mapping[str, str | None] | None = None
    anywhere: bool = False


class KeptProcs(NamedTuple):
    """All that another controller needs to own a mesh of processes: what was asked for, and by rank
    what there is now."""

    place: HostPart
    per_host: Mapping[str, int]
    options: SpawnOptions
    number: int
    name: str
    shape: Shape
    processes: list[int]
    agents: list[int]
    homes: list[Seat]
    slots: list[int]
    generation: int
    pids: dict[int, int]


def _state_of(kept: KeptProcs, wrap: Callable[[ProcsState], Any], *, owned: bool) -> ProcsState:
    return ProcsState(
        agents=kept.agents,
        homes=kept.homes,
        slots=kept.slots,
        number=kept.number,
        name=kept.name,
        owner_port=context.current_instance().port,
        shape=kept.shape,
        processes=kept.processes,
        pids=kept.pids,
        generation=kept.generation - 1,  # whoever takes over counts on
        owned=owned,
        wrap=wrap,
    )


class Hosts:
    def __init__(self, proc: Proc, spawner: Spawner, supervision: Supervision) -> None:
        self.proc = proc
        self.spawner = spawner
        self.supervision = supervision
        self.synced: dict[int, SyncedFolders] = {}
        """By agent: where workspaces are there."""
        self.copies: dict[int, dict[object, Copy]] = {}
        """By agent: what copies each workspace that is there to another host."""

    def spawn(
        self,
        place: HostPart,
        per_host: Mapping[str, int],
        options: SpawnOptions,
        wrap: Callable[[ProcsState], H],
    ) -> H:
        """Start the processes of a mesh and return its handle."""
        request = _Request(self, place, per_host, options, wrap)
        mesh = wrap(request.state)
        request.start(list(range(len(request.state.processes))))
        return mesh

    def restore(self, kept: KeptProcs, wrap: Callable[[ProcsState], H]) -> H:
        """Own a mesh whose processes live, and whose controller has gone. Returns its handle."""
        old = _state_of(kept, wrap, owned=True)
        request = _Request(self, kept.place, kept.per_host, kept.options, wrap, old)
        mesh = wrap(request.state)
        request.start([])
        return mesh

    def look_at(self, kept: KeptProcs, why: str, wrap: Callable[[ProcsState], Any]) -> ProcsState:
        """Know a mesh that another controller drives; every use of it fails with `why`."""
        state = _state_of(kept, wrap, owned=False)
        state.only_see(why)
        self.supervision.own(state)
        return state

    def local_agent(self) -> int:
        return self.proc.agent

    def living_agent(self, agent: int) -> int:
        """Return the agent that looks after this one's host now, or after the host that has taken
        its place."""
        return agent

    def replace_hosts(self, agents: Sequence[int]) -> dict[int, int]:  # noqa: ARG002
        """Find hosts that take the place of lost ones, by their agents; those for which there is
        none are left out. May wait for hosts to join. Only the client has any."""
        return {}

    def gpus_of(self, agent: int) -> Sequence[str]:
        """Name the GPUs of a host; none where that is not known yet."""
        return gpus.visible_gpus() if agent == self.proc.agent else ()

    def host_words(self, agent: int) -> str:
        """Name a host, for people."""
        return f"host {agent >> HOST_SHIFT}"

    def loss_words(self, agent: int) -> str:
        """Say, in a line or several, how a host was lost and what was tried in vain."""
        return self.proc.dead[agent].plainly()

    def environment_changes(self, agent: int) -> Environment:  # noqa: ARG002  the client looks
        """Return what has changed in the environment, for ranks that this process starts."""
        return {name: os.environ[name] for name in _PASSED_ON if name in os.environ}

    def hosts_ready(self, agents: Sequence[int]) -> Future[bool]:
        ready: Future[bool] = make(Future)

        def heard(_: int, answer: Here | Refused) -> None:
            if isinstance(answer, Refused):
                ready._set_exception(RuntimeError(f"attach failed: {answer.error}"))

        requests = dict.fromkeys(agents, Hello())
        Question(self.proc, requests, lambda: ready._set_result(True), heard)
        return ready

    def stop_hosts(self, agents: Sequence[int]) -> Future[None]:
        return self._when_done(agents, StopAll(self.proc.config.exit_s))

    def shut_hosts(self, agents: Sequence[int]) -> Future[None]:
        return self._when_done(agents, Shutdown(self.proc.config.exit_s))

    def _when_done(self, agents: Sequence[int], request: Request[Done]) -> Future[None]:
        done: Future[None] = make(Future)
        Question(self.proc, dict.fromkeys(agents, request), lambda: done._set_result(None))
        return done


class _Request:
    def __init__(
        self,
        hosts: Hosts,
        place: HostPart,
        per_host: Mapping[str, int],
        options: SpawnOptions,
        wrap: Callable[[ProcsState], Any],
        old: ProcsState | None = None,
    ) -> None:
        self.hosts = hosts
        self.proc = hosts.proc
        self.place = place
        self.per_host = per_host
        self.options = options
        self.count = count = Extent.from_dict(dict(per_host)).nelements
        self.bind = bindings(options.bind, count)
        agents = [agent for agent in place.agents for _ in range(count)]
        sizes = place.shape.ndslice.sizes
        extent = Extent([*place.shape.labels, *per_host], [*sizes, *per_host.values()])
        processes = [
            process
            for agent in place.agents
            for process in new_process_ids(agent >> HOST_SHIFT, count)
        ]
        slots = [rank % count for rank in range(len(agents))]
        self.state = state = ProcsState(
            agents=list(agents),
            homes=list(map(Seat, agents, slots)),
            slots=slots,
            number=random.SystemRandom().getrandbits(62) if old is None else old.number,
            name=old.name if old else options.name or hosts.spawner.new_name(),
            owner_port=old.owner_port if old else context.current_instance().port,
            shape=extent.region.as_shape(),
            processes=processes,
            owned=True,
            wrap=wrap,
            internal=options.anywhere,
            watch=hosts.spawner.watch,
        )
        if old is not None:
            state.take_over(old)
        state.resized_by(self._resized)
        state.kept_by(self._kept)
        command = options.command
        if command is None:
            python = place.python
            command = other_python_command(python) if python else default_bootstrap_cmd()
        news = {agent: hosts.environment_changes(agent) for agent in set(agents)}
        self.starts = [
            start._replace(env=news[agent] | start.env)
            for agent, start in zip(agents, starts(extent, command, options.env), strict=True)
        ]
        state.chosen_gpus.extend(each.env.get(gpus.VISIBLE) for each in self.starts)
        self.spans_hosts = len(set(agents)) > 1  # for good: a heal may move ranks back
        if set(agents) == {self.proc.agent}:  # of this host; others look for themselves
            check_programs(self.starts)
        self.bootstrap: Payload | None = None
        if options.bootstrap is not None:
            self.bootstrap = self.proc.encode(options.bootstrap, ())

    def _kept(self) -> KeptProcs:
        state = self.state
        return KeptProcs(
            place=self.place,
            per_host=dict(self.per_host),
            options=self.options,
            number=state.number,
            name=state.name,
            shape=state.shape,
            processes=list(state.processes),
            agents=list(state.agents),
            homes=list(state.homes),
            slots=list(state.slots),
            generation=state.generation,
            pids=dict(state.pids),
        )

    def start(self, ranks: list[int]) -> None:
        self.hosts.spawner.spawn_procs(self.state, self.send, ranks)

    def _resized(self, agents: Sequence[int]) -> Resized:
        sizes = [len(agents), *self.place.shape.ndslice.sizes[1:]]
        shape = Extent(self.place.shape.labels, sizes).region.as_shape()
        place = self.place._replace(agents=list(agents), shape=shape)
        new = _Request(
            self.hosts, place, self.per_host, self.options, self.state.wrap, old=self.state
        )
        return Resized(new.state, new.start, new.spans_hosts)

    def send(self, ranks: list[int], ready_port: int) -> None:
        by_agent: dict[int, list[int]] = {}
        for rank in ranks:
            by_agent.setdefault(self.state.agents[rank], []).append(rank)
        for agent, some in by_agent.items():
            message = self._message(some, ready_port, self.hosts.synced.get(agent))
            answered = functools.partial(self._answered, some)
            self.proc.ask(agent, message, answered, payload=self.bootstrap)

    def _shares_gpus(self) -> bool | None:
        # Whether ranks of a host were given the same GPU by their environment; None: they were
        # given none, so it depends on how many the host has
        state = self.state
        if None in state.chosen_gpus:
            return None
        given = [
            (agent, gpu)
            for agent, slot, chosen in zip(
                state.agents, state.slots, state.chosen_gpus, strict=True
            )
            if (gpu := gpus.gpu_of(slot, gpus.gpus_seen(chosen, ())))
        ]
        return len(set(given)) < len(given)

    def _answered(self, ranks: list[int], answer: Done | Refused) -> None:
        # where the agent cannot spawn, the ranks are as dead as if they had died
        if isinstance(answer, Refused):
            lost = self.proc.dead.get(self.state.agents[ranks[0]])
            how = Exit(0, reason=answer.error) if lost is None else lost
            processes = [self.state.processes[rank] for rank in ranks]
            self.hosts.supervision.exited(
                *(dataclasses.replace(how, process=each) for each in processes)
            )

    def _message(self, ranks: list[int], ready_port: int, synced: SyncedFolders | None) -> Spawn:
        state = self.state
        extent = state.shape.extent
        cwd = str(Path.cwd())
        path = [each or cwd for each in sys.path]
        beside: dict[str, str | None] = {}
        if synced is not None:
            cwd, path = synced.cwd(cwd), synced.import_path(path)
            beside = {WORKSPACE_DIR: synced.root}
        lines = [self.starts[rank].line for rank in ranks]
        is_any_started = any(lines)  # or all are forked
        python = this_python() if is_any_started else None
        if python is not None and synced is not None:
            python["path"] = synced.import_path(python["path"])
        return Spawn(
            procs=[state.processes[rank] for rank in ranks],
            owner=self.proc.id,
            ranks=ranks,
            world_size=len(state.processes),
            ready_port=ready_port,
            mesh=state.number,
            name=state.name,
            labels=extent.labels,
            sizes=extent.sizes,
            host_size=self.count,
            rank_env=[{**beside, **self.starts[rank].env} for rank in ranks],
            commands=lines if is_any_started else None,
            python=python,
            cwd="" if self.options.anywhere else cwd,
            path=path,
            store=state.store(),
            spans_hosts=self.spans_hosts,
            slots=[state.slots[rank] for rank in ranks],
            own_gpu=[self.starts[rank].own_gpu for rank in ranks],
            shares_gpus=self._shares_gpus(),
            config=dataclasses.asdict(self.proc.config),
            bind=None if self.bind is None else [self.bind[rank % self.count] for rank in ranks],
            libraries=None if self.options.anywhere else self._libraries(),
        )

    def _libraries(self) -> list[str]:
        return list(self.proc.config.preloads(libraries.of_this_program()))
