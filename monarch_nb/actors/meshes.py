"""`Meshes`: how processes and actors are spawned, stopped and healed by whoever owns them.

Rules: ids are chosen here, so nothing waits for an answer before it can be used; what a heal needs is kept at spawn; whatever is
spawned here is registered with supervision first. `MeshError`s are raised in the caller, before anything is sent, where possible.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from monarch_nb.actors import context, envelope
from monarch_nb.actors.actor_mesh import ActorMesh, ActorsState, SpawnCall
from monarch_nb.actors.calls import Target
from monarch_nb.actors.definition import check_class, check_constructor, is_sync
from monarch_nb.actors.future import Future, LazyFuture, completed, make
from monarch_nb.actors.proc import Exit, Parcel, Proc, Waiter, new_actor_port, new_process_ids
from monarch_nb.actors.proc_mesh import ProcMesh, ProcsState
from monarch_nb.actors.supervision import MeshFailure, MeshState, Supervision
from monarch_nb.core.frames import HOST_SHIFT, SHARED, Message
from monarch_nb.core.shape import Extent, Shape, Slice
from monarch_nb.errors import SupervisionError

if TYPE_CHECKING:
    from monarch_nb.actors.hosting import Hosting


class Meshes:
    """Everything this process spawns."""

    def __init__(self, proc: Proc, hosting: Hosting, supervision: Supervision) -> None:
        self.proc = proc
        self.hosting = hosting
        self.supervision = supervision
        self.callbacks: list[Callable[[ProcMesh], None]] = []
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
        body = _actor_body(state, instance, self.proc.id)
        content = (cls, args, kwargs, procs._reference())
        parcel = self.proc.encode(content, state.processes)
        kept = None if parcel.flags & SHARED else parcel
        state.respawn = functools.partial(self._construct, state, body, content, kept)
        self.supervision.own(state)
        procs._state.actors.append(state)
        state.initialized = self._construct_with(state, body, parcel, range(len(state.processes)))
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
                f"error spawning actor mesh: ranks {lost} of {state.name!r} are lost. Spawn on a slice of the "
                f"living ranks {living}, or bring the lost back first: mesh.heal(), or %mesh heal.",
                ranks=tuple(lost),
            )

    def _construct(
        self,
        state: ActorsState,
        body: dict[str, Any],
        content: tuple[Any, ...],
        kept: Parcel | None,
        ranks: list[int],
    ) -> Future[Any]:
        parcel = kept or self.proc.encode(content, [state.processes[rank] for rank in ranks])
        return self._construct_with(state, body, parcel, ranks)

    def _construct_with(
        self, state: ActorsState, body: dict[str, Any], parcel: Parcel, ranks: Sequence[int]
    ) -> Future[Any]:
        processes = [state.processes[rank] for rank in ranks]
        target = Target(state, "__init__", processes, ranks, state.shape)
        call = make(SpawnCall)
        assert isinstance(call, SpawnCall)
        call.on_failure = functools.partial(self._spawn_failed, state)
        call._begin(self.proc, target, context.current_tag())
        call.expect()
        for index, (rank, process) in enumerate(zip(ranks, processes, strict=True)):
            self.proc.control(
                process,
                "spawn_actor",
                {**body, "rank": rank},
                parcel=parcel,
                reply=call.port,
                rank=index,
            )
        for process in processes:
            if process in self.proc.dead:
                call.lost(self.proc.dead[process])
        return call

    def _spawn_failed(
        self, state: ActorsState, failed: list[int], errors: list[Message], lost: list[int]
    ) -> None:
        """Some constructors raised: those actors never lived; the others are torn down."""
        if not failed:
            return

        def report() -> None:
            cause = envelope.unpack(
                errors[0].payload,
                what=f"{state.name}.__init__",
                rank=failed[0],
                size=len(state.processes),
            )
            kind = type(getattr(cause, "exception", cause)).__name__
            event = f"the constructor of {state.cls.__name__} raised {kind}: {getattr(cause, 'exception', cause)}"
            failure = MeshFailure(state, failed, event, cause)
            state.lose(failure)
            self._tell_to_stop(state, "another rank's constructor failed", lambda: None)
            self.supervision.raise_to(state.owner_port, failure, seen=False)

        threading.Thread(target=report, name="monarch-failure", daemon=True).start()

    def stop_actors(self, state: ActorsState, reason: str) -> Future[None]:
        """`ActorMesh.stop`."""
        done: Future[None] = make(Future)
        if state.ended is not None:
            done._set_result(None)
            return done
        state.end(reason)
        self.supervision.disown(state)
        if state.procs is not None and state in state.procs.actors:
            state.procs.actors.remove(state)
        self._tell_to_stop(state, reason, lambda: done._set_result(None))
        return done

    def _tell_to_stop(self, state: ActorsState, reason: str, then: Callable[[], None]) -> None:
        living = [process for process in state.processes if process not in self.proc.dead]
        countdown = _Countdown(len(living), then)
        for process in living:
            body = {"port": state.number, "reason": reason}
            self.proc.ask(process, "stop_actor", body, lambda _answer: countdown.one_less())

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
        for callback in self.callbacks:
            callback(mesh)
        return mesh

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
        return LazyFuture.starting(lambda future: self._stop_procs_now(state, reason, future))

    def _stop_procs_now(self, state: ProcsState, reason: str, future: Future[Any]) -> None:
        first = state.ended is None
        state.end(reason)
        for actors in list(state.actors):
            actors.end(reason)
            self.supervision.disown(actors)
        if not first:
            future._set_result(None)
            return
        by_agent: dict[int, list[int]] = {}
        for process, agent in zip(state.processes, state.agents, strict=True):
            if process != self.proc.id:
                by_agent.setdefault(agent, []).append(process)

        def gone() -> None:
            self.supervision.disown(state)
            future._set_result(None)

        countdown = _Countdown(len(by_agent), gone)
        for agent, processes in by_agent.items():
            body = {"procs": processes, "grace_s": self.proc.config.exit_s}
            self.proc.ask(agent, "stop", body, lambda _answer: countdown.one_less())

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

    # healing

    def heal_procs(self, mesh: ProcMesh, *, shrink: bool) -> ProcMesh:
        """`ProcMesh.heal`."""
        state = mesh._state
        if not state.owned or state.respawn is None:
            raise RuntimeError("only the process that spawned a mesh can heal it")
        if state.ended is not None:
            raise RuntimeError(
                f"`ProcMesh` has already been stopped: {state.name!r}, {state.ended}"
            )
        if shrink:
            smaller: ProcMesh = self._shrunk(mesh)
            return smaller
        replaced = self._respawn_lost(state)
        constructed = [
            self._heal_actors_on(actors, replaced)
            for actors in list(state.actors)
            if actors.respawn is not None and actors.ended is None
        ]
        for each in constructed:
            each.get()
        return mesh

    def _respawn_lost(self, state: ProcsState) -> dict[int, int]:
        """New processes for the dead; the map from the dead to them."""
        assert state.respawn is not None
        lost = [rank for rank, process in enumerate(state.processes) if process in self.proc.dead]
        if not lost:
            return {}
        state.generation += 1
        replaced = {}
        for rank in lost:
            old = state.processes[rank]
            [replaced[old]] = new_process_ids(old >> HOST_SHIFT, 1)
            state.processes[rank] = replaced[old]
        started = state.respawn(lost)
        state.restore(lost)
        started.get()
        for rank, process in enumerate(state.processes):
            if rank not in lost:
                store = state.store(self.proc.links.run_dir)
                self.proc.control(process, "regroup", {"store": store})
        return replaced

    def _heal_actors_on(self, actors: ActorsState, replaced: dict[int, int]) -> Future[Any]:
        """Construct again what was lost with its process or had failed by itself."""
        assert actors.respawn is not None
        ranks = sorted(
            set(actors.lost)
            | {r for r, process in enumerate(actors.processes) if process in replaced}
        )
        actors.processes[:] = [replaced.get(process, process) for process in actors.processes]
        if not ranks:
            return completed(None)
        constructed = actors.respawn(ranks)
        actors.restore(ranks)
        return constructed

    def heal_actors(self, mesh: ActorMesh[Any], *, shrink: bool) -> ActorMesh[Any]:
        """`ActorMesh.heal`: heals the processes below, then the actors."""
        state = mesh._state
        if state.procs is None or not state.owned:
            raise RuntimeError("only the process that spawned a mesh can heal it")
        if shrink:
            smaller: ActorMesh[Any] = self._shrunk(mesh)
            return smaller
        self.heal_procs(state.procs.view(), shrink=False)
        return mesh

    def _shrunk(self, mesh: Any) -> Any:
        """The living part: a grid where whole slices of one axis are gone, else a line."""
        state: MeshState = mesh._state
        lost = {r for r, p in enumerate(state.processes) if p in self.proc.dead} | set(state.lost)
        living = [rank for rank in mesh._ranks if rank not in lost]
        if not living:
            raise SupervisionError(
                f"no rank of {state.name!r} is left; bring it up again", ranks=tuple(lost)
            )
        smaller = shrink_shape(mesh._shape, set(living))
        return state_of_living(state, living, smaller).view()

    def set_logging(
        self, mesh: ProcMesh, *, stream: bool, window_s: int | None, level: int
    ) -> None:
        """`ProcMesh.logging_option`."""
        body = {"stream": stream, "window_s": window_s, "level": level}
        for process in mesh._processes():
            self.proc.control(process, "logging", body)


def state_of_living(state: MeshState, living: list[int], shape: Shape) -> MeshState:
    """A state of its own for the survivors, numbered from 0."""
    common = {
        "number": state.number,
        "name": state.name,
        "owner_port": state.owner_port,
        "shape": shape,
        "processes": [state.processes[rank] for rank in living],
        "owned": True,
    }
    smaller: MeshState
    if isinstance(state, ActorsState):
        smaller = ActorsState(state.cls, state.procs, **common)
    else:
        assert isinstance(state, ProcsState)
        smaller = ProcsState([state.agents[rank] for rank in living], **common)
        smaller.actors = state.actors
    return smaller


def shrink_shape(shape: Shape, living: set[int]) -> Shape:
    """Drop the slices of one axis that hold a lost rank, if that loses no survivor; else one line."""
    extent = shape.extent
    for axis, label in enumerate(shape.labels):
        kept = [i for i in range(extent[label]) if set(shape.at(label, i).ranks()) <= living]
        if kept and len(kept) * (len(shape) // extent[label]) == len(living):
            sizes = list(shape.ndslice.sizes)
            sizes[axis] = len(kept)
            return Shape(shape.labels, Slice.new_row_major(sizes))
    label = shape.labels[-1] if shape.labels else "ranks"
    return Extent([label], [len(living)]).region.as_shape()


class BootCall(Future[bool], Waiter):
    """Waits for processes to say that they are up (`booted`)."""

    __slots__ = ("_missing", "_port", "_proc", "_mesh")

    def begin(self, proc: Proc, state: ProcsState, ranks: list[int]) -> None:
        """Expect these ranks."""
        self._proc = proc
        self._mesh = state
        self._missing = {state.processes[rank]: rank for rank in ranks}
        self._port = proc.new_port()
        proc.ports[self._port] = self.deliver
        state.boot_port = self._port
        if not self._missing:
            self._set_result(True)

    def deliver(self, message: Message) -> None:
        """A rank is up, or its bootstrap function raised."""
        rank = self._missing.pop(message.source, None)
        if rank is None:
            return
        body, payload = message.payload, message.buffers
        self._mesh.pids[rank] = int.from_bytes(bytes(body)[:8], "little")
        if payload:
            self._end()
            self._arrive((rank, bytes(payload[0])))
        elif not self._missing:
            self._end()
            self._set_result(True)

    def _decode(self, content: Any) -> bool:
        rank, payload = content
        raise envelope.unpack(
            payload, what="setup.setup", rank=rank, size=len(self._mesh.processes)
        )

    def _end(self) -> None:
        self._proc.ports.pop(self._port, None)

    def waits_for(self, process: int) -> bool:
        return process in self._missing

    def abandon(self, ended: Exit) -> None:
        for process in list(self._missing)[:1]:
            self.lost(Exit(process, reason=ended.reason))

    def lost(self, ended: Exit) -> None:
        rank = self._missing.pop(ended.process)
        self._end()
        failure = MeshFailure(self._mesh, [rank], ended.describe(), ended=ended)
        self._set_exception(failure.error(f"{self._mesh.name}.start"))


class _Countdown:
    """Calls back when as many events have come as were expected."""

    def __init__(self, count: int, then: Callable[[], None]) -> None:
        self._left = count
        self._then = then
        self._lock = threading.Lock()
        if count == 0:
            then()

    def one_less(self) -> None:
        with self._lock:
            self._left -= 1
            done = self._left == 0
        if done:
            self._then()


def _actor_body(state: ActorsState, instance: context.Instance, process: int) -> dict[str, Any]:
    cls = state.cls
    return {
        "port": state.number,
        "name": state.name,
        "class_name": f"{cls.__module__}.{cls.__qualname__}",
        "labels": list(state.shape.labels),
        "sizes": list(state.shape.ndslice.sizes),
        "owner": [process, instance.port],
        "creator": str(instance),
        "sync": is_sync(cls),
    }


def _ignore(_: Any) -> None:
    """Nobody waits for it."""
