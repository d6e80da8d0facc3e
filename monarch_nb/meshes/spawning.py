"""`Spawner`: how processes and actors are spawned and stopped by whoever owns them (healing:
`healing/`).

Rules: ids are chosen here, so nothing waits for an answer before it can be used; what a heal needs
is kept at spawn; whatever is spawned here is registered with supervision first. `MeshError`s are
raised in the caller, before anything is sent, where possible.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from monarch_nb.actors.definition import check_class, check_constructor, is_sync
from monarch_nb.core.shape.extent import Shape, Slice
from monarch_nb.core.wire.frames import ERROR, SHARED, Message
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
from monarch_nb.errors import ActorError, SupervisionError
from monarch_nb.meshes.garbage import Garbage
from monarch_nb.meshes.restarting.intensity import Intensity, Restart
from monarch_nb.meshes.states import ActorsState, HandleToken, Part, ProcsState
from monarch_nb.process import context, remote_errors
from monarch_nb.process.exit import Exit
from monarch_nb.process.futures.ask_all import Question
from monarch_nb.process.futures.calls import GatherCall, Target
from monarch_nb.process.futures.future import Future, LazyFuture, completed, make
from monarch_nb.process.instance import Instance
from monarch_nb.process.payloads import Payload
from monarch_nb.process.process import Proc, Wait, Waiter, new_actor_port
from monarch_nb.process.supervision.supervision import MeshFailure, MeshState, Supervision


class KeptActors(NamedTuple):
    """All that another controller needs to own a mesh of actors: what they were made of, on which
    ranks of which mesh."""

    name: str
    number: int
    cls: type
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    procs: int
    on: Shape
    restarts: Restart | None = None


class Spawner:
    def __init__(self, proc: Proc, supervision: Supervision) -> None:
        self.proc = proc
        self.supervision = supervision
        self._stopping = threading.Lock()
        self._garbage = Garbage()
        self._names = itertools.count()

    # actors

    def spawn_actors(
        self,
        procs: Part,
        name: str,
        cls: type,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        wrap: Callable[[ActorsState], Any],
        port: int | None,
        restarts: Restart | None = None,
    ) -> ActorsState:
        check_class(cls)
        check_constructor(cls, args, kwargs)
        procs.state.wait_for(procs.ranks)
        self._check_usable(procs)
        if restarts is not None:
            self._check_restartable(procs.state, name)
        number = port or new_actor_port()
        state = self._state_of(procs, name, cls, number, wrap, restarts)
        spec = _spec(state, context.current_instance(), self.proc.id)
        content = (cls, args, kwargs, procs.reference())
        payload = self.proc.encode(content, state.processes)
        kept = None if payload.flags & SHARED else payload
        made_of = KeptActors(
            name, number, cls, args, kwargs, procs.state.number, procs.shape, restarts
        )
        state.kept_by(lambda: made_of)
        self.supervision.own(state)
        procs.state.actors.append(state)
        state.start(
            lambda: self._construct_with(state, spec, payload, range(len(state.processes))),
            functools.partial(self._construct, state, spec, content, kept),
        )
        return state

    def restore_actors(
        self, procs: Part, kept: KeptActors, wrap: Callable[[ActorsState], Any]
    ) -> ActorsState:
        """Own actors that live, and whose controller has gone."""
        state = self._state_of(procs, kept.name, kept.cls, kept.number, wrap, kept.restarts)
        spec = _spec(state, context.current_instance(), self.proc.id)
        content = (kept.cls, kept.args, kept.kwargs, procs.reference())
        state.kept_by(lambda: kept)
        self.supervision.own(state)
        procs.state.actors.append(state)
        state.start(
            lambda: completed(None),
            functools.partial(self._construct, state, spec, content, None),
        )
        return state

    def _state_of(
        self,
        procs: Part,
        name: str,
        cls: type,
        number: int,
        wrap: Callable[[ActorsState], Any],
        restarts: Restart | None,
    ) -> ActorsState:
        return ActorsState(
            cls=cls,
            procs=procs.state,
            proc_ranks=tuple(procs.ranks),
            number=number,
            name=name,
            owner_port=context.current_instance().port,
            shape=Shape(procs.shape.labels, Slice.new_row_major(procs.shape.ndslice.sizes)),
            processes=procs.processes,
            owned=True,
            restarted_by=None if restarts is None else self.proc.id,
            restarts=None if restarts is None else Intensity(restarts),
            wrap=wrap,
        )

    def _check_restartable(self, procs: ProcsState, name: str) -> None:
        if not procs.owned:
            raise RuntimeError(
                f"{name}: `supervise` needs processes that are spawned here, as others can only be "
                f"replaced by their owner. Spawn {name} where {procs.name!r} was spawned, or on "
                "processes of your own: this_host().spawn_procs(...)"
            )
        if procs.respawn is None and procs.processes != [self.proc.id]:
            raise RuntimeError(
                f"{name}: `supervise` needs a mesh that can have new processes, and "
                f"{procs.name!r} has been shrunk. Bring up another one"
            )

    def _check_usable(self, procs: Part) -> None:
        state = procs.state
        state.check_not_stopped()
        dead = self.proc.dead
        if lost := [r for r in procs.ranks if r in state.lost or state.processes[r] in dead]:
            living = [rank for rank in procs.ranks if rank not in lost]
            ended = dead.get(state.processes[lost[0]])
            for_good = ended is not None and ended.for_good
            why = f": rank {lost[0]} {ended.plainly()}" if ended is not None and for_good else ""
            raise SupervisionError(
                f"error spawning actor mesh: ranks {lost} of {state.name!r} are lost{why}."
                f"{_way_on(living, for_good)}",
                ranks=tuple(lost),
            )

    def _construct(
        self,
        state: ActorsState,
        spec: SpawnActor,
        content: tuple[Any, ...],
        kept: Payload | None,
        ranks: list[int],
    ) -> Future[Any]:
        payload = kept or self.proc.encode(content, [state.processes[rank] for rank in ranks])
        return self._construct_with(state, spec, payload, ranks, again=True)

    def _construct_with(
        self,
        state: ActorsState,
        spec: SpawnActor,
        payload: Payload,
        ranks: Sequence[int],
        *,
        again: bool = False,
    ) -> Future[Any]:
        processes = [state.processes[rank] for rank in ranks]
        target = Target(state, "__init__", processes, ranks, state.shape)
        call = SpawnCall.telling(functools.partial(self._spawn_failed, state, again))
        call._begin(self.proc, target, context.current_tag())
        call.expect()
        if list(ranks) == list(range(len(ranks))):
            self.proc.control_all(processes, spec, payload=payload, reply=call.port)
        else:
            for index, (rank, process) in enumerate(zip(ranks, processes, strict=True)):
                mine = spec._replace(rank=rank - index)
                self.proc.control(process, mine, payload=payload, reply=call.port, rank=index)
        self.proc.look_for_dead(call)
        return call

    def _spawn_failed(
        self, state: ActorsState, again: bool, failed: list[int], errors: list[Message]
    ) -> None:
        # Some constructors raised: those actors never lived; the others are torn down. In a heal
        # (`again`) the others live on, and whoever heals is told.
        summary = remote_errors.summary(errors[0].payload)
        is_restart = again and state.restarts is not None
        if summary is None and not is_restart:
            return  # its process did not boot: told by that mesh, and to whoever calls
        event = f"the constructor of {state.cls.__name__} raised {summary}"
        if summary is None:
            event = "the bootstrap function of its process raised"
        failure = MeshFailure(state, failed, event)
        if not again:
            state.restart_no_more()
        told = self.supervision.failed(failure)
        if told is None or (again and not is_restart) or state.ended is not None:
            return  # stopped before it was there: no failure
        if not again:
            every = range(len(state.processes))
            self.tell_to_stop(state, every, "another rank's constructor failed")

        def report() -> None:
            what, size = f"{state.name}.__init__", len(state.processes)
            payload = errors[0].payload
            told.caused_by(remote_errors.unpack(payload, what=what, rank=failed[0], size=size))
            self.supervision.raise_to(state.owner_port, told, seen=False)

        threading.Thread(target=report, name="monarch-failure", daemon=True).start()

    def stop_actors(self, state: ActorsState, reason: str) -> Future[None]:
        return self._stop_once(state, reason, functools.partial(self._end_actors, state))

    def _end_actors(self, state: ActorsState, then: Callable[[], None]) -> None:
        self.supervision.disown(state)
        if state.procs is not None and state in state.procs.actors:
            state.procs.actors.remove(state)
        self.tell_to_stop(state, range(len(state.processes)), state.ended or "", then)

    def tell_to_stop(
        self,
        state: ActorsState,
        ranks: Iterable[int],
        reason: str,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Tell actors to end, where their processes live, and call back when they have."""
        processes = [state.processes[rank] for rank in ranks]
        living = [process for process in processes if process not in self.proc.dead]
        Question(self.proc, dict.fromkeys(living, StopActor(state.number, reason)), then)

    # processes

    def new_name(self) -> str:
        return f"mesh{next(self._names)}"

    def spawn_procs(
        self, state: ProcsState, request: Callable[[list[int], int], None], ranks: list[int]
    ) -> None:
        """Start these processes; `request(ranks, port)` asks for some, which say so at the port."""
        self.supervision.own(state)
        state.start(functools.partial(self._start, state, request), ranks)

    def when_booted(self, state: ProcsState) -> Future[bool]:
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
        self, state: ProcsState, request: Callable[[list[int], int], None], ranks: list[int]
    ) -> Future[bool]:
        future = make(BootCall)
        future.begin(self.proc, state, ranks)
        self.proc.watching(state.processes[rank] for rank in ranks)
        request(ranks, future.port)
        return future

    def stop_procs(self, state: ProcsState, reason: str) -> Future[None]:
        state.check_driven()
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

        def gone() -> None:
            # also what no agent knows: a kernel was fenced as it had it spawned
            never = [each for each in state.processes if each not in self.proc.dead]
            self.supervision.exited(*(Exit(each, reason=state.ended, asked=True) for each in never))
            self.supervision.disown(state)
            then()

        self.end_processes(state, range(len(state.processes)), gone)

    def end_processes(
        self, state: ProcsState, ranks: Iterable[int], then: Callable[[], None]
    ) -> None:
        """End these ranks in order, and call back."""
        by_agent: dict[int, list[int]] = {}
        for rank in ranks:
            by_agent.setdefault(state.agents[rank], []).append(state.processes[rank])
        limit_s = self.proc.config.exit_s
        stops = {agent: Stop(processes, limit_s) for agent, processes in by_agent.items()}
        Question(self.proc, stops, then)

    def _stop_once(
        self, state: MeshState, reason: str, stop: Callable[[Callable[[], None]], None]
    ) -> Future[None]:
        stopped: Future[None] = make(Future)
        with self._stopping:
            if state.stopping is not None:
                return state.stopping
            state.begin_stopping(stopped)
        if state.ended is not None:
            stopped._set_result(None)
        else:
            state.end(reason)
            stop(lambda: stopped._set_result(None))
        return stopped

    def watch(self, token: HandleToken, state: ProcsState) -> weakref.ref[HandleToken]:
        """Have a mesh stopped when its last handle is gone."""
        known = weakref.ref(state)  # which holds the reference that is returned

        def stop() -> None:
            found = known()
            if found is not None and found.is_garbage and not self.proc.closed:
                self.stop_procs(found, "nobody refers to it any more").add_done_callback(_ignore)

        return self._garbage.watch(token, stop)

    def close(self) -> None:
        """Stop nothing any more."""
        self._garbage.close()

    def stop_owned_by(self, port: int) -> list[Future[None]]:
        owned = self.supervision.owned_by(port)
        stops = [self._stop_state(state, "its owner has ended") for state in owned]
        for stop in stops:
            stop.add_done_callback(_ignore)
        return stops

    def _stop_state(self, state: MeshState, reason: str) -> Future[None]:
        if isinstance(state, ProcsState):
            return self.stop_procs(state, reason)
        if isinstance(state, ActorsState):
            return self.stop_actors(state, reason)
        return completed(None)

    def set_logging(self, procs: Part, *, window_s: float | None, level: int) -> None:
        processes = procs.processes
        option = AggregateOutput(processes, procs.state.name, window_s)
        self.proc.control(self.proc.controller, option)
        self.proc.control_all(processes, SetLogLevel(level))


def _spec(state: ActorsState, instance: Instance, process: int) -> SpawnActor:
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
        restarts=state.restarts is not None,
    )


def _ignore(_: object) -> None:
    """Nobody waits for it."""


class BootCall(Future[bool], Waiter):
    __slots__ = ("_mesh", "_missing", "_proc", "port")

    def begin(self, proc: Proc, state: ProcsState, ranks: list[int]) -> None:
        self._proc = proc
        self._mesh = state
        self._missing = {state.processes[rank]: rank for rank in ranks}
        self.port = proc.new_port()
        if not self._missing:
            self._set_result(True)
            return
        proc.waiting[self.port] = self

    def deliver(self, message: Message) -> None:
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
        raise remote_errors.unpack(
            payload, what=remote_errors.SETUP, rank=rank, size=len(self._mesh.processes)
        )

    def _end(self) -> None:
        self._proc.waiting.pop(self.port, None)

    def wait_for_people(self) -> Wait:
        mesh = self._mesh
        missing = tuple(sorted(self._missing.copy().values()))
        return Wait("start", mesh.name, missing, len(mesh.processes), None)

    def awaited(self) -> list[int]:
        return list(self._missing)

    def waits_for(self, process: int) -> bool:
        return process in self._missing

    def abandon(self, ended: Exit) -> None:
        for process in list(self._missing)[:1]:
            self.lost(Exit(process, reason=ended.reason))

    def lost(self, ended: Exit) -> None:
        rank = self._missing.pop(ended.process, None)
        if rank is None:  # it has answered meanwhile
            return
        self._end()
        failure = MeshFailure(self._mesh, [rank], ended.describe(), ended=ended)
        self._set_exception(failure.error(f"{self._mesh.name}.start"))


class SpawnCall(GatherCall):
    """Waits for every constructor and gathers all errors: one failure tells of all ranks."""

    __slots__ = ("_errors", "_gone", "on_failure")
    can_be_cancelled = False  # an interrupted wait undoes no spawn; stop the mesh to end it
    on_failure: Callable[[list[int], list[Message]], None]

    @classmethod
    def telling(cls, on_failure: Callable[[list[int], list[Message]], None]) -> SpawnCall:
        """Make one that calls this with the ranks that failed and what they said."""
        call = make(cls)
        call.on_failure = on_failure
        return call

    def expect(self) -> None:
        super().expect()
        self._errors: list[Message] = []
        self._gone: dict[int, Exit] = {}

    def deliver(self, message: Message) -> None:
        if message.rank >= len(self._answers) or self._answers[message.rank] is not None:
            return
        self._answers[message.rank] = message
        if message.kind == ERROR:
            self._errors.append(message)
        self._count_down(1)

    def lost(self, ended: Exit) -> None:
        for index, process in enumerate(self.target.processes):
            is_waited_for = self._answers[index] is None and index not in self._gone
            if process == ended.process and is_waited_for:
                self._gone[index] = ended
                self._count_down(1)

    def _count_down(self, answers: int) -> None:
        self._missing -= answers
        if self._missing or not self._close():
            return
        if self._errors:
            self.on_failure(self._failed(), self._errors)
            self._arrive(self._errors[0])
        elif self._gone:
            self._arrive(next(iter(self._gone.values())))
        else:
            self._set_result(None)

    def _failed(self) -> list[int]:
        return sorted(self.target.ranks[each.rank] for each in self._errors)

    def _error_of(self, message: Message | Exit) -> BaseException:
        error = super()._error_of(message)
        if isinstance(error, ActorError) and len(self._errors) > 1:
            error.message += f" The constructor raised on ranks {self._failed()}."
        return error


def _way_on(living: Sequence[int], for_good: bool) -> str:
    ways = [f"Spawn on a slice of the living ranks {living}."] if living else []
    if not for_good:
        ways.append("Bring the lost back: mesh.heal(), or %mesh heal.")
    return "".join(f" {way}" for way in ways)
