"""`Meshes`: how processes and actors are spawned and stopped by whoever owns them (healing:
`healing.py`).

Rules: ids are chosen here, so nothing waits for an answer before it can be used; what a heal needs
is kept at spawn; whatever is spawned here is registered with supervision first. `MeshError`s are
raised in the caller, before anything is sent, where possible.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from monarch_nb.actors.definition import check_class, check_constructor, is_sync
from monarch_nb.core.shape.extent import Shape, Slice
from monarch_nb.core.wire.frames import SHARED, Message
from monarch_nb.core.wire.messages.actors import (
    AggregateOutput,
    AwaitBoot,
    Booted,
    SetLogLevel,
    SpawnActor,
    StopActor,
)
from monarch_nb.core.wire.messages.agents import Stop
from monarch_nb.core.wire.messages.codec import Refused
from monarch_nb.errors import SupervisionError
from monarch_nb.meshes.actor_mesh import ActorMesh, ActorsState, SpawnCall
from monarch_nb.meshes.proc_mesh import ProcMesh, spawn_callbacks
from monarch_nb.process import context, remote_errors
from monarch_nb.process.boot import BootCall
from monarch_nb.process.futures.ask_all import Question
from monarch_nb.process.futures.calls import Target
from monarch_nb.process.futures.future import Future, LazyFuture, completed, make
from monarch_nb.process.payloads import Parcel
from monarch_nb.process.process import Proc, new_actor_port
from monarch_nb.process.supervision.mesh_state import ProcsState
from monarch_nb.process.supervision.supervision import MeshFailure, MeshState, Supervision

if TYPE_CHECKING:
    from monarch_nb.actors.hosting import Hosting


class Meshes:
    """Everything this process spawns."""

    def __init__(self, proc: Proc, hosting: Hosting, supervision: Supervision) -> None:
        self.proc = proc
        self.hosting = hosting
        self.supervision = supervision
        self._stopping = threading.Lock()
        self._names = itertools.count()
        supervision.stop_state = self._stop_state

    # actors

    def spawn_actors(
        self,
        procs: ProcMesh,
        name: str,
        cls: type,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        port: int | None = None,
    ) -> ActorMesh[Any]:
        """`ProcMesh.spawn`."""
        check_class(cls)
        check_constructor(cls, args, kwargs)
        self._check_usable(procs)
        instance = context.current_instance()
        state = ActorsState(
            cls,
            procs._state,
            number=port or new_actor_port(),
            name=name,
            owner_port=instance.port,
            shape=Shape(procs._labels, Slice.new_row_major(procs._shape.ndslice.sizes)),
            processes=procs._processes(),
            owned=True,
        )
        state.proc_ranks = tuple(procs.ranks)
        spec = _spec(state, instance, self.proc.id)
        content = (cls, args, kwargs, procs._reference())
        parcel = self.proc.encode(content, state.processes)
        kept = None if parcel.flags & SHARED else parcel
        state.respawn = functools.partial(self._construct, state, spec, content, kept)
        self.supervision.own(state)
        procs._state.actors.append(state)
        state.initialized = self._construct_with(state, spec, parcel, range(len(state.processes)))
        return ActorMesh(state, state.shape)

    def _check_usable(self, procs: ProcMesh) -> None:
        state = procs._state
        if state.ended is not None:
            raise RuntimeError(
                f"`ProcMesh` has already been stopped: {state.name!r}, {state.ended}"
            )
        lost = [
            rank
            for rank in procs.ranks
            if rank in state.lost or state.processes[rank] in self.proc.dead
        ]
        if lost:
            living = [rank for rank in procs.ranks if rank not in lost]
            raise SupervisionError(
                f"error spawning actor mesh: ranks {lost} of {state.name!r} are lost. "
                "Spawn on a slice of the "
                f"living ranks {living}, or bring the lost back first: mesh.heal(), or %mesh heal.",
                ranks=tuple(lost),
            )

    def _construct(
        self,
        state: ActorsState,
        spec: SpawnActor,
        content: tuple[Any, ...],
        kept: Parcel | None,
        ranks: list[int],
    ) -> Future[Any]:
        parcel = kept or self.proc.encode(content, [state.processes[rank] for rank in ranks])
        return self._construct_with(state, spec, parcel, ranks, again=True)

    def _construct_with(
        self,
        state: ActorsState,
        spec: SpawnActor,
        parcel: Parcel,
        ranks: Sequence[int],
        *,
        again: bool = False,
    ) -> Future[Any]:
        processes = [state.processes[rank] for rank in ranks]
        target = Target(state, "__init__", processes, ranks, state.shape)
        call = make(SpawnCall)
        assert isinstance(call, SpawnCall)
        call.on_failure = functools.partial(self._spawn_failed, state, again)
        call._begin(self.proc, target, context.current_tag())
        call.expect()
        for index, (rank, process) in enumerate(zip(ranks, processes, strict=True)):
            self.proc.control(
                process,
                spec._replace(rank=rank),
                parcel=parcel,
                reply=call.port,
                rank=index,
            )
        for process in processes:
            if process in self.proc.dead:
                call.lost(self.proc.dead[process])
        return call

    def _spawn_failed(
        self, state: ActorsState, again: bool, failed: list[int], errors: list[Message]
    ) -> None:
        """Some constructors raised: those actors never lived; the others are torn down.

        In a heal (`again`) the others live on, and whoever heals is told.
        """
        summary = remote_errors.summary(errors[0].payload)
        if summary is None:
            return  # its process did not boot: told by that mesh, and to whoever calls
        event = f"the constructor of {state.cls.__name__} raised {summary}"
        failure = MeshFailure(state, failed, event)
        state.lose(failure)
        if again or state.ended is not None:  # stopped before it was there: no failure
            return
        self._tell_to_stop(state, "another rank's constructor failed", lambda: None)

        def report() -> None:
            failure.cause = remote_errors.unpack(
                errors[0].payload,
                what=f"{state.name}.__init__",
                rank=failed[0],
                size=len(state.processes),
            )
            self.supervision.raise_to(state.owner_port, failure, seen=False)

        threading.Thread(target=report, name="monarch-failure", daemon=True).start()

    def stop_actors(self, state: ActorsState, reason: str) -> Future[None]:
        """`ActorMesh.stop`."""
        return self._stop_once(state, reason, functools.partial(self._end_actors, state))

    def _end_actors(self, state: ActorsState, then: Callable[[], None]) -> None:
        self.supervision.disown(state)
        if state.procs is not None and state in state.procs.actors:
            state.procs.actors.remove(state)
        self._tell_to_stop(state, state.ended or "", then)

    def _tell_to_stop(self, state: ActorsState, reason: str, then: Callable[[], None]) -> None:
        living = [process for process in state.processes if process not in self.proc.dead]
        Question(self.proc, dict.fromkeys(living, StopActor(state.number, reason)), then)

    # processes

    def new_name(self) -> str:
        """A name for a mesh that was given none."""
        return f"mesh{next(self._names)}"

    def register(self, state: ProcsState, request: Callable[[list[int]], None]) -> ProcMesh:
        """Own a mesh of processes that are being spawned by `request(ranks)`."""
        state.when_garbage = lambda: self._stop_in_background(state)
        state.respawn = functools.partial(self._start, state, request)
        self.supervision.own(state)
        mesh: ProcMesh = state.view()
        state.initialized = self._start(state, request, list(range(len(state.processes))))
        for callback in () if state.internal else list(spawn_callbacks):
            callback(mesh)
        return mesh

    def when_booted(self, state: ProcsState) -> Future[bool]:
        """For a handle that came by message: the processes answer once they are up."""
        future: Future[bool] = make(Future)
        processes = list(state.processes)

        def heard(process: int, answer: Booted | Refused) -> None:
            rank = processes.index(process)
            if isinstance(answer, Refused):
                future._set_exception(SupervisionError(answer.error, ranks=(rank,)))
            elif answer.unbooted is not None:
                error = remote_errors.unbooted(answer.unbooted, rank, len(processes))
                future._set_exception(error)

        requests = dict.fromkeys(processes, AwaitBoot())
        Question(self.proc, requests, lambda: future._set_result(True), heard)
        return future

    def _start(
        self, state: ProcsState, request: Callable[[list[int]], None], ranks: list[int]
    ) -> Future[Any]:
        future = make(BootCall)
        assert isinstance(future, BootCall)
        future.begin(self.proc, state, ranks)
        self.proc.watching(state.processes[rank] for rank in ranks)
        request(ranks)
        return future

    def stop_procs(self, state: ProcsState, reason: str) -> Future[None]:
        """`ProcMesh.stop`: lazy, then it goes through whoever watches."""
        if not state.owned:
            raise RuntimeError("only the process that spawned a ProcMesh can stop it")
        if self.proc.id in state.processes:
            raise RuntimeError("this process ends with shutdown_context(), not with this_proc()")

        def start(future: Future[None]) -> None:
            stopped = self._stop_once(state, reason, functools.partial(self._end_procs, state))
            stopped.add_done_callback(lambda _: future._set_result(None))

        return LazyFuture.starting(start)

    def _end_procs(self, state: ProcsState, then: Callable[[], None]) -> None:
        for actors in list(state.actors):
            actors.end(state.ended or "")
            self.supervision.disown(actors)
        by_agent: dict[int, list[int]] = {}
        for process, agent in zip(state.processes, state.agents, strict=True):
            by_agent.setdefault(agent, []).append(process)

        def gone() -> None:
            self.supervision.disown(state)
            then()

        limit_s = self.proc.config.exit_s
        stops = {agent: Stop(processes, limit_s) for agent, processes in by_agent.items()}
        Question(self.proc, stops, gone)

    def _stop_once(
        self, state: MeshState, reason: str, stop: Callable[[Callable[[], None]], None]
    ) -> Future[None]:
        """End a mesh; who asks again waits for the same end."""
        stopped: Future[None] = make(Future)
        with self._stopping:
            if state.stopping is not None:
                return state.stopping
            state.stopping = stopped
        if state.ended is not None:
            stopped._set_result(None)
        else:
            state.end(reason)
            stop(lambda: stopped._set_result(None))
        return stopped

    def _stop_in_background(self, state: ProcsState) -> None:
        # runs inside a garbage collection: nothing here may take a lock that its victim holds
        if not self.proc.closed:
            threading.Thread(
                target=lambda: self.stop_procs(
                    state, "nobody refers to it any more"
                ).add_done_callback(_ignore),
                name="monarch-garbage",
                daemon=True,
            ).start()

    def _stop_state(self, state: MeshState, reason: str) -> Future[None]:
        if isinstance(state, ProcsState):
            return self.stop_procs(state, reason)
        if isinstance(state, ActorsState):
            return self.stop_actors(state, reason)
        return completed(None)

    def set_logging(self, mesh: ProcMesh, *, window_s: float | None, level: int) -> None:
        """`ProcMesh.logging_option`."""
        processes = mesh._processes()
        option = AggregateOutput(processes, mesh.name, window_s)
        self.proc.control(self.proc.controller, option)
        for process in processes:
            self.proc.control(process, SetLogLevel(level))


def _spec(state: ActorsState, instance: context.Instance, process: int) -> SpawnActor:
    """Of rank 0."""
    cls = state.cls
    return SpawnActor(
        port=state.number,
        name=state.name,
        class_name=f"{cls.__module__}.{cls.__qualname__}",
        labels=list(state.shape.labels),
        sizes=list(state.shape.ndslice.sizes),
        rank=0,
        owner=(process, instance.port),
        creator=str(instance),
        sync=is_sync(cls),
        main=getattr(cls, "takes_main_thread", True),
    )


def _ignore(_: Any) -> None:
    """Nobody waits for it."""
