"""`ProcMesh`: processes laid out on named axes; where actors are spawned.

Handles only; what spawning, stopping and healing do is in `meshes.py` and `healing.py`.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, final

from monarch_nb.actors.definition import Actor, endpoint
from monarch_nb.core.shape.extent import Extent, Point, Shape, Slice
from monarch_nb.core.shape.mesh_trait import MeshTrait
from monarch_nb.meshes import process_groups, variables
from monarch_nb.process import current
from monarch_nb.process.futures.future import Future
from monarch_nb.process.supervision.mesh_state import ProcsState

if TYPE_CHECKING:
    from monarch_nb.core.shape.values import ValueMesh
    from monarch_nb.meshes.host_mesh import HostMesh
    from monarch_nb.meshes.synced import SyncReport
    from monarch_nb.meshes.workspace import Workspace

T = TypeVar("T")


class FunctionRunner(Actor):
    """Runs plain functions in a process, for `ProcMesh.execute`."""

    @endpoint
    def run(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call it."""
        return function(*args, **kwargs)


def _tensor_engine() -> Any:
    """Known by name only: it is made of what is here."""
    return importlib.import_module("monarch_nb.tensor.meshes.active")


spawn_callbacks: list[Callable[[ProcMesh], None]] = []


def register_proc_mesh_spawn_callback(callback: Callable[[ProcMesh], None]) -> None:
    """Call `callback(mesh)` with each mesh of processes that this process spawns from now on."""
    spawn_callbacks.append(callback)


def unregister_proc_mesh_spawn_callback(callback: Callable[[ProcMesh], None]) -> None:
    """Do not call it any more; nothing happens if it was not registered."""
    with contextlib.suppress(ValueError):
        spawn_callbacks.remove(callback)


@final
class ProcMesh(MeshTrait):
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
        self._held = state.held_by_handles()

    @property
    def _ndslice(self) -> Slice:
        return self._shape.ndslice

    @property
    def _labels(self) -> tuple[str, ...]:
        return tuple(self._shape.labels)

    def _new_with_shape(self, shape: Shape) -> Self:
        return type(self)(self._state, shape)

    @property
    def name(self) -> str:
        """The name given at spawn."""
        return self._state.name

    @property
    def initialized(self) -> Future[bool]:
        """Done when every process has started and its bootstrap function has run."""
        if self._state.owned:
            return self._state.initialized
        return current.runtime().meshes.when_booted(self._state)

    @property
    def ranks(self) -> list[int]:
        """Ranks of these processes in the mesh that was spawned."""
        return list(self._ranks)

    @property
    def host_mesh(self) -> HostMesh:
        """The host of a slice of one process. Raises `NotImplementedError` for more."""
        if len(self._ranks) != 1:
            raise NotImplementedError("host_mesh is there for a slice of one process only")
        from monarch_nb.meshes.host_mesh import HostMesh, HostsState

        return HostMesh(
            HostsState([self._state.agents[self._ranks[0]]], copied=True), Shape.unity()
        )

    def spawn(self, name: str, cls: type[T], *args: Any, **kwargs: Any) -> T:
        """Make an instance of an `Actor` class in every process. Does not block.

        Raises at once: `ValueError` for a class that cannot be an actor, `TypeError` for arguments
            that its
        constructor would refuse, `RuntimeError` after `stop`, `SupervisionError` when some of these
        processes are lost. What a constructor raises comes with `.initialized` and with the first
        call.
        """
        made: Any = current.runtime().meshes.spawn_actors(self, name, cls, args, kwargs)
        return made  # type: ignore[no-any-return]

    def stop(self, reason: str = "stopped by client") -> Future[None]:
        """End the processes. Starts when the future is first observed; twice is fine.

        Raises `RuntimeError` for a slice, for a mesh of somebody else's, and for `this_proc()`.
        """
        if len(self._ranks) != len(self._state.processes):
            raise RuntimeError("a slice of a ProcMesh cannot be stopped, only the mesh itself")
        return current.runtime().meshes.stop_procs(self._state, reason)

    def heal(self, *, shrink: bool = False) -> ProcMesh:
        """Bring lost ranks back: new processes at the same coordinates with their actors made
        again.

        Args:
            shrink: start nothing; return a smaller mesh of the processes that live.

        Returns:
            The healed mesh. Handles of the old one (and of actors on it) work again too, without
            `shrink`.
        """
        return current.runtime().healing.procs(self, shrink=shrink)

    async def logging_option(
        self,
        stream_to_client: bool = False,
        aggregate_window_sec: float | None = None,
        level: int = logging.INFO,
    ) -> None:
        """How the client shows the processes' output and logs.

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
        current.runtime().meshes.set_logging(self, window_s=aggregate_window_sec, level=level)

    def execute(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `function(*args, **kwargs)` once in every process and wait: the values by rank.

        With tensors of a mesh among the arguments it runs here, as operations on these, and returns
        what it returns, at once.

        Raises `ActorError` when it raised on a rank, `DeviceMeshError` when a rank was lost.

        Example:
            >>> mesh.execute(lambda x: x * 2, batch)      # doctest: +SKIP
        """
        if "monarch_nb.tensor.engine.tensors" in sys.modules and _tensor_engine().holds_tensors(
            (args, kwargs)
        ):
            return function(*args, **kwargs)
        state = self._state
        runner = next((each for each in state.actors if each.cls is FunctionRunner), None)
        if runner is None:
            whole: Any = state.view().spawn("execute", FunctionRunner)
            runner = whole._state
        from monarch_nb.meshes.actor_mesh import ActorMesh

        found: ValueMesh[Any] = (
            ActorMesh(runner, self._shape).run.call(function, args, kwargs).get()
        )
        return found

    def __getitem__(self, name: str) -> ValueMesh[Any]:
        """The variable `name` of the cells of these ranks: `mesh["loss"]`. Waits for the ranks.

        Raises `RankNameError` where ranks have no such variable, `EncodeError` where it cannot be
        moved, `SupervisionError` when a rank is lost.

        Example:
            >>> mesh.slice(gpus=0)["loss"].item()         # doctest: +SKIP
            0.25
        """
        return variables.get([self], name).get()

    def __setitem__(self, name: str, value: Any) -> None:
        """Set a variable of the cells on each of these ranks: `mesh["lr"] = 0.1`.

        Waits for the ranks; one that runs a cell has it when the cell ends.
        """
        variables.put([self], {name: value}).get()

    def scatter(self, name: str, value: Any, dim: int = 0) -> None:
        """Cut a value into as many parts as there are ranks; each has its own as variable `name`.

        Args:
            value: a sequence, a numpy array, a tensor, or rows of a pandas, pyarrow or polars
                table. Where it does not divide, the first ranks have one item more.
            dim: the axis to cut, of an array or a tensor.

        Example:
            >>> mesh.scatter("batch", torch.arange(8))    # doctest: +SKIP
        """
        variables.scatter([self], name, value, dim).get()

    def activate(self) -> contextlib.AbstractContextManager[ProcMesh]:
        """Operations of torch make tensors on these ranks from here on, until the `with` block ends
        or `deactivate` is called.

        Example:
            >>> with mesh.activate():                     # doctest: +SKIP
            ...     x = torch.zeros(3, 4)                 # a tensor on each rank
        """
        found: contextlib.AbstractContextManager[ProcMesh] = _tensor_engine().activate(self)
        return found

    def deactivate(self) -> None:
        """End what `activate` has begun, where no `with` block does. Nothing if not active."""
        _tensor_engine().deactivate(self)

    def rank_tensor(self, dim: str | Sequence[str]) -> Any:
        """A tensor of the mesh (int64, no dimensions) that is each rank's coordinate on an axis; of
        several axes, their coordinates as one number, the last axis the fastest.

        Raises `KeyError` for an axis that the mesh has not.
        """
        return _tensor_engine().rank_tensor(self, dim)

    def rank_tensors(self) -> dict[str, Any]:
        """`rank_tensor` of every axis, by name."""
        return {dim: self.rank_tensor(dim) for dim in self._labels}

    def group(
        self, dims: str | Sequence[str] | None = None, *, timeout: float | None = None
    ) -> Any:
        """The `torch.distributed` process group of each rank's neighbours along an axis, several
        axes, or all of them.

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
        return process_groups.group(
            self._part(), process_groups.chosen(self._labels, dims), timeout
        )

    def device_mesh(self) -> Any:
        """On a member: the `torch.distributed.device_mesh.DeviceMesh` with these axes, for
        `fully_shard`, `distribute_tensor`, `parallelize_module`.

        Waits for the other members the first time. Raises `RuntimeError` where it is called on the
        controller or on a rank that is no member.

        Example:
            >>> fully_shard(model, mesh=mesh.device_mesh()["dp"])         # doctest: +SKIP
        """
        return process_groups.device_mesh(self._part())

    def _part(self) -> process_groups.Part:
        state = self._state
        return process_groups.Part(state.number, state.name, len(state.processes), self._shape)

    async def sync_workspace(
        self, workspace: Workspace | Path | str, conda: bool = False, auto_reload: bool = False
    ) -> SyncReport:
        """As `HostMesh.sync_workspace`, for the hosts of these processes."""
        from monarch_nb.meshes.host_mesh import HostMesh, HostsState

        agents = list(dict.fromkeys(self._agents()))
        shape = Extent(["hosts"], [len(agents)]).region.as_shape()
        hosts = HostMesh(HostsState(agents, copied=True), shape)
        return await hosts.sync_workspace(workspace, conda=conda, auto_reload=auto_reload)

    def to_table(self) -> str:
        """Rank, coordinates, process id and state, a line each."""
        lines = ["rank  coordinates  pid  state"]
        for rank in self._ranks:
            state = (
                "lost"
                if rank in self._state.lost
                else "stopped"
                if self._state.ended
                else "running"
            )
            point = Point(rank, self._state.shape.extent)
            lines.append(f"{rank}  {dict(point)}  {self._state.pids.get(rank, '-')}  {state}")
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
        return [self._state.processes[rank] for rank in self._ranks]

    def _agents(self) -> list[int]:
        return [self._state.agents[rank] for rank in self._ranks]

    def __reduce__(self) -> tuple[Any, ...]:
        self._state.shared = True
        return restore_procs, self._reference()

    def _reference(self) -> tuple[Any, ...]:
        state = self._state
        return (
            state.number,
            state.name,
            state.shape,
            list(state.processes),
            state.agents,
            self._shape,
        )

    def __repr__(self) -> str:
        sizes = ", ".join(f"{label}={size}" for label, size in self.sizes.items())
        lost = [rank for rank in self._ranks if rank in self._state.lost]
        condition = "ready" if self._state.initialized.done() else "starting"
        runtime = current.running()
        quiet = runtime.supervision.silent if runtime is not None else {}
        silent = [rank for rank in self._ranks if self._state.processes[rank] in quiet]
        if silent:
            condition = f"silent ranks {silent}"
        if lost:
            condition = f"lost ranks {lost}"
        if self._state.ended is not None:
            condition = "stopped"
        return f"<ProcMesh {self._state.name!r} {{{sizes}}} {condition}>"


def restore_procs(
    number: int, name: str, full: Shape, processes: list[int], agents: list[int], shape: Shape
) -> ProcMesh:
    """A handle as it comes out of a pickle: the owner's own state where it is known."""
    runtime = current.running()
    known = runtime.supervision.states.get(number) if runtime is not None else None
    if isinstance(known, ProcsState):
        return ProcMesh(known, shape)
    state = ProcsState(
        agents, number=number, name=name, owner_port=0, shape=full, processes=processes, owned=False
    )
    if runtime is not None:
        runtime.handles.adopt(state)
    return ProcMesh(state, shape)
