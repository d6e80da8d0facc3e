"""`HostMesh` and `ProcMesh`: hosts and processes laid out on named axes; where processes and actors
are spawned. Each returns the other, so they are of one module.

Handles only; what spawning, stopping and healing do is in `hosts.py`, `spawning.py`, `healing/`.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast, final

from monarch_nb import late
from monarch_nb.actors.definition import Actor, endpoint
from monarch_nb.actors.stand_ins import stand_in
from monarch_nb.core.shape.extent import Extent, Point, Region, Shape
from monarch_nb.core.shape.mesh_trait import ShapedMesh
from monarch_nb.meshes import process_groups, variables
from monarch_nb.meshes.actor_mesh import ActorMesh, spawn_actors
from monarch_nb.meshes.bootstrap import Command, is_this_python, started_by
from monarch_nb.meshes.healing.healing import Healing
from monarch_nb.meshes.hosts import HostPart, Hosts, SpawnOptions
from monarch_nb.meshes.process_groups import GroupPart
from monarch_nb.meshes.restarting.intensity import Restart
from monarch_nb.meshes.spawning import Spawner
from monarch_nb.meshes.states import Part, ProcsState, known_here
from monarch_nb.process import current
from monarch_nb.process.futures.future import Future
from monarch_nb.process.supervision.supervision import Supervision

if TYPE_CHECKING:
    from monarch_nb.core.shape.values import ValueMesh
    from monarch_nb.meshes.synced import SyncReport
    from monarch_nb.meshes.workspace import Workspace

T = TypeVar("T")


class FunctionRunner(Actor):
    """Runs plain functions in a process, for `ProcMesh.execute`."""

    keeps_nothing = True

    @endpoint
    def run(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return function(*args, **kwargs)


spawn_callbacks: list[Callable[[ProcMesh], None]] = []


def register_proc_mesh_spawn_callback(callback: Callable[[ProcMesh], None]) -> None:
    """Call `callback(mesh)` with each mesh of processes that this process spawns from now on."""
    spawn_callbacks.append(callback)


def unregister_proc_mesh_spawn_callback(callback: Callable[[ProcMesh], None]) -> None:
    """Do not call it any more; nothing happens if it was not registered."""
    with contextlib.suppress(ValueError):
        spawn_callbacks.remove(callback)


@final
class ProcMesh(ShapedMesh):
    """Worker processes, one per point.

    Example:
        >>> procs = this_host().spawn_procs(per_host={"gpus": 4})     # doctest: +SKIP
        >>> counters = procs.spawn("counters", Counter)               # doctest: +SKIP
        >>> procs.stop().get()                                        # doctest: +SKIP
    """

    def __init__(self, state: ProcsState, shape: Shape) -> None:
        self._state = state
        self._shape = shape
        self._ranks = shape.ranks()
        self._part = Part(state, shape, state.token())

    def _new_with_shape(self, shape: Shape) -> Self:
        return type(self)(self._state, shape)

    @property
    def name(self) -> str:
        """The name given at spawn."""
        return self._state.name

    @property
    def region(self) -> Region:
        """The ranks' labels and places, as shapes have them."""
        return self._shape.region

    @property
    def initialized(self) -> Future[bool]:
        """Done when every process has started and its bootstrap function has run."""
        if self._state.owned:
            return self._state.initialized
        return current.part(Spawner).when_booted(self._state)

    @property
    def ranks(self) -> list[int]:
        """Ranks of these processes in the mesh that was spawned."""
        return list(self._ranks)

    @property
    def host_mesh(self) -> HostMesh:
        """The host of a slice of one process. Raises `NotImplementedError` for more."""
        if len(self._ranks) != 1:
            raise NotImplementedError("host_mesh is there for a slice of one process only")
        return HostMesh(HostsState(self._agents(), copied=True), Shape.unity())

    def spawn(
        self,
        name: str,
        Class: type[T],  # noqa: N803  Monarch's name; a constructor may have a `cls`
        *args: Any,
        supervise: Restart | None = None,
        **kwargs: Any,
    ) -> T:
        """Make an instance of an `Actor` class in every process. Does not block.

        With `supervise=elastic.restart(max=3, within_s=60)` a rank that fails is started again, its
        process too where that has ended, with the same arguments; the others and their handles are
        as before. What was under way there raises, what is called meanwhile waits. A rank that
        fails more often is lost, and the owner is told, as without it.

        Raises at once: `ValueError` for a class that cannot be an actor, `TypeError` for arguments
        that its constructor would refuse, `RuntimeError` after `stop`, `SupervisionError` when some
        of these processes are lost. What a constructor raises comes with `.initialized` and with
        the first call. Tensors of this mesh among the arguments: each actor gets that of its rank.
        With `supervise` also `TypeError` for what `restart` has not returned or where tensors are
        among the arguments, and `RuntimeError` on processes that somebody else has spawned.
        """
        _check_supervise(name, supervise)
        cls = stand_in(Class)
        engine = late.loaded(late.TENSORS)
        made: Any
        if engine is not None and engine.holds_tensors((args, kwargs)):
            if supervise is not None:
                raise TypeError(
                    f"{name}: `supervise` starts actors again from their arguments, and a tensor "
                    "of the mesh is not there a second time: leave one of them away"
                )
            made = late.load(late.CONSTRUCTORS).spawn(self, name, cls, args, kwargs)
        else:
            made = spawn_actors(self._part, name, cls, args, kwargs, restarts=supervise)
        return cast("T", made)  # endpoints of the class are attributes of it

    def stop(self, reason: str = "stopped by client") -> Future[None]:
        """End the processes. Starts when the future is first observed; twice is fine.

        Raises `RuntimeError` for a slice, for a mesh of somebody else's, and for `this_proc()`.
        """
        if len(self._ranks) != len(self._state.processes):
            raise RuntimeError("a slice of a ProcMesh cannot be stopped, only the mesh itself")
        return current.part(Spawner).stop_procs(self._state, reason)

    def heal(self, *, shrink: bool = False) -> ProcMesh:
        """Bring lost ranks back: new processes at the same coordinates with their actors made
        again.

        Ranks of a host that is lost are started on a spare, on a host that joins again at its
        place, else beside other ranks of the mesh (a warning; those with GPUs share none). While a
        host is silent and not yet lost, the heal waits.

        Args:
            shrink: start nothing; return a smaller mesh of the processes that live.

        Returns:
            The healed mesh. Handles of the old one (and of actors on it) work again too, without
            `shrink`.

        Raises:
            SupervisionError: no host takes the place of a lost one: names it, why it is lost, and
                what to do. A process died meanwhile. Either way a later heal goes on.

        Example:
            >>> procs.heal()                              # doctest: +SKIP
        """
        healed = current.part(Healing).procs(self._state, shrink=shrink)
        return self if healed is self._state else whole_mesh(healed)

    def resize(self, hosts: HostMesh) -> ProcMesh:
        """Have this mesh on more or fewer hosts: a new mesh, whose first ranks are the ones there
        are, with all that they hold.

        More hosts get new ranks, which start as the first ones did. With fewer, the ranks of the
        last hosts are ended; actors are lost there, for good, and live on elsewhere:
        `actors.heal(shrink=True)` is a mesh of the rest. Process groups have to be made again, as
        after a heal. Waits for ranks that end, not for new ones (`.initialized`).

        Args:
            hosts: those it is to have; the first are the ones it was spawned on, or what has taken
                their place. `job.scale("trainers", 6)` returns such.

        Returns:
            The mesh from now on. Handles of the old one say so; those of its actors are good.

        Raises:
            RuntimeError: a slice, a mesh of somebody else's, or one that was shrunk or stopped.
            SupervisionError: a rank that would be kept is lost: heal before.
            ValueError: hosts of another shape, or others than the ones it is on.

        Example:
            >>> procs = procs.resize(job.scale("trainers", 6))   # doctest: +SKIP
        """
        state = self._state
        if len(self._ranks) != len(state.processes):
            raise RuntimeError("a slice of a ProcMesh cannot be resized, only the mesh itself")
        if self._labels[:1] != hosts._labels or len(hosts._labels) != 1:
            raise ValueError(f"{hosts} has not the one axis that the hosts of {self} have")
        agents, living = hosts._agents, current.part(Hosts).living_agent
        count = len(state.processes) // self.size(self._labels[0])
        were = [living(seat.agent) for seat in state.homes[::count]]
        if any(mine != theirs for mine, theirs in zip(were, agents, strict=False)):
            raise ValueError(f"{self} is on other hosts than the first of {hosts}")
        mesh: ProcMesh = current.part(Healing).resize(state, agents)
        return mesh

    async def logging_option(
        self,
        stream_to_client: bool = False,
        aggregate_window_sec: float | None = None,
        level: int = logging.INFO,
    ) -> None:
        """Choose how the client shows the processes' output and logs.

        Args:
            stream_to_client: kept for Monarch's programs; what ranks print is always shown, once.
            aggregate_window_sec: collect for so many seconds, then show similar lines as one, with
                their number; needs streaming. None: each line as it comes, with its rank.
            level: of Python's logging on the processes.

        Raises:
            RuntimeError: a window without streaming.
        """
        if aggregate_window_sec is not None and not stream_to_client:
            raise RuntimeError("cannot set aggregate window without streaming to client")
        current.part(Spawner).set_logging(self._part, window_s=aggregate_window_sec, level=level)

    def execute(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `function(*args, **kwargs)` once in every process and wait: the values by rank.

        With tensors of a mesh among the arguments it runs here, as operations on these, and returns
        what it returns, at once.

        Raises `ActorError` when it raised on a rank, `DeviceMeshError` when a rank was lost.

        Example:
            >>> mesh.execute(lambda x: x * 2, batch)      # doctest: +SKIP
        """
        tensors = late.loaded(late.TENSORS)
        if tensors is not None and tensors.holds_tensors((args, kwargs)):
            return function(*args, **kwargs)
        state = self._state
        runner = next((each for each in state.actors if each.cls is FunctionRunner), None)
        if runner is None:
            runner = spawn_actors(whole_mesh(state)._part, "execute", FunctionRunner, (), {})._state
        answer: Future[ValueMesh[Any]] = ActorMesh(runner, self._shape).run.call(
            function, args, kwargs
        )
        return answer.get()

    def __getitem__(self, name: str) -> ValueMesh[Any]:
        """Fetch a variable of the cells of these ranks: `mesh["loss"]`. Waits for the ranks.

        Raises `RankNameError` where ranks have no such variable, `EncodeError` where it cannot be
        moved, `SupervisionError` when a rank is lost.

        Example:
            >>> mesh.slice(gpus=0)["loss"].item()         # doctest: +SKIP
            0.25
        """
        return variables.get([self._part], name).get()

    def __setitem__(self, name: str, value: Any) -> None:
        """Set a variable of the cells on each rank, between cells, and wait: `mesh["lr"] = 0.1`."""
        variables.put([self._part], {name: value}).get()

    def scatter(self, name: str, value: Any, dim: int = 0) -> None:
        """Cut a value into as many parts as there are ranks; each has its own as variable `name`.

        Args:
            value: a sequence, a numpy array, a tensor, or rows of a pandas, pyarrow or polars
                table. Where it does not divide, the first ranks have one item more.
            dim: the axis to cut, of an array or a tensor.

        Example:
            >>> mesh.scatter("batch", torch.arange(8))    # doctest: +SKIP
        """
        variables.scatter([self._part], name, value, dim).get()

    def activate(self) -> contextlib.AbstractContextManager[ProcMesh]:
        """Operations of torch make tensors on these ranks from here on, until the `with` block ends
        or `deactivate` is called.

        Example:
            >>> with mesh.activate():                     # doctest: +SKIP
            ...     x = torch.zeros(3, 4)                 # a tensor on each rank
        """
        found: contextlib.AbstractContextManager[ProcMesh] = late.load(late.TENSORS).activate(self)
        return found

    def deactivate(self) -> None:
        """End what `activate` has begun, where no `with` block does. Nothing if not active."""
        late.load(late.TENSORS).deactivate(self)

    def rank_tensor(self, dim: str | Sequence[str]) -> Any:
        """Make a tensor of the mesh (int64, no dimensions): each rank's coordinate on an axis, or
        on several as one number, the last axis the fastest.

        Raises `KeyError` for an axis that the mesh has not.
        """
        return late.load(late.TENSORS).rank_tensor(self, dim)

    def rank_tensors(self) -> dict[str, Any]:
        """Return `rank_tensor` of every axis, by name."""
        return {dim: self.rank_tensor(dim) for dim in self._labels}

    def group(
        self, dims: str | Sequence[str] | None = None, *, timeout: float | None = None
    ) -> Any:
        """Return the `torch.distributed` group of each rank's neighbours along one axis, several,
        or all of them.

        On the controller a handle, to be sent to the ranks: `mesh["g"] = mesh.group("gpus")`, or an
        argument of an endpoint. There, and when called on a member, it is the `ProcessGroup`: its
        members wait for one another the first time.

        Args:
            timeout: in seconds, for the members to meet and for each collective of the group from
                then on; None: 60, or what was said before.

        Raises `KeyError` for an axis that the mesh has not, `ValueError` for a timeout that is
        none.

        Example:
            >>> mesh.group(("hosts", "gpus"))             # doctest: +SKIP
            AxisGroup(hosts, gpus: 8 ranks of mesh 'mesh0')
        """
        chosen = process_groups.chosen(self._labels, dims)
        return process_groups.group(self._group_part(), chosen, timeout)

    def device_mesh(self) -> Any:
        """Return, on a member, torch's `DeviceMesh` with these axes, for `fully_shard`,
        `distribute_tensor`, `parallelize_module`.

        Waits for the other members the first time. Raises `RuntimeError` where it is called on the
        controller or on a rank that is no member.

        Example:
            >>> fully_shard(model, mesh=mesh.device_mesh()["dp"])         # doctest: +SKIP
        """
        return process_groups.device_mesh(self._group_part())

    def _group_part(self) -> GroupPart:
        state = self._state
        return GroupPart(state.number, state.name, len(state.processes), self._shape)

    async def sync_workspace(
        self, workspace: Workspace | Path | str, conda: bool = False, auto_reload: bool = False
    ) -> SyncReport:
        """Do what `HostMesh.sync_workspace` does, for the hosts of these processes."""
        agents = list(dict.fromkeys(self._agents()))
        extent = Extent(["hosts"], [len(agents)])
        return await _sync(agents, extent, workspace, conda, auto_reload)

    def metrics(self) -> Any:
        """Return what the ranks of this mesh have logged: a row for each kept value, with the
        columns `run`, `run_number`, `name`, `rank`, `step` and `value`.

        Of each rank, name and run 512 points are kept, fewer on meshes of more than 128 ranks.

        Returns:
            A `pandas.DataFrame` where pandas is installed, else a `polars.DataFrame`, else a list
            of named tuples.

        Raises:
            LocalProtocolError: on a rank; only the controller has what all ranks have logged.

        Example:
            >>> table = mesh.metrics()                            # doctest: +SKIP
            >>> table.pivot_table("value", "step", ["run", "name"])      # doctest: +SKIP
        """
        return late.load(late.METRICS_TABLE).table(self._state.name, self._ranks)

    def to_table(self) -> str:
        """Return a line for each rank: its number, its coordinates on the axes of this mesh, its
        process id and its state.
        """
        lines = ["rank  coordinates  pid  state"]
        for place, rank in enumerate(self._ranks):
            state = "stopped" if self._state.ended else "running"
            if rank in self._state.lost:
                state = "lost"
            point = dict(Point(place, self.extent))
            lines.append(f"{rank}  {point}  {self._state.pids.get(rank, '-')}  {state}")
        return "\n".join(lines)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop("left its `async with` block")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop("left its `with` block").get()

    def _processes(self) -> list[int]:
        return self._part.processes

    def _agents(self) -> list[int]:
        return [self._state.agents[rank] for rank in self._ranks]

    def __reduce__(self) -> tuple[Any, ...]:
        self._state.share()
        return restore_procs, (self._part.reference(),)

    def __repr__(self) -> str:
        lost = [rank for rank in self._ranks if rank in self._state.lost]
        condition = "ready" if self._state.initialized.done() else "starting"
        runtime = current.running()
        quiet = runtime.parts[Supervision].silent if runtime is not None else {}
        silent = [rank for rank in self._ranks if self._state.processes[rank] in quiet]
        if silent:
            condition = f"silent ranks {silent}"
        if lost:
            condition = f"lost ranks {lost}"
        if self._state.ended is not None:
            condition = "stopped"
        return f"<ProcMesh {self._state.name!r} {{{self._sizes_text()}}} {condition}>"


def whole_mesh(state: ProcsState) -> ProcMesh:
    return ProcMesh(state, state.shape)


def restore_procs(reference: tuple[Any, ...]) -> ProcMesh:
    number, name, full, processes, agents, shape = reference
    state = ProcsState(
        number=number, name=name, shape=full, processes=processes, agents=agents, wrap=whole_mesh
    )
    return ProcMesh(known_here(state), shape)


@dataclass(eq=False)
class HostsState:
    agents: list[int]
    copied: bool = False
    stopped: bool = field(default=False, init=False)

    def stop(self) -> None:
        """Let nothing be started there any more."""
        self.stopped = True


@final
class HostMesh(ShapedMesh):
    """Hosts, one per point; `this_host()` is a mesh of one without axes.

    Example:
        >>> procs = this_host().spawn_procs(per_host={"gpus": 8})       # doctest: +SKIP
    """

    def __init__(self, state: HostsState, shape: Shape, python: str | None = None) -> None:
        self._state = state
        self._shape = shape
        self._python = python  # that ranks are started with; None: they are forked

    def _new_with_shape(self, shape: Shape) -> Self:
        return type(self)(self._state, shape, self._python)

    @property
    def _agents(self) -> list[int]:
        living = current.part(Hosts).living_agent
        return [living(self._state.agents[rank]) for rank in self._shape.ranks()]

    @property
    def region(self) -> Region:
        """The hosts' labels and places, as shapes have them."""
        return self._shape.region

    @property
    def is_fake_in_process(self) -> bool:
        """Tell whether its processes are pretended ones, inside this: never."""
        return False

    @property
    def stream_logs(self) -> bool:
        """Tell whether what their processes write is shown here: always."""
        return True

    @property
    def initialized(self) -> Future[bool]:
        """Done when the hosts can spawn processes; raises `LaunchError` if one cannot."""
        return current.part(Hosts).hosts_ready(self._agents)

    def spawn_procs(
        self,
        per_host: Mapping[str, int] | None = None,
        bootstrap: Callable[[], object] | None = None,
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
        options = SpawnOptions(bootstrap, name, proc_bind, bootstrap_command, env)
        mesh = self._spawn(wanted, options)
        for callback in spawn_callbacks:
            callback(mesh)
        return mesh

    def _spawn(self, per_host: Mapping[str, int], options: SpawnOptions) -> ProcMesh:
        place = HostPart(self._agents, self._shape, self._python)
        return current.part(Hosts).spawn(place, per_host, options, whole_mesh)

    def shutdown(self) -> Future[None]:
        """End the hosts for good, with everything on them."""
        self._check_whole("shut down")
        self._check_open()
        self._state.stop()
        return current.part(Hosts).shut_hosts(self._agents)

    def stop(self) -> Future[None]:
        """End every process on the hosts and release them."""
        self._check_whole("stop")
        self._check_open()
        return current.part(Hosts).stop_hosts(self._agents)

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
        self._check_open()
        return await _sync(self._agents, self.extent, workspace, conda, auto_reload)

    def _spawn_anywhere(self, name: str) -> ProcMesh:
        # One process per host, wherever it starts: the current folder may be missing there
        return self._spawn({}, SpawnOptions(name=name, anywhere=True))

    def with_python_executable(self, python_executable: str) -> HostMesh:
        """Return the same hosts, whose processes run another interpreter.

        It needs this monarch_nb and the same minor version of Python. Processes are started, not
        forked, which takes seconds. They find the modules that this process finds outside of its
        standard library and `site-packages`, then their own. What they spawn on `this_host()` runs
        it too. A `bootstrap_command` takes the place of this interpreter.
        """
        python = os.fspath(python_executable)
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
                f"cannot {what} `HostMesh` that is a reference instead of owned: it is a slice or "
                f"a copy; {what} the mesh that the job or attach_to_workers returned"
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HostMesh):
            return NotImplemented
        mine, others = ((each._state.agents, each._shape, each._python) for each in (self, other))
        return mine == others

    def __hash__(self) -> int:
        return hash(tuple(self._state.agents))

    def __reduce__(self) -> tuple[object, ...]:
        agents = self._state.agents
        if current.running() is not None:
            agents = [current.part(Hosts).living_agent(each) for each in agents]
        return _restore_hosts, (agents, self._shape, self._python)

    def __repr__(self) -> str:
        python = f" with {self._python}" if self._python else ""
        stopped = " shut down" if self._state.stopped else ""
        return f"<HostMesh {{{self._sizes_text()}}}{python}{stopped}>"


def _restore_hosts(agents: list[int], shape: Shape, python: str | None) -> HostMesh:
    return HostMesh(HostsState(agents, copied=True), shape, python)


async def _sync(
    agents: list[int],
    extent: Extent,
    workspace: Workspace | Path | str,
    conda: bool,
    auto_reload: bool,
) -> SyncReport:
    def spawn(agent: int) -> ProcMesh:
        return HostMesh(HostsState([agent]), Shape.unity())._spawn_anywhere("workspace")

    report: SyncReport = await late.load(late.WORKSPACE_SYNC).sync(
        agents, extent, workspace, conda=conda, auto_reload=auto_reload, spawn=spawn
    )
    return report


def _check_supervise(name: str, supervise: object) -> None:
    if not isinstance(supervise, Restart | None):
        raise TypeError(
            f"{name}: supervise={supervise!r:.80} is none of elastic.restart(max=3, within_s=60). "
            "(An argument of that name does not reach the constructor.)"
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
    """Return the host of the calling process, as a mesh of one. On a rank that another interpreter
    runs, processes that are spawned there run it too."""
    return HostMesh(HostsState([current.part(Hosts).local_agent()]), Shape.unity(), started_by())


def this_proc() -> ProcMesh:
    """Return the calling process, as a mesh of one; actors spawned on it live beside you."""
    found: ProcMesh = current.runtime().root.proc_mesh
    return found


def mesh_of_hosts(agents: Sequence[int]) -> HostMesh:
    """Return the host mesh of these agents, on the axis `hosts`."""
    return HostMesh(HostsState(list(agents)), Extent(["hosts"], [len(agents)]).region.as_shape())
