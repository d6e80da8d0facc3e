"""`HostMesh`: hosts laid out on named axes; where processes are spawned.

A host is known by its agent's process id. The handle asks the agent; what an agent does is no
business of this box.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, final

from monarch_nb.core.shape.extent import Extent, Shape, Slice
from monarch_nb.core.shape.mesh_trait import MeshTrait
from monarch_nb.core.wire.frames import HOST_SHIFT
from monarch_nb.core.wire.messages.agents import Spawn
from monarch_nb.core.wire.messages.codec import Done, Refused
from monarch_nb.meshes import devices
from monarch_nb.meshes.bootstrap import (
    Command,
    bindings,
    check_programs,
    default_bootstrap_cmd,
    is_this_python,
    python_command,
    starts,
    this_python,
)
from monarch_nb.meshes.proc_mesh import ProcMesh
from monarch_nb.meshes.synced import WORKSPACE_DIR
from monarch_nb.process import context, current
from monarch_nb.process.futures.future import Future
from monarch_nb.process.payloads import Parcel
from monarch_nb.process.process import new_process_ids
from monarch_nb.process.supervision.mesh_state import ProcsState

if TYPE_CHECKING:
    from monarch_nb.meshes.synced import Landing, SyncReport
    from monarch_nb.meshes.workspace import Workspace


class HostsState:
    """What the handles of one host mesh share."""

    def __init__(self, agents: list[int], *, copied: bool = False) -> None:
        self.agents = agents
        self.copied = copied
        self.stopped = False


@final
class HostMesh(MeshTrait):
    """Hosts, one per point; `this_host()` is a mesh of one without axes.

    Example:
        >>> procs = this_host().spawn_procs(per_host={"gpus": 8})       # doctest: +SKIP
    """

    def __init__(self, state: HostsState, shape: Shape, python: str | None = None) -> None:
        self._state = state
        self._shape = shape
        self._python = python  # that ranks are started with; None: they are forked

    @property
    def _ndslice(self) -> Slice:
        return self._shape.ndslice

    @property
    def _labels(self) -> tuple[str, ...]:
        return tuple(self._shape.labels)

    def _new_with_shape(self, shape: Shape) -> Self:
        return type(self)(self._state, shape, self._python)

    @property
    def _agents(self) -> list[int]:
        living = current.runtime().living_agent
        return [living(self._state.agents[rank]) for rank in self._shape.ranks()]

    @property
    def initialized(self) -> Future[bool]:
        """Done when the hosts can spawn processes; raises `LaunchError` if one cannot."""
        return current.runtime().hosts_ready(self._agents)

    def spawn_procs(
        self,
        per_host: Mapping[str, int] | None = None,
        bootstrap: Callable[[], Any] | None = None,
        name: str | None = None,
        proc_bind: Sequence[Mapping[str, str]] | None = None,
        bootstrap_command: Command | None = None,
        *,
        env: Mapping[str, str | None] | None = None,
    ) -> ProcMesh:
        """Start processes on each host. Does not block; `.initialized` says when they are up.

        Args:
            per_host: axes and sizes on each host, e.g. `{"gpus": 4}`; none: one process.
            bootstrap: runs in each process before anything else; may be async.
            name: for views and errors.
            proc_bind: per process of a host, on which processors it runs.
            bootstrap_command: the command that starts a process, and its environment; for all or
                per `Point`. See `BootstrapCommand`.
            env: environment changes for all; None removes.

        Raises:
            ValueError: a size below 1, an axis named twice, a `proc_bind` of the wrong length, a
                program that is not there (other hosts say so by `.initialized`).
        """
        self._check_open()
        wanted = dict(per_host or {})
        _check_axes(self._labels, wanted)
        return _Spawning(self, wanted, bootstrap, name, proc_bind, bootstrap_command, env).mesh()

    def shutdown(self) -> Future[None]:
        """End the hosts for good, with everything on them."""
        self._check_whole("shut down")
        self._check_open()
        self._state.stopped = True
        return current.runtime().shut_hosts(self._agents)

    def stop(self) -> Future[None]:
        """End every process on the hosts and release them."""
        self._check_whole("stopped")
        self._check_open()
        return current.runtime().stop_hosts(self._agents)

    async def sync_workspace(
        self, workspace: Workspace | Path | str, conda: bool = False, auto_reload: bool = False
    ) -> SyncReport:
        """Copy folders of this host to hosts of `attach_to_workers`: only what differs is sent.

        They land in the workspace folder of each host (`$WORKSPACE_DIR` of its worker, or
        `~/.monarch_nb/workspace`). Each synced folder is first in `sys.path` of ranks spawned from
        now on and of those this process has spawned there already; for new ranks, the current
        folder and entries of `sys.path` below a synced folder are the synced ones, and
        `$WORKSPACE_DIR` is set. What a sync has brought and is gone here is deleted there; files
        of others stay. A file that is being written is copied as far as it was written.

        Args:
            workspace: the folders; a path means that one folder.
            conda: also copy the packages (`site-packages`) of the conda environment of the
                workspace, by default the active one; they come last in `sys.path`.
            auto_reload: ranks load modules of the workspace again whose file has changed, and those
                that import them, on their main thread: after the cell or call that runs there and
                before later ones. The sync waits for that. Objects keep the class they were made
                of; names that are gone from a file stay in its module.

        Returns:
            Per host: files and bytes sent, files deleted. `str` names them.

        Raises:
            NotImplementedError: for hosts that share this one's files (`this_host()`).
            ValueError: no such folder, a symbolic link that leaves it, no conda environment.
            MeshError: a host and a file that failed: what is there stays as it was, and the other
                hosts are synced. Or a module that could not be loaded again.

        Example:
            >>> await hosts.sync_workspace("/home/me/project", auto_reload=True)  # doctest: +SKIP
        """
        from monarch_nb.services.workspace.sync import sync

        self._check_open()
        return await sync(self, workspace, conda=conda, auto_reload=auto_reload)

    def _spawn_anywhere(self, name: str) -> ProcMesh:
        """One process per host, wherever it starts: the current folder may be missing there."""
        spawning = _Spawning(self, {}, None, name, None, None, None)
        spawning.everywhere = spawning.state.internal = True
        return spawning.mesh()

    def with_python_executable(self, path: str) -> HostMesh:
        """The same hosts, whose processes run another interpreter, as in `spawn_procs` of it.

        It needs this monarch_nb and the same minor version of Python. Processes are started, not
        forked, which takes seconds. They find the modules that this process finds outside of its
        standard library and `site-packages`, then their own. A `bootstrap_command` takes the place
        of this interpreter.
        """
        python = os.fspath(path)
        return HostMesh(self._state, self._shape, None if is_this_python(python) else python)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    def _check_open(self) -> None:
        if self._state.stopped:
            raise RuntimeError("HostMesh has already been shut down")

    def _check_whole(self, what: str) -> None:
        if self._state.copied or len(self) != len(self._state.agents):
            raise RuntimeError(
                f"a slice or a copy of a HostMesh cannot be {what}, only the mesh itself"
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HostMesh):
            return NotImplemented
        return (self._state.agents, self._shape, self._python) == (
            other._state.agents,
            other._shape,
            other._python,
        )

    def __hash__(self) -> int:
        return hash(tuple(self._state.agents))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (list(self._state.agents), self._shape, self._python)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{label}={size}" for label, size in self.sizes.items())
        python = f" with {self._python}" if self._python else ""
        return f"<HostMesh {{{sizes}}}{python}{' shut down' if self._state.stopped else ''}>"


def _restore(agents: list[int], shape: Shape, python: str | None) -> HostMesh:
    return HostMesh(HostsState(agents, copied=True), shape, python)


class _Spawning:
    """One `spawn_procs`: what is the same when ranks are spawned again by a heal."""

    def __init__(
        self,
        hosts: HostMesh,
        per_host: dict[str, int],
        bootstrap: Callable[[], Any] | None,
        name: str | None,
        bind: Sequence[Mapping[str, str]] | None,
        command: Command | None,
        env: Mapping[str, str | None] | None,
    ) -> None:
        self.runtime = current.runtime()
        self.proc = self.runtime.proc
        self.count = count = Extent.from_dict(per_host).nelements
        self.bind = bindings(bind, count)
        agents = [agent for agent in hosts._agents for _ in range(count)]
        extent = Extent(
            [*hosts._labels, *per_host], [*hosts._shape.ndslice.sizes, *per_host.values()]
        )
        processes = [
            process
            for agent in hosts._agents
            for process in new_process_ids(agent >> HOST_SHIFT, count)
        ]
        self.state = ProcsState(
            agents,
            number=secrets.randbits(62),
            name=name or self.runtime.meshes.new_name(),
            owner_port=context.current_instance().port,
            shape=extent.region.as_shape(),
            processes=processes,
            owned=True,
        )
        self.state.host_labels = hosts._labels
        if command is None:
            command = python_command(hosts._python) if hosts._python else default_bootstrap_cmd()
        news = {agent: self.runtime.environment_changes(agent) for agent in set(agents)}
        self.starts = [
            start._replace(env=news[agent] | start.env)
            for agent, start in zip(agents, starts(extent, command, env), strict=True)
        ]
        if set(agents) == {self.proc.agent}:  # of this host; others look for themselves
            check_programs(self.starts)
        self.everywhere = False  # it needs neither our current folder nor a workspace
        self.bootstrap: Parcel | None = None
        if bootstrap is not None:
            self.bootstrap = self.proc.encode(bootstrap, ())

    def mesh(self) -> ProcMesh:
        return self.runtime.meshes.register(self.state, self.request)

    def request(self, ranks: list[int]) -> None:
        """Ask the agents for these ranks."""
        by_agent: dict[int, list[int]] = {}
        for rank in ranks:
            by_agent.setdefault(self.state.agents[rank], []).append(rank)
        for agent, some in by_agent.items():
            message = self._message(some, self.runtime.landings.get(agent))
            answered = functools.partial(self._answered, some)
            self.proc.ask(agent, message, answered, parcel=self.bootstrap)

    def _answered(self, ranks: list[int], answer: Done | Refused) -> None:
        """Where the agent cannot spawn, the ranks are as dead as if they had died."""
        if isinstance(answer, Refused):
            processes = [self.state.processes[rank] for rank in ranks]
            self.runtime.supervision.report_gone(processes, answer.error)

    def _message(self, ranks: list[int], landing: Landing | None) -> Spawn:
        state = self.state
        extent = state.shape.extent
        cwd = str(Path.cwd())
        path = [each or cwd for each in sys.path]
        beside: dict[str, str | None] = {}
        if landing is not None:
            cwd, path = landing.cwd(cwd), landing.import_path(path)
            beside = {WORKSPACE_DIR: landing.root}
        lines = [self.starts[rank].line for rank in ranks]
        is_any_started = any(lines)  # or all are forked
        python = this_python() if is_any_started else None
        if python is not None and landing is not None:
            python["path"] = landing.import_path(python["path"])
        return Spawn(
            procs=[state.processes[rank] for rank in ranks],
            owner=self.proc.id,
            ranks=ranks,
            world_size=len(state.processes),
            ready_port=state.boot_port,
            mesh=state.number,
            name=state.name,
            labels=extent.labels,
            sizes=extent.sizes,
            host_size=self.count,
            rank_env=[{**beside, **self.starts[rank].env} for rank in ranks],
            commands=lines if is_any_started else None,
            python=python,
            cwd="" if self.everywhere else cwd,
            path=path,
            store=state.store(self.proc.links.run_dir),
            devices=[devices.device_of(rank % self.count, self.starts[rank].env) for rank in ranks],
            config=dataclasses.asdict(self.proc.config),
            bind=None if self.bind is None else [self.bind[rank % self.count] for rank in ranks],
        )


def _check_axes(host_labels: tuple[str, ...], per_host: dict[str, int]) -> None:
    for label, size in per_host.items():
        if label in host_labels:
            raise ValueError(
                f"axis {label!r} is a host axis already; name the axis of processes otherwise"
            )
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"{label}={size!r}: the size of an axis is a whole number, 1 or more")


def this_host() -> HostMesh:
    """The host of the calling process, as a mesh of one."""
    runtime = current.runtime()
    return HostMesh(HostsState([runtime.local_agent()]), Shape.unity())


def this_proc() -> ProcMesh:
    """The calling process, as a mesh of one; actors spawned on it live beside you."""
    return current.runtime().own_mesh()
