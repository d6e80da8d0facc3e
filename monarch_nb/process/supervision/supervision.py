"""What this process owns, and what happens when some of it dies.

Rules: a failure is reported once, to the owner of what failed; the owner handles it
(`__supervise__`) or fails itself and its own owner is told, up to the root. An exit of what is
being stopped is no failure. Runs in the inbox thread; user code runs elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, final

from monarch_nb.core.errors.folding import rank_words
from monarch_nb.core.shape.extent import Point, Shape
from monarch_nb.core.wire import pickling
from monarch_nb.core.wire.frames import HOST_SHIFT, ROOT_PORT, Message
from monarch_nb.core.wire.messages.actors import ActorFailed
from monarch_nb.core.wire.messages.agents import Exited, Heard, Silent, Watch
from monarch_nb.errors import SupervisionError
from monarch_nb.process import current, remote_errors
from monarch_nb.process.exit import Exit
from monarch_nb.process.futures.future import Future, make
from monarch_nb.process.process import Proc

if TYPE_CHECKING:
    from monarch_nb.process.instance import Instance

MAX_DESCRIBED: Final = 8  # ranks of a failure that are told with their coordinates


@final
class MeshFailure:
    """Some ranks of a mesh have failed. Given to `__supervise__` and to `unhandled_fault_hook`.

    Attributes: `mesh` (as this process knows it), `mesh_name`, `crashed_ranks` (in that mesh),
    `event` (what happened), `cause` (the exception, where there was one).
    """

    def __init__(
        self,
        state: MeshState,
        crashed_ranks: Sequence[int],
        event: str,
        cause: BaseException | None = None,
        ended: Exit | None = None,
    ) -> None:
        self._state = state
        self.mesh_name = state.name
        self.crashed_ranks = list(crashed_ranks)
        self.event = event
        self.cause = cause
        self.ended = ended

    @property
    def state(self) -> MeshState:
        """What this process knows of the mesh."""
        return self._state

    def of(self, ranks: Sequence[int]) -> MeshFailure:
        """Return the same of these ranks only."""
        return MeshFailure(self._state, ranks, self.event, self.cause, self.ended)

    def add(self, what: str) -> None:
        """Note what else is to be said of it."""
        self.event = f"{self.event}; {what}"

    def caused_by(self, error: BaseException) -> None:
        """Note the exception, which is unpickled after the failure is known."""
        self.cause = error

    @property
    def mesh(self) -> Any:
        """The mesh that failed."""
        return self._state.view()

    def report(self) -> str:
        """Return what happened, in sentences for a person."""
        crashed = self.crashed_ranks
        each = ", ".join(map(self._state.describe_rank, crashed[:MAX_DESCRIBED]))
        ranks = each if len(crashed) <= MAX_DESCRIBED else rank_words(crashed)
        last = "" if self.ended is None else f"{_crashed(self.ended)}{self.ended.printed()}"
        return f"failure on mesh {self.mesh_name!r} with event: {ranks}: {self.event}{last}"

    def __str__(self) -> str:
        return (
            f"MeshFailure(mesh_name={self.mesh_name!r}, crashed_ranks={self.crashed_ranks}, "
            f"event={self.event!r})"
        )

    __repr__ = __str__

    def __reduce__(self) -> tuple[object, ...]:
        cause = None if self.cause is None else remote_errors.pack(remote_errors.RAW, self.cause)
        return _restore_failure, (self.mesh, self.crashed_ranks, self.event, cause, self.ended)

    def error(self, what: str | None = None) -> SupervisionError:
        """Return the exception for a call that met this failure."""
        call = f"Endpoint call {what}() failed, " if what else ""
        ranks = tuple(self.crashed_ranks)
        ended = self.ended
        heals = ended is None or not ended.for_good
        text = f"{call}{self.report()}{self._state.advice(ranks, heals=heals)}"
        error = ended.error(text, ranks=ranks) if ended else SupervisionError(text, ranks=ranks)
        error.failure = self
        error.endpoint = f"{what}()" if what else None
        error.__cause__ = self.cause
        return error


def _restore_failure(
    mesh: Any, crashed_ranks: list[int], event: str, cause: bytes | None, ended: Exit | None
) -> MeshFailure:
    error = None if cause is None else remote_errors.unpack(cause, what="", rank=None, size=1)
    return MeshFailure(mesh._state, crashed_ranks, event, error, ended)


_SAID_KEPT = 256


def _crashed(ended: Exit) -> str:
    if (crash := ended.crash()) is None:
        return ""
    frames = ended.crashed_at()
    lines = [f'\n  File "{one.file}", line {one.line}, in {one.function}' for one in frames]
    return f"\n{crash.what}, most recent call last:{''.join(lines)}" if lines else ""


@dataclass(eq=False, repr=False, kw_only=True)
class MeshState:
    """What all handles of one mesh in this process share. Forward only, but for `heal`.

    `wrap(state)` makes a handle of the whole mesh. `internal`: the runtime's own; whoever uses it
    raises what happens, nobody else is told. `restarted_by`: the process that brings back by itself
    what the mesh loses; None: nobody does.
    """

    kind: ClassVar[str] = "mesh"
    number: int
    name: str
    owner_port: int = 0
    shape: Shape
    processes: list[int]
    owned: bool = False
    wrap: Callable[[Any], Any]
    internal: bool = False
    restarted_by: int | None = None
    lost: dict[int, MeshFailure] = field(default_factory=dict, init=False)
    ended: str | None = field(default=None, init=False)
    stopping: Future[None] | None = field(default=None, init=False)
    trouble: bool = field(default=False, init=False)
    version: int = field(default=0, init=False)
    kept: Callable[[], object] | None = field(default=None, init=False)
    """Returns all that another controller needs to own it; None: it cannot be kept."""
    _before_use: Callable[[], object] | None = field(default=None, init=False)
    _only_seen: str | None = field(default=None, init=False)
    _kept_back: MeshFailure | None = field(default=None, init=False)
    _said: dict[object, SupervisionError] = field(default_factory=dict, init=False)  # see `loss`
    _returning: dict[int, Future[None]] = field(default_factory=dict, init=False)
    _given_up: dict[int, str] = field(default_factory=dict, init=False)  # by rank: why

    def view(self) -> Any:
        return self.wrap(self)

    def follow(self, processes: Sequence[int]) -> None:
        """Have these processes, which the owner of the mesh has told: of the ranks that are known
        here, as it may have more or fewer hosts since."""
        known = processes[: len(self.processes)]
        self.processes[: len(known)] = known

    def make_internal(self) -> None:
        self.internal = True

    def begin_stopping(self, stopped: Future[None]) -> None:
        self.stopping = stopped

    def end(self, reason: str) -> None:
        if self.ended is None:
            self.ended = reason
            self.trouble = True
            self._return(list(self._returning))

    def lose(self, failure: MeshFailure) -> None:
        for rank in failure.crashed_ranks:
            self.lost.setdefault(rank, failure)
        self.trouble = True

    def lose_for_good(self, failure: MeshFailure) -> None:
        """Note this failure of ranks, in the place of a first one that was to be mended."""
        self.lost.update(dict.fromkeys(failure.crashed_ranks, failure))
        self._return(failure.crashed_ranks)

    def keep_back(self, failure: MeshFailure) -> None:
        """Note what the owner is told when something is sent there, and not before."""
        self._kept_back = failure

    def kept_back(self) -> MeshFailure | None:
        """Return that, once."""
        found, self._kept_back = self._kept_back, None
        return found

    def restore(self, ranks: Iterable[int]) -> None:
        self._kept_back = None
        back = list(ranks)
        for rank in back:
            self.lost.pop(rank, None)
            self._given_up.pop(rank, None)
        self.version += 1
        self._look_for_trouble()
        self._return(back)

    def await_return(self, ranks: Iterable[int]) -> None:
        """Have whoever uses these lost ranks wait until they are restored, or given up."""
        for rank in ranks:
            self._returning.setdefault(rank, make(Future))

    @property
    def returning(self) -> frozenset[int]:
        """The lost ranks that are being brought back."""
        return frozenset(self._returning)

    def give_up(self, ranks: Iterable[int], why: str) -> None:
        """Note that these are brought back no more; `why` is told to those who use them."""
        gone = list(ranks)
        self._given_up.update(dict.fromkeys(gone, why))
        for failure in {id(each): each for rank in gone if (each := self.lost.get(rank))}.values():
            failure.add(why)
        self._return(gone)

    def _return(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            if (returned := self._returning.pop(rank, None)) is not None:
                returned._set_result(None)

    def wait_for(self, ranks: Iterable[int]) -> None:
        """Wait until none of these is being brought back. The inbox thread, which brings the news
        of it, does not wait."""
        if not self._returning or current.proc().links.is_receiving():
            return
        wanted = list(ranks)
        while self._returning:
            found = [each for rank in wanted if (each := self._returning.get(rank)) is not None]
            if not found:
                return
            found[0].get()

    def is_restarted(self, rank: int) -> bool:
        """Tell whether it comes back by itself, or has, when it is lost."""
        is_lost = rank in self.lost and rank not in self._returning
        is_over = rank in self._given_up or self.ended is not None
        return self.restarted_by is not None and not is_lost and not is_over

    def kept_by(self, kept: Callable[[], object]) -> None:
        """Note what tells all that another controller needs to own it."""
        self.kept = kept

    def only_see(self, why: str) -> None:
        """Refuse every use of the mesh, with this for people: another process drives it."""
        self._only_seen = why
        self.make_internal()
        self.trouble = True

    @property
    def only_seen(self) -> str | None:
        """Why every use is refused, for people; None: another process does not drive the mesh."""
        return self._only_seen

    def check_driven(self) -> None:
        """Raise `SupervisionError` where another process drives the mesh."""
        if self._only_seen is not None:
            raise SupervisionError(self._only_seen)

    def before_use(self, action: Callable[[], object]) -> None:
        """Have this done before the mesh is used the next time, by whoever uses it."""
        self._before_use = action
        self.trouble = True

    def _look_for_trouble(self) -> None:
        held_up = self.lost or self._before_use or self._only_seen
        self.trouble = bool(held_up) or self.ended is not None

    def check(self, ranks: Sequence[int], what: str) -> None:
        """Do what is to be done before the next use; raise `SupervisionError` if a call to these
        ranks cannot be answered. Waits for those that are being brought back."""
        self.check_driven()
        self.wait_for(ranks)
        if (action := self._before_use) is not None:
            self._before_use = None
            self._look_for_trouble()
            action()
        if self.ended is not None:
            raise SupervisionError(
                f"Endpoint call {what}() failed, {self.kind} mesh {self.name!r} has status "
                f"stopped: {self.ended}"
            )
        hit = [rank for rank in ranks if rank in self.lost]
        if hit:
            raise self.lost[hit[0]].error(what)

    def loss(self, ended: Exit, ranks: Sequence[int], what: str) -> SupervisionError:
        """Return the error for a call in flight to a process that has just died."""
        # with 100 000 calls in flight the same is said 100 000 times: the text is made once
        key = (ended.process, tuple(ranks), what, len(self.lost), self.is_restarted(ranks[0]))
        said = self._said.get(key)
        if said is None:
            failure = MeshFailure(self, ranks, ended.describe(), ended=ended)
            if (why := self._given_up.get(ranks[0])) is not None:
                failure.add(why)
            if len(self._said) >= _SAID_KEPT:
                self._said.clear()
            said = self._said[key] = failure.error(what)
        error = type(said)(said.args[0])
        error.__dict__.update({**said.__dict__, "values": {}})
        return error

    def describe_rank(self, rank: int) -> str:
        return f"rank {rank} {Point(rank, self.shape.extent)}"

    def advice(self, ranks: Sequence[int], *, heals: bool) -> str:
        if all(map(self.is_restarted, ranks)):
            return f"\n{remote_errors.RESTARTED}"
        others = len(self.processes) - len(self.lost.keys() | set(ranks))
        if not self.owned:
            return ""
        living = f" The other {others} of {len(self.processes)} ranks are usable." if others else ""
        back = " Bring the lost back: mesh.heal(), or %mesh heal." if heals else ""
        return f"\n{living}{back}".replace("\n ", "\n").rstrip()


class OwningActor(Protocol):
    """An actor of this process, as an owner of meshes."""

    @property
    def instance(self) -> Instance: ...
    def supervise(self, failure: MeshFailure) -> None: ...
    def request_stop(self, message: None, reason: str) -> None: ...


class Supervision:
    """The meshes that this process owns, and the failures that concern them."""

    def __init__(
        self,
        proc: Proc,
        actors: Mapping[int, OwningActor],
        on_root_failure: Callable[[MeshFailure, bool], None],
    ) -> None:
        self.proc = proc
        self._actors = actors
        self._on_root_failure = on_root_failure
        self.states: dict[int, MeshState] = {}
        self.silent: dict[int, float] = {}
        self.on_pulse: list[Callable[[], object]] = []
        """Each is called when a process has become silent, or is heard again."""
        self.on_exit: list[Callable[[Exit], None]] = []
        self.on_owned: list[Callable[[MeshState], None]] = []
        """Each is called with a mesh that this process owns from now on, in any thread."""
        self.on_disowned: list[Callable[[MeshState], None]] = []
        """Each is called with a mesh that is gone, in any thread."""
        self.on_heal: list[Callable[[MeshState, Sequence[int]], None]] = []
        """Each is called with a mesh of processes and those of its ranks that have new ones, before
        these run code of the user's, in the thread that heals."""
        self.on_losses: list[Callable[[list[MeshFailure]], list[MeshFailure]]] = []
        """Each is called with what meshes of ours have lost, while `proc.marking` is held; it
        returns that of which owners are to be told: the rest is brought back."""
        self.on_told: list[Callable[[], None]] = []
        """Each is called when everybody has been told of a loss: what is lost may be replaced."""
        self.on_dead: list[Callable[[Mapping[int, Exit]], None]] = []
        """Each is called with processes that are gone, before anybody who waits for them is told,
        while `proc.marking` is held."""
        self._lock = threading.Lock()

    def own(self, state: MeshState) -> None:
        with self._lock:
            self.states[state.number] = state
        for listener in self.on_owned:
            listener(state)

    def disown(self, state: MeshState) -> None:
        with self._lock:
            gone = self.states.pop(state.number, None)
        if gone is not None:
            for listener in self.on_disowned:
                listener(gone)

    def owned_by(self, port: int) -> list[MeshState]:
        with self._lock:
            states = list(self.states.values())
        return [each for each in reversed(states) if each.owner_port == port]

    def processes_on(self, host: int) -> set[int]:
        """Return the processes of a host of which this one owns something."""
        with self._lock:
            states = list(self.states.values())
        return {
            process
            for state in states
            for process in state.processes
            if process >> HOST_SHIFT == host
        }

    def ask_how_they_ended(self, gone: Mapping[int, Sequence[int]]) -> None:
        """Learn how processes have ended, by their agents, which tell it; what is lost with its
        agent is lost as that."""
        for agent, processes in gone.items():
            if (lost := self.proc.dead.get(agent)) is not None:
                self.exited(*(lost.also_of(each) for each in processes))
            else:
                self.proc.control(agent, Watch(list(processes)))

    def on_exited(self, exited: Exited, _: Message) -> None:
        self.exited(Exit.of(exited))

    def exited(self, *ended: Exit) -> None:
        """Processes are gone: end every wait for them, then tell the owners of what lived there.

        What is lost together (a host) is given together, and told as one failure.
        """
        with self.proc.marking:
            new = {each.process: each for each in ended if each.process not in self.proc.dead}
            for process, each in new.items():
                self.silent.pop(process, None)
                self.proc.mark_dead(each)
            for listen in self.on_dead:
                listen(new)
            failures = self._failures_of(new)  # who is woken next finds the mesh as it is
            waits = self.proc.waiters_of(new.values())
        self.proc.tell(waits)
        told = {getattr(getattr(waiter, "target", None), "state", None) for waiter, _ in waits}
        for process, each in new.items():
            self._stop_owned_by(process)
            for listener in self.on_exit:
                listener(each)
        for owner_port, (failure, states) in failures.items():
            self.raise_to(owner_port, failure, seen=not told.isdisjoint(states))
        self._is_told()

    def _is_told(self) -> None:
        for listener in self.on_told:
            listener()

    def controller_left(self, ended: Exit) -> None:
        """Go on without the controller: waits for it end, what it owns stays. What is owned by an
        actor that lived there ends with that."""
        with self.proc.marking:
            if ended.process in self.proc.dead:
                return
            self.proc.mark_dead(ended)
            waits = self.proc.waiters_of([ended])
        self.proc.tell(waits)
        for actor in list(self._actors.values()):
            process, port = actor.instance.owner
            if process == ended.process and port != ROOT_PORT:
                actor.request_stop(None, "its owner's process has ended")
        for listener in self.on_exit:
            listener(ended)

    def _stop_owned_by(self, process: int) -> None:
        for actor in list(self._actors.values()):
            if actor.instance.owner[0] == process:
                actor.request_stop(None, "its owner's process has ended")

    def _failures_of(
        self, ended: dict[int, Exit]
    ) -> dict[int, tuple[MeshFailure, list[MeshState]]]:
        """One failure per owner, however many of its meshes lived there; and all those meshes.

        A process that somebody else has stopped takes its actors with it, but that is no failure,
        before their owner sends something there.
        """
        losses: list[MeshFailure] = []
        with self._lock:
            states = list(self.states.values())
        for state in states:
            ranks = [rank for rank, process in enumerate(state.processes) if process in ended]
            if not ranks or state.ended is not None:
                continue
            first = ended[state.processes[ranks[0]]]
            failure = MeshFailure(state, ranks, first.describe(), ended=first)
            state.lose(failure)
            if state.internal:
                continue
            if first.asked:
                if state.owner_port != ROOT_PORT:
                    state.keep_back(failure)
                continue
            losses.append(failure)
        found: dict[int, tuple[MeshFailure, list[MeshState]]] = {}
        for failure in self._to_be_told(losses):
            state = failure.state
            known, others = found.get(state.owner_port, (failure, []))
            if known._state.kind != "actor":
                known = failure
            found[state.owner_port] = known, [*others, state]
        return found

    def _to_be_told(self, losses: list[MeshFailure]) -> list[MeshFailure]:
        for take in self.on_losses:
            losses = take(losses)
        return losses

    def failed(self, failure: MeshFailure) -> MeshFailure | None:
        """Note a failure; return what its owner is to be told, None where all is brought back."""
        with self.proc.marking:
            failure.state.lose(failure)
            told = next(iter(self._to_be_told([failure])), None)
        self._is_told()
        return told

    def on_actor_failed(self, failed: ActorFailed, message: Message) -> None:
        state = self.states.get(failed.port)
        if state is None or state.ended is not None or message.rank in state.lost:
            return
        failure = self.failed(MeshFailure(state, [message.rank], failed.text))
        if failure is None:
            return
        if message.buffers:
            payload = bytes(message.buffers[-1])
            # user data is unpickled by a thread that may, not by the inbox thread
            threading.Thread(
                target=self._raise_with_cause,
                args=(failure, payload),
                name="monarch-failure",
                daemon=True,
            ).start()
        else:
            self.raise_to(state.owner_port, failure, seen=False)

    def _raise_with_cause(self, failure: MeshFailure, payload: bytes) -> None:
        kind, _, record, original = pickling.loads(payload)
        if kind == remote_errors.LOST and record is not None:
            failure.caused_by(remote_errors.revive(original, record))
        self.raise_to(failure._state.owner_port, failure, seen=False)

    def send_failed(self, state: MeshState) -> None:
        """Tell the owner of what is lost that somebody here has sent to it, if it was not told."""
        if (failure := state.kept_back()) is not None:
            self.raise_to(state.owner_port, failure, seen=True)

    def raise_to(self, owner_port: int, failure: MeshFailure, *, seen: bool) -> None:
        """Tell the owner. `seen`: a call of its own has raised this failure already."""
        owner = self._actors.get(owner_port)
        if owner is not None:
            owner.supervise(failure)
        elif owner_port == ROOT_PORT:
            self._on_root_failure(failure, seen)

    def on_silent(self, silent: Silent, _: Message) -> None:
        self.silent[silent.proc] = silent.since_s
        self._pulse_changed()

    def on_heard(self, heard: Heard, _: Message) -> None:
        self.silent.pop(heard.proc, None)
        self._pulse_changed()

    def note_pulse(self, processes: Iterable[int], silent_s: float | None) -> None:
        """Note for how long these have been silent together; None: they are heard again."""
        for process in processes:
            if silent_s is None:
                self.silent.pop(process, None)
            else:
                self.silent[process] = silent_s
        self._pulse_changed()

    def _pulse_changed(self) -> None:
        for listener in self.on_pulse:
            listener()
