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
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from monarch_nb.actors.definition import RETURN_HOOK, endpoints_of
from monarch_nb.actors.ports import Port
from monarch_nb.actors.tombstone import ActorEnded
from monarch_nb.core.shape.extent import Extent, Point
from monarch_nb.core.wire.frames import ERROR, REPLY, Message
from monarch_nb.core.wire.messages.actors import SpawnActor
from monarch_nb.core.wire.messages.codec import Done
from monarch_nb.meshes.proc_mesh import restore_procs
from monarch_nb.process import remote_errors
from monarch_nb.process.context import Here, Instance, here
from monarch_nb.process.current import end_fork
from monarch_nb.process.interrupts.interrupts import Interrupts, Key

if TYPE_CHECKING:
    from monarch_nb.actors.hosting import Hosting
    from monarch_nb.actors.undeliverable import UndeliverableMessageEnvelope
    from monarch_nb.process.futures.future import Future
    from monarch_nb.process.payloads import Parcel
    from monarch_nb.process.supervision.supervision import MeshFailure

_INTERRUPTS = (KeyboardInterrupt, asyncio.CancelledError)
_SURVIVED = (Exception, SystemExit, *_INTERRUPTS)  # the caller is told and the actor lives on


class State(enum.IntEnum):
    """Forward only."""

    STARTING = 0
    RUNNING = 1
    ENDED = 2


class Driver:
    """What both kinds share: decoding, invoking, answering, ending."""

    waiting: Callable[[], int]
    """How much waits in its queue. Any thread."""
    thread: threading.Thread | None = None  # of its own

    def __init__(self, hosting: Hosting, spec: SpawnActor, request: Message) -> None:
        self.hosting = hosting
        self.proc = hosting.proc
        self.spec = spec
        self.state = State.STARTING
        self.ended: ActorEnded | None = None
        self.calls = self.failed = 0  # so far
        self.endpoint = ""  # that was called last
        self._stopped: ActorEnded | None = None  # asked for, and about to be
        self._over = threading.Event()  # ended, and `__cleanup__` has run
        self.interrupts = Interrupts()
        self.instance = Instance(
            process=self.proc.id,
            port=spec.port,
            name=spec.name,
            class_name=spec.class_name,
            point=Point(spec.rank, Extent(spec.labels, spec.sizes)),
            creator=spec.creator,
            owner=spec.owner,
        )
        self.instance._stop = self._stop_self
        self.instance._abort = self._abort_self
        self._request: Message | None = request
        self._actor: Any = None
        self._methods: dict[str, tuple[Callable[..., Any], bool, bool]] = {}
        self._stop_requests: list[Message] = []
        self._owned_stops: list[Future[None]] = []
        self._lock = threading.Lock()

    # the inbox thread

    def deliver(self, message: Message) -> None:
        """Queue a call. Inbox thread; returns at once."""
        raise NotImplementedError

    def urgent(self, action: Callable[[], Any]) -> None:
        """Run `action` on the actor's thread before the backlog."""
        raise NotImplementedError

    @property
    def running(self) -> Key | None:
        """The call whose code runs."""
        return self.interrupts.running

    @property
    def current(self) -> str | None:
        """The endpoint that runs."""
        return self.endpoint if self.running is not None else None

    @property
    def queue(self) -> int:
        """How many calls wait; for an actor on the main thread with the cells that wait there."""
        raise NotImplementedError

    def interrupt(self, key: Key) -> None:
        """The caller of this call has gone away: stop it if it runs, drop it if it is queued."""
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
        """Wait until the actor has ended and its `__cleanup__` has run."""
        return self._over.wait(limit_s)

    def begin_stop(self, reason: str) -> None:
        """Arrange for the end on the actor's thread."""
        self._stopped = ActorEnded(self.stopped_text(reason))
        self.urgent(functools.partial(self.end, self._stopped, tell=False))

    def supervise(self, failure: MeshFailure) -> None:
        """A mesh that this actor owns has failed."""
        raise NotImplementedError

    def returned(self, message: UndeliverableMessageEnvelope) -> None:
        """A message of this actor's came back. Any thread."""
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
            cls, args, kwargs, procs = self.proc.decode_user_data(request)
            self.instance._proc_mesh = functools.cache(lambda: restore_procs(*procs))
            self.instance.wants_returns = hasattr(cls, RETURN_HOOK)
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

    def enter(self, rank: int, labels: Any, sizes: Any, tag: int) -> None:
        """Set the context that user code sees."""
        here.set(Here(self.instance, labels, sizes, rank, tag))

    def _bind_methods(self, cls: type) -> None:
        for name, marked in endpoints_of(cls).items():
            bound = marked.method.__get__(self._actor, cls)
            self._methods[name] = (bound, marked.explicit_response_port, marked.concurrent)
        self._methods["initialized"] = (_initialized, False, False)

    def admit(self, message: Message) -> bool:
        """Whether this call is to run; one that is not has been answered."""
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
    ) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], bool, bool]:
        """Decode a call and enter its context. Raises what the user's code raises meanwhile."""
        try:
            name, args, kwargs, labels, sizes, explicit = self.proc.decode(message)
        except BaseException:
            self.enter(message.rank, (), (), message.tag)  # else this would be of the last call
            raise
        message.buffers = ()  # whoever waits for the next call still has this one
        self.endpoint = name
        here.set(Here(self.instance, labels, sizes, message.rank, message.tag, name))
        method, has_port, concurrent = self._method(name, explicit)
        if has_port:
            args = (Port(message.source, message.reply, message.rank), *args)
        return method, args, kwargs, has_port, concurrent

    def _method(self, name: str, explicit: bool | None) -> tuple[Callable[..., Any], bool, bool]:
        """An endpoint, or a plain method called by `as_endpoint` (then `explicit` is not None)."""
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

    def seal(self, message: Message, value: Any) -> Parcel | None:
        """The answer, if somebody waits for it. User code runs while pickling, and may raise."""
        return self.hosting.sealed(message, value) if message.reply else None

    def reply(self, message: Message, sealed: Parcel | None) -> None:
        """Send the answer back."""
        if sealed is not None:
            self._answer(message, REPLY, sealed)

    def raised(
        self, message: Message, error: BaseException, *, has_port: bool, interrupted: bool
    ) -> None:
        """An endpoint raised: tell the caller, or, where nobody waits, fail."""
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
            failed = ActorEnded(self._failed_text(why), error, record=record)
            self._answer_lost(message, failed)
            self.end(failed, tell=True)

    def _note_call(self, message: Message, error: BaseException) -> Any:
        caller = here.get()
        return self._note(error, "" if caller is None else caller.method, message.tag)

    def _note(self, error: BaseException, method: str, tag: int) -> Any:
        """Count an error of the user's and keep its record, which is returned."""
        record = remote_errors.record_of(error)
        if not issubclass(type(error), _INTERRUPTS):
            self.failed += 1
            what = f"{self.spec.name}.{method}" if method else self.spec.name
            self.hosting.raised.note(what, tag, record)
            self.hosting.on_raised(error)
        return record

    def refuse(self, message: Message) -> None:
        """Answer a call to an actor that has ended."""
        assert self.ended is not None
        self.hosting.refuse(message, self.ended, str(self.instance.actor_id))

    def end(self, ended: ActorEnded, *, tell: bool) -> None:
        """The end, clean-up included. The actor's thread."""
        raise NotImplementedError

    def finish(self, ended: ActorEnded, *, tell: bool) -> bool:
        """Once: a tombstone, answers for the queue, the owner, the owned. False if it was done."""
        with self._lock:
            if self.ended is not None:
                return False
            self.ended = ended
            self.state = State.ENDED
        self.hosting.entomb(self)
        self.refuse_backlog()
        if tell:
            self.hosting.tell_owner(self.spec, ended)
        self._owned_stops = self.hosting.stop_owned_by(self.spec.port)
        return True

    def return_hook(self) -> Callable[[UndeliverableMessageEnvelope], Any] | None:
        """The user's `_handle_undeliverable_message`, in its context; None after the end."""
        if self.state == State.ENDED:
            return None
        self.enter(self.spec.rank, self.spec.labels, self.spec.sizes, 0)
        return getattr(self._actor, RETURN_HOOK, None)

    def return_hook_raised(
        self, message: UndeliverableMessageEnvelope, error: BaseException
    ) -> None:
        """Nobody waits for it: the actor fails, with both in the text."""
        why = f"{message}; then {RETURN_HOOK} raised {error!r}"
        self.end(ActorEnded(self._failed_text(why), error), tell=True)

    def cleanup_hook(self) -> Callable[[], Any] | None:
        """The user's `__cleanup__`, ready to be called."""
        hook = getattr(self._actor, "__cleanup__", None)
        if hook is None:
            return None
        error = self.ended.cause if self.ended is not None else None
        return functools.partial(hook, error if isinstance(error, Exception) else None)

    def finished(self) -> None:
        """After `__cleanup__`: answer those who asked for the stop, let the actor go."""
        self._actor = None
        self._methods = {}
        if self.ended is not None:
            self.ended.forget_cause()
        self._over.set()
        for message in self._stop_requests:
            self.proc.answer(message, Done())
        self._stop_requests = []

    def refuse_backlog(self) -> None:
        """Answer everything that is queued."""
        raise NotImplementedError

    def _failed_text(self, why: str) -> str:
        return f"The actor {self.instance} and all its descendants have failed: {why}"

    def stopped_text(self, reason: str) -> str:
        """What later callers are told after an orderly stop."""
        return f"The actor {self.instance} has status stopped: {reason}"

    def _reply_error(
        self, message: Message, kind: str, error: BaseException | None, record: Any = None
    ) -> None:
        if message.reply:
            payload = remote_errors.pack(kind, error, record=record)
            self._answer(message, ERROR, self.proc.encode_bytes(payload))

    def _answer_lost(self, message: Message, ended: ActorEnded) -> None:
        if message.reply:
            self._answer(message, ERROR, self.proc.encode_bytes(ended.sealed()))

    def _answer(self, message: Message, kind: int, parcel: Parcel) -> None:
        if not message.reply:
            return
        flush = self.hosting.flush_output
        if flush is not None:
            flush()  # what the endpoint printed is on its way before its result
        self.proc.send(
            message.source, kind, message.reply, parcel, rank=message.rank, tag=message.tag
        )

    def _stop_self(self, reason: str) -> Any:
        self.request_stop(None, reason)

    def _abort_self(self, reason: str) -> None:
        text = self._failed_text(reason)
        self.urgent(lambda: self.end(ActorEnded(text), tell=True))


def is_failure(error: BaseException | None) -> bool:
    """Whether a call that ended so has failed: an interrupt is somebody's wish."""
    return error is not None and not issubclass(type(error), _INTERRUPTS)


def _initialized() -> None:
    """What foreign handles call to know that the constructor has run."""
