"""An actor whose endpoints are plain `def`: one thread for life, no event loop.

The first such actor of a rank lives on the rank's main thread, where signals, pdb and CUDA expect
to be; it shares that thread's queue with cells. Others have a thread of their own.
"""

from __future__ import annotations

import collections
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from monarch_nb.actors.definition import RETURN_HOOK
from monarch_nb.actors.driver import ActorEnded, ActorHost, Driver, State, is_failure
from monarch_nb.core.points import point
from monarch_nb.process import remote_errors
from monarch_nb.process.current import end_fork
from monarch_nb.process.interrupts import raise_in_thread, take_back

if TYPE_CHECKING:
    from monarch_nb.actors.undeliverable import UndeliverableMessageEnvelope
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.core.wire.messages.actors import SpawnActor
    from monarch_nb.process.payloads import Payload
    from monarch_nb.process.supervision.supervision import MeshFailure

THREAD_NAME = "monarch-actor-driver"
_MAIN_NAME = "MainThread"
Work = tuple["Step", "Message | None"]
WorkQueue = queue.SimpleQueue["Work | None"]


class Step(Protocol):
    """An item of a work queue: the queue's thread calls `step` on it."""

    def step(self, message: Message | None, /) -> None: ...


class Task:
    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action

    def step(self, _: Message | None) -> None:
        self._action()


class SyncDriver(Driver):
    def __init__(
        self, hosting: ActorHost, spec: SpawnActor, request: Message, work: WorkQueue | None
    ) -> None:
        signal_main = None if work is None else hosting.interrupt_main
        super().__init__(hosting, spec, request, signal_main)
        self._urgent: collections.deque[Callable[[], object]] = collections.deque([self.construct])
        self.on_main = work is not None
        self._work: WorkQueue = queue.SimpleQueue() if work is None else work
        self.waiting = self._work.qsize
        self._links = self.proc.links
        if work is None:
            hosting.queues.append(self.waiting)
            self.thread = threading.Thread(target=self._serve, name=THREAD_NAME, daemon=True)
            self.thread.start()
        self._work.put((self, None))

    def deliver(self, message: Message) -> None:
        self._work.put((self, message))
        if (board := self.hosting.board) is not None and board.since_ns:
            board.arrived(self._work.qsize())
        if self.state == State.ENDED and not self.on_main:
            self.refuse_backlog()  # the thread may have looked for the last time already

    def urgent(self, action: Callable[[], object]) -> None:
        self._urgent.append(action)
        self._work.put((self, None))

    def supervise(self, failure: MeshFailure) -> None:
        self.urgent(lambda: self._supervise(failure))

    def returned(self, message: UndeliverableMessageEnvelope) -> None:
        self.urgent(lambda: self._returned(message))

    @property
    def queue(self) -> int:
        return self._work.qsize()

    def construct(self) -> None:
        threading.current_thread().name = THREAD_NAME
        super().construct()

    def step(self, message: Message | None) -> None:
        while self._urgent:
            self._urgent.popleft()()
        if message is not None and self.admit(message):
            try:
                self._call(message)
            except KeyboardInterrupt:  # between two lines of ours: no call goes without an answer
                self._reply_error(message, remote_errors.INTERRUPTED, None)
        if self._links.forked:
            end_fork(None)
        if self._links.held and self._work.empty():
            self._links.flush()  # about to wait

    def _call(self, message: Message) -> None:
        interrupts, board = self.interrupts, self.hosting.board
        key = (message.source, message.reply)
        outer = interrupts.running  # while a cell waits, calls may nest
        error: BaseException | None = None
        sealed: Payload | None = None
        has_port = False
        try:
            interrupts.enter(key)
            method, args, kwargs, has_port, _ = self.open(message)
            if board is not None:
                board.busy(method.__name__)
            point("call.begin")
            value = method(*args, **kwargs)
            args, kwargs = (), {}  # what was lent to the call goes back with the answer
            if not has_port:
                sealed = self.seal(message, value)
            point("call.end")
        except BaseException as found:  # noqa: BLE001  user code; anything may come out
            error = self.hosting.failed.seen(self.spec.port, found)
        if self._links.forked:
            end_fork(error)
        interrupted, error = self._finished(key, error)
        interrupts.resume(outer)
        if error is not None:
            failed = is_failure(error)
            self.call_raised(message, error, has_port=has_port, interrupted=interrupted)
            error = None  # it and this frame hold one another, and the actor
            if board is not None:
                board.idle(failed)
            return
        # both before the answer, after which anybody may ask for them
        if (failed_here := self.hosting.failed).kept:
            failed_here.forget(self.spec.port)
        if board is not None:
            board.idle()
        self.reply(message, sealed)

    def _finished(
        self, key: tuple[int, int], error: BaseException | None
    ) -> tuple[bool, BaseException | None]:
        # Whether the call was interrupted, and what it ends with
        while True:
            try:
                return self.interrupts.finish(key), error
            except KeyboardInterrupt:  # the very one that is being taken back
                error = error or KeyboardInterrupt()

    def _supervise(self, failure: MeshFailure) -> None:
        handler = self.hook("__supervise__")
        try:
            handled = handler is not None and handler(failure)
        except BaseException as error:  # noqa: BLE001  the owner fails too, with both errors told
            self.not_handled(failure, error)
        else:
            if not handled:
                self.not_handled(failure)

    def _returned(self, message: UndeliverableMessageEnvelope) -> None:
        hook = self.hook(RETURN_HOOK)
        try:
            if hook is not None:
                hook(message)
        except BaseException as error:  # noqa: BLE001  user code; anything may come out
            self.return_hook_raised(message, error)

    def end(self, ended: ActorEnded, *, tell: bool) -> None:
        if self.finish(ended, tell=tell):
            self._clean_up()
            if self.on_main:
                threading.current_thread().name = _MAIN_NAME
            else:
                self._work.put(None)

    def _clean_up(self) -> None:
        deadline = time.monotonic() + self.proc.config.cleanup_s
        for stopping in self._owned_stops:
            with contextlib.suppress(Exception):
                stopping.exception(max(0.0, deadline - time.monotonic()))
        cleanup = self.cleanup_hook()
        if cleanup is not None:
            own = threading.get_ident()
            limit = threading.Timer(
                self.proc.config.cleanup_s, raise_in_thread, (own, TimeoutError)
            )
            limit.daemon = True
            limit.start()
            try:
                cleanup()
            except BaseException:  # noqa: BLE001  the actor is gone either way
                self.hosting.log_exception(f"__cleanup__ of {self.instance} raised")
            finally:
                limit.cancel()
                take_back()
        self.finished()

    def refuse_backlog(self) -> None:
        if self.on_main:
            return  # the main queue is shared; `open` refuses one by one
        kept: list[Work | None] = []
        while True:
            try:
                item = self._work.get_nowait()
            except queue.Empty:
                break
            if item is None:
                kept.append(None)
            elif item[1] is not None:
                self.refuse(item[1])
        for each in kept:
            self._work.put(each)

    def _serve(self) -> None:
        get = self._work.get
        while True:
            try:
                while (item := get()) is not None:
                    item[0].step(item[1])
            except KeyboardInterrupt:
                continue  # of nobody's: no call runs
            break
        self.refuse_backlog()
