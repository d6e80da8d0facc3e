"""A `Driver` runs one actor: it owns the actor's thread, its queue and its end.

Rules: one message at a time, in the order of arrival, awaits included; the state moves forward
only; a message that reaches an actor which has ended is answered, never dropped. What differs
between actors on a plain thread and on an event loop is in `sync_driver.py` and `async_driver.py`.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from monarch_nb.actors.definition import RETURN_HOOK, endpoints_of, has_hook
from monarch_nb.actors.ports import Port
from monarch_nb.core.shape.extent import Extent, Point
from monarch_nb.core.wire.frames import ERROR, REPLY, Message
from monarch_nb.core.wire.messages.actors import SpawnActor
from monarch_nb.core.wire.messages.codec import Done
from monarch_nb.process import remote_errors
from monarch_nb.process.current import end_fork
from monarch_nb.process.instance import CallContext, Instance, here
from monarch_nb.process.interrupts import Interrupts, Key

if TYPE_CHECKING:
    from monarch_nb.actors.post_mortem import LastFailures
    from monarch_nb.actors.undeliverable import UndeliverableMessageEnvelope
    from monarch_nb.process.futures.future import Future
    from monarch_nb.process.payloads import Payload
    from monarch_nb.process.process import Proc
    from monarch_nb.process.supervision.supervision import MeshFailure

_INTERRUPTS = (KeyboardInterrupt, asyncio.CancelledError)
_SURVIVED = (Exception, SystemExit, *_INTERRUPTS)  # the caller is told and the actor lives on


class ActorEnded(Exception):
    """Why an actor is not there any more; `text` completes "Endpoint call x() failed, ...", and
    `then` is told to callers beside it."""

    def __init__(
        self,
        text: str,
        cause: BaseException | None = None,
        kind: str = remote_errors.LOST,
        record: object = None,
        then: str = "",
    ) -> None:
        super().__init__(text)
        self._then = then
        self.text = text
        self.cause = cause
        self.kind = kind
        self._record = record  # of the cause, where it has been made
        self._payload: bytes | None = None

    def sealed(self) -> bytes:
        if self._payload is None:
            said = f"{self.text}{self._then}"
            self._payload = remote_errors.pack(self.kind, self.cause, said, self._record)
        return self._payload

    def forget_cause(self) -> None:
        """Let go of the frames of the cause, and the actor in them; answers go on."""
        self.sealed()
        self.cause = None


class State(enum.IntEnum):
    STARTING = 0
    RUNNING = 1
    ENDED = 2


class Board(Protocol):
    """Where a rank writes what it does, for everyone to see without asking: user code begins and
    ends (`failed`: with an exception); a call ends while others of its actor go on (`count`); the
    main thread has a turn, which calls may interrupt; a message comes meanwhile."""

    since_ns: int
    """When user code began to run; 0: none does."""

    def busy(self, what: str) -> None: ...
    def idle(self, failed: bool = False) -> None: ...
    def count(self, failed: bool) -> None: ...
    def turn(self, what: str) -> None: ...
    def turned(self, failed: bool) -> None: ...
    def arrived(self, waiting: int) -> None: ...


class ActorHost(Protocol):
    """The services that a process offers to the drivers of its actors."""

    @property
    def proc(self) -> Proc: ...
    @property
    def board(self) -> Board | None: ...
    @property
    def queues(self) -> list[Callable[[], int]]: ...
    @property
    def flush_output(self) -> Callable[[], None] | None: ...
    @property
    def interrupt_main(self) -> Callable[[], None]: ...
    @property
    def failed(self) -> LastFailures: ...
    def boot_error(self) -> BaseException | None: ...
    def restore_mesh(self, reference: tuple[object, ...]) -> Any: ...
    def sealed(self, message: Message, value: object) -> Payload: ...
    def refuse(self, message: Message, ended: ActorEnded, address: str) -> None: ...
    def note_error(self, error: BaseException, what: str, tag: int, record: object) -> None: ...
    def mark_ended(self, driver: Driver, ended: ActorEnded) -> None: ...
    def tell_owner(self, owner: int, spec: SpawnActor, ended: ActorEnded) -> None: ...
    def stop_owned_by(self, port: int) -> list[Future[None]]: ...
    def log_exception(self, text: str) -> None: ...


class Driver:
    """What both kinds share: decoding, invoking, answering, ending."""

    waiting: Callable[[], int]
    """How much waits in its queue. Any thread."""
    thread: threading.Thread | None = None  # of its own

    on_main = False

    def __init__(
        self,
        hosting: ActorHost,
        spec: SpawnActor,
        request: Message,
        signal_main: Callable[[], None] | None = None,
    ) -> None:
        self.hosting = hosting
        self.proc = hosting.proc
        self.spec = spec
        self.state = State.STARTING
        self.ended: ActorEnded | None = None
        self.calls = self.failed = 0  # so far
        self.endpoint = ""  # that was called last
        self._stopped: ActorEnded | None = None  # asked for, and about to be
        self._over = threading.Event()  # ended, and `__cleanup__` has run
        self.interrupts = Interrupts(signal_main)
        self.instance = Instance(
            self,
            process=self.proc.id,
            port=spec.port,
            name=spec.name,
            class_name=spec.class_name,
            point=Point(spec.rank, Extent(spec.labels, spec.sizes)),
            creator=spec.creator,
            owner=spec.owner,
        )
        self.wants_returns = False
        self.comes_back = False  # it has failed, and its owner sends it again
        self._request: Message | None = request
        self._actor: Any = None
        self._procs: tuple[object, ...] = ()  # how the mesh that it was spawned on is restored
        self._methods: dict[str, tuple[Callable[..., object], bool, bool]] = {}
        self._stop_requests: list[Message] = []
        self._owned_stops: list[Future[None]] = []
        self._lock = threading.Lock()

    # the inbox thread

    def deliver(self, message: Message) -> None:
        raise NotImplementedError

    def urgent(self, action: Callable[[], object]) -> None:
        raise NotImplementedError

    @property
    def running(self) -> Key | None:
        return self.interrupts.running

    @property
    def current(self) -> str | None:
        return self.endpoint if self.running is not None else None

    @property
    def queue(self) -> int:
        raise NotImplementedError

    def interrupt(self, key: Key) -> None:
        self.interrupts.interrupt(key)

    def request_stop(self, message: Message | None, reason: str) -> None:
        """End after the endpoint that runs now; the queue is discarded."""
        with self._lock:
            if self.ended is None:
                if message is not None:
                    self._stop_requests.append(message)
                self.begin_stop(reason)
                return
        if message is not None:
            self.proc.answer(message, Done())

    def wait_until_over(self, limit_s: float) -> bool:
        return self._over.wait(limit_s)

    @property
    def has_failed(self) -> bool:
        """Tell whether it has ended without having been stopped."""
        return self.ended is not None and self.ended is not self._stopped

    def begin_stop(self, reason: str) -> None:
        self._stopped = ActorEnded(self.stopped_text(reason))
        self.urgent(functools.partial(self.end, self._stopped, tell=False))

    def supervise(self, failure: MeshFailure) -> None:
        raise NotImplementedError

    def returned(self, message: UndeliverableMessageEnvelope) -> None:
        raise NotImplementedError

    # the actor's thread

    def construct(self) -> None:
        """Make the actor. On failure it never lived: everything that was sent to it is answered."""
        request, self._request = self._request, None
        assert request is not None
        self.enter(self.spec.rank, self.spec.labels, self.spec.sizes, request.tag)
        if (unbooted := self.hosting.boot_error()) is not None:
            self._reply_error(request, remote_errors.UNBOOTED, unbooted)
            self.end(ActorEnded("", unbooted, remote_errors.UNBOOTED), tell=False)
            return
        try:
            cls, args, kwargs, self._procs = self.proc.decode_user_data(request)
            self.wants_returns = hasattr(cls, RETURN_HOOK)
            self._actor = cls(*args, **kwargs)
            self._bind_methods(cls)
        except BaseException as error:  # noqa: BLE001  user code; anything may come out
            if self.proc.links.forked:
                end_fork(error)
            record = self._note(error, "__init__", request.tag)
            self._reply_error(
                request, remote_errors.RAISED, remote_errors.said_plainly(error), record
            )
            why = f"its constructor raised {remote_errors.one_line(error)}"
            self.end(ActorEnded(self._failed_text(why), error), tell=False)
        else:
            if self.proc.links.forked:
                end_fork(None)
            self.state = State.RUNNING
            self.reply(request, self.seal(request, None))

    @functools.cached_property
    def _proc_mesh(self) -> object:
        return self.hosting.restore_mesh(self._procs)

    def proc_mesh(self) -> Any:
        return self._proc_mesh

    def enter(self, rank: int, labels: Sequence[str], sizes: Sequence[int], tag: int) -> None:
        here.set(CallContext(self.instance, labels, sizes, rank, tag))

    def _bind_methods(self, cls: type) -> None:
        for name, marked in endpoints_of(cls).items():
            bound = marked.method.__get__(self._actor, cls)
            self._methods[name] = (bound, marked.explicit_response_port, marked.concurrent)
        self._methods["initialized"] = (_initialized, False, False)

    def admit(self, message: Message) -> bool:
        """Tell whether this call is to run; one that is not has been answered."""
        if self.state != State.RUNNING:
            self.refuse(message)
            return False
        if not self.interrupts.begin((message.source, message.reply)):
            self._reply_error(message, remote_errors.CANCELLED, None)
            return False
        self.calls += 1
        return True

    def open(
        self, message: Message
    ) -> tuple[Callable[..., object], tuple[Any, ...], dict[str, Any], bool, bool]:
        """Decode a call and enter its context. Raises what the user's code raises meanwhile."""
        try:
            name, args, kwargs, labels, sizes, explicit = self.proc.decode(message)
        except BaseException:
            self.enter(message.rank, (), (), message.tag)  # else this would be of the last call
            raise
        message.let_go()  # whoever waits for the next call still has this one
        self.endpoint = name
        here.set(CallContext(self.instance, labels, sizes, message.rank, message.tag, name))
        method, has_port, concurrent = self._method(name, explicit)
        if has_port:
            args = (Port(message.source, message.reply, message.rank), *args)
        return method, args, kwargs, has_port, concurrent

    def _method(self, name: str, explicit: bool | None) -> tuple[Callable[..., object], bool, bool]:
        found = self._methods.get(name)
        if found is None and explicit is not None:
            method = getattr(self._actor, name)
            if self.spec.sync and inspect.iscoroutinefunction(method):
                raise TypeError(
                    f"{name} is an async def method and {self.spec.class_name} is a sync actor"
                )
            return method, explicit, False
        if found is None:
            raise AttributeError(f"{self.spec.class_name} has no endpoint {name!r}")
        return found

    def seal(self, message: Message, value: object) -> Payload | None:
        """Pickle the answer, if somebody waits for it. Runs user code, which may raise."""
        return self.hosting.sealed(message, value) if message.reply else None

    def reply(self, message: Message, sealed: Payload | None) -> None:
        if sealed is not None:
            self.proc.payloads.give_back()  # what the call was lent, so that the next can have it
            self._answer(message, REPLY, sealed)

    def call_raised(
        self, message: Message, error: BaseException, *, has_port: bool, interrupted: bool
    ) -> None:
        """Tell the caller what an endpoint has raised, or, where nobody waits, fail."""
        ended = self.ended or self._stopped
        kind = type(error)  # isinstance asks the error too, which may be hostile
        if ended is not None and issubclass(kind, _INTERRUPTS):
            self._answer_lost(message, ended)  # the end came first
        elif issubclass(kind, _INTERRUPTS) and interrupted:
            self._reply_error(message, remote_errors.INTERRUPTED, None)
        elif message.reply and not has_port and issubclass(kind, _SURVIVED):
            error = remote_errors.said_plainly(error)
            self._reply_error(message, remote_errors.RAISED, error, self._note_call(message, error))
        else:
            why = f"an endpoint raised {remote_errors.one_line(error)}"
            record = self._note_call(message, error)
            failed = self.failure(why, error, record)
            self._answer_lost(message, failed)
            self.end(failed, tell=True)

    def _note_call(self, message: Message, error: BaseException) -> object:
        caller = here.get()
        return self._note(error, "" if caller is None else caller.method, message.tag)

    def _note(self, error: BaseException, method: str, tag: int) -> object:
        record = remote_errors.record_of(error)
        if not issubclass(type(error), _INTERRUPTS):
            self.failed += 1
            what = f"{self.spec.name}.{method}" if method else self.spec.name
            self.hosting.note_error(error, what, tag, record)
        return record

    def refuse(self, message: Message) -> None:
        assert self.ended is not None
        self.hosting.refuse(message, self.ended, str(self.instance.actor_id))

    def end(self, ended: ActorEnded, *, tell: bool) -> None:
        """End the actor, clean-up included. In its thread."""
        raise NotImplementedError

    def finish(self, ended: ActorEnded, *, tell: bool) -> bool:
        """Free the port, answer the queue, tell owner and owned, once; False if that was done."""
        with self._lock:
            if self.ended is not None:
                return False
            self.ended = ended
            self.comes_back = tell and self.spec.restarts
            self.state = State.ENDED
        self.hosting.mark_ended(self, ended)
        self.refuse_backlog()
        if tell:
            self.hosting.tell_owner(self.instance.owner[0], self.spec, ended)
        self._owned_stops = self.hosting.stop_owned_by(self.spec.port)
        return True

    def not_handled(self, failure: MeshFailure, error: BaseException | None = None) -> None:
        """Fail because a mesh that it owns has failed, and no `__supervise__` takes that."""
        then = "" if error is None else f"; then __supervise__ raised {error!r}"
        self.end(self.failure(f"{failure.report()}{then}", error or failure.cause), tell=True)

    def hook(self, name: str) -> Callable[..., object] | None:
        """Return a hook of the user's, in its context; None where there is none or no actor."""
        if self.state == State.ENDED or self._actor is None:
            return None
        self.enter(self.spec.rank, self.spec.labels, self.spec.sizes, 0)
        return getattr(self._actor, name) if has_hook(type(self._actor), name) else None

    def return_hook_raised(
        self, message: UndeliverableMessageEnvelope, error: BaseException
    ) -> None:
        why = f"{message}; then {RETURN_HOOK} raised {error!r}"
        self.end(self.failure(why, error), tell=True)

    def cleanup_hook(self) -> Callable[[], object] | None:
        if self._actor is None or not has_hook(type(self._actor), "__cleanup__"):
            return None
        hook = self._actor.__cleanup__
        error = self.ended.cause if self.ended is not None else None
        return functools.partial(hook, error if isinstance(error, Exception) else None)

    def finished(self) -> None:
        """Answer those who asked for the stop, let the actor go. After `__cleanup__`."""
        self._actor = None
        self._methods = {}
        if self.ended is not None:
            self.ended.forget_cause()
        self._over.set()
        for message in self._stop_requests:
            self.proc.answer(message, Done())
        self._stop_requests = []

    def refuse_backlog(self) -> None:
        raise NotImplementedError

    def failure(
        self, why: str, cause: BaseException | None = None, record: object = None
    ) -> ActorEnded:
        """Say why it fails, after it was made."""
        then = f"\n{remote_errors.RESTARTED}" if self.spec.restarts else ""
        return ActorEnded(self._failed_text(why), cause, record=record, then=then)

    def _failed_text(self, why: str) -> str:
        return f"The actor {self.instance} and all its descendants have failed: {why}"

    def stopped_text(self, reason: str) -> str:
        return f"The actor {self.instance} has status stopped: {reason}"

    def _reply_error(
        self, message: Message, kind: str, error: BaseException | None, record: object = None
    ) -> None:
        if message.reply:
            payload = remote_errors.pack(kind, error, record=record)
            self._answer(message, ERROR, self.proc.encode_bytes(payload))

    def _answer_lost(self, message: Message, ended: ActorEnded) -> None:
        if message.reply:
            self._answer(message, ERROR, self.proc.encode_bytes(ended.sealed()))

    def _answer(self, message: Message, kind: int, payload: Payload) -> None:
        if not message.reply:
            return
        flush = self.hosting.flush_output
        if flush is not None:
            flush()  # what the endpoint printed is on its way before its result
        self.proc.send(
            message.source, kind, message.reply, payload, rank=message.rank, tag=message.tag
        )

    def stop_self(self, reason: str) -> None:
        self.request_stop(None, reason)

    def abort_self(self, reason: str) -> None:
        failed = self.failure(reason)
        self.urgent(lambda: self.end(failed, tell=True))


def is_failure(error: BaseException | None) -> bool:
    """Tell whether a call that ended so has failed: an interrupt is somebody's wish."""
    return error is not None and not issubclass(type(error), _INTERRUPTS)


def _initialized() -> None:
    """Called by handles that came by message, to know that the constructor has run."""
