"""An actor with async endpoints: a thread with an event loop of its own.

Plain async endpoints run one at a time, awaits included; concurrent endpoints run as tasks beside
them. What arrives while the loop sleeps wakes it once, not once per message.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import inspect
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from monarch_nb.actors.definition import RETURN_HOOK
from monarch_nb.actors.driver import ActorEnded, ActorHost, Driver, State, is_failure
from monarch_nb.core.points import point
from monarch_nb.process.current import end_fork
from monarch_nb.process.interrupts import Key, Steps

if TYPE_CHECKING:
    from monarch_nb.actors.undeliverable import UndeliverableMessageEnvelope
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.core.wire.messages.actors import SpawnActor
    from monarch_nb.process.payloads import Payload
    from monarch_nb.process.supervision.supervision import MeshFailure

THREAD_NAME: Final = "monarch-actor-event-loop"
DISPATCH_BATCH: Final = 64  # concurrent calls admitted before the loop gets a turn, as in Monarch


class AsyncDriver(Driver):
    def __init__(self, hosting: ActorHost, spec: SpawnActor, request: Message) -> None:
        super().__init__(hosting, spec, request)
        self._backlog: collections.deque[Message] = collections.deque()
        self.waiting = self._backlog.__len__
        self._urgent: collections.deque[Callable[[], Any]] = collections.deque()
        self._asleep = False
        self._plain: Key | None = None  # the call that is no task of its own
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._wakeup: asyncio.Event | None = None
        self._tasks: dict[asyncio.Task[bool], Key] = {}
        self._asked: collections.deque[Callable[[], Coroutine[Any, Any, None]]] = (
            collections.deque()
        )  # hooks that are to begin
        self._hooks: set[asyncio.Task[None]] = set()
        self._hook_turn = asyncio.Lock()  # hooks run one at a time, beside the calls
        self._newest: asyncio.Task[bool] | None = None
        self._drained = False
        hosting.queues.append(self.waiting)
        self.thread = threading.Thread(target=self._serve, name=THREAD_NAME, daemon=True)
        self.thread.start()

    # any thread

    def deliver(self, message: Message) -> None:
        self._backlog.append(message)
        if (board := self.hosting.board) is not None and board.since_ns:
            board.arrived(len(self._backlog))
        if self._asleep:
            self._wake()
        if self._drained:
            self.refuse_backlog()

    def urgent(self, action: Callable[[], object]) -> None:
        self._urgent.append(action)
        self._wake()

    def _wake(self) -> None:
        self._asleep = False
        loop, wakeup = self._loop, self._wakeup
        if loop is not None and wakeup is not None:
            try:
                loop.call_soon_threadsafe(wakeup.set)
            except RuntimeError:
                self.refuse_backlog()  # the loop is closed: the actor has ended

    def supervise(self, failure: MeshFailure) -> None:
        self._ask_hook(lambda: self._ask_supervisor(failure))

    def returned(self, message: UndeliverableMessageEnvelope) -> None:
        self._ask_hook(lambda: self._returned(message))

    def _ask_hook(self, ask: Callable[[], Coroutine[Any, Any, None]]) -> None:
        loop = self._loop
        if loop is not None and self.ended is None:
            self._asked.append(ask)
            with contextlib.suppress(RuntimeError):  # the loop is closed: the actor has ended
                loop.call_soon_threadsafe(self._start_hooks)

    @property
    def running(self) -> Key | None:
        return self._plain

    @property
    def current(self) -> str | None:
        return self.endpoint if self._plain is not None or self._tasks else None

    @property
    def queue(self) -> int:
        return len(self._backlog)

    def interrupt(self, key: Key) -> None:
        # one of the two hits: the step that runs, or the wait between two
        if self.interrupts.interrupt(key) and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the actor has ended
                self._loop.call_soon_threadsafe(self._cancel, key)

    # the loop's thread

    def _cancel(self, key: Key) -> None:
        if self._plain == key and self._main is not None:
            self._main.cancel()
        for task, running in self._tasks.items():
            if running == key:
                task.cancel()

    def _serve(self) -> None:
        try:
            asyncio.run(self._run())
        except KeyboardInterrupt:
            self.end(self.failure("its thread was interrupted"), tell=True)
        finally:
            self._drained = True
            self.finished()
            self.refuse_backlog()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        self._wakeup = asyncio.Event()
        self.construct()
        while self.state == State.RUNNING:
            await self._dispatch()
            if self.state == State.RUNNING:
                await self._sleep()
        await self._clean_up()

    async def _dispatch(self) -> None:
        admitted = 0
        while True:
            while self._urgent:
                self._urgent.popleft()()
            if self._asked or self._hooks:
                await self._let_hooks_run()
            if self.state != State.RUNNING or not self._backlog:
                return
            admitted += await self._handle(self._backlog.popleft())
            if admitted >= DISPATCH_BATCH:
                admitted = 0
                await asyncio.sleep(0)

    async def _let_hooks_run(self) -> None:
        # a step of each between two messages, whose endpoints may never yield
        self._start_hooks()
        await asyncio.sleep(0)

    async def _sleep(self) -> None:
        assert self._wakeup is not None
        self._wakeup.clear()
        self._asleep = True
        if self._backlog or self._urgent:  # came between the last look and the flag
            self._asleep = False
            return
        self.proc.links.flush()
        await self._wakeup.wait()

    async def _handle(self, message: Message) -> bool:
        opened = self._opened(message) if self.admit(message) else None
        if opened is None:
            return False
        method, args, kwargs, has_port, concurrent = opened
        if (board := self.hosting.board) is not None:
            board.busy(method.__name__)
        after = None if concurrent else self._newest
        call = self._guarded(message, method, args, kwargs, has_port, after)
        del opened, args, kwargs  # what was lent to the call is the call's
        if concurrent:
            self._newest = task = asyncio.create_task(call)
            self._tasks[task] = (message.source, message.reply)
            task.add_done_callback(self._task_ended)
            return True
        self._plain = (message.source, message.reply)
        self._call_ended(await call)
        return False

    def _task_ended(self, task: asyncio.Task[bool]) -> None:
        self._tasks.pop(task, None)
        self._call_ended(not task.cancelled() and task.result())

    def _call_ended(self, failed: bool) -> None:
        board = self.hosting.board
        if board is None:
            return
        if self._tasks or self._plain is not None:
            board.count(failed)
        else:
            board.idle(failed)

    async def _guarded(
        self,
        message: Message,
        method: Callable[..., Any],
        args: tuple[object, ...],
        kwargs: dict[str, Any],
        has_port: bool,
        after: asyncio.Task[bool] | None = None,
    ) -> bool:
        key = (message.source, message.reply)
        sealed: Payload | None = None
        try:
            if after is not None and after in self._tasks:
                await asyncio.sleep(0)  # what was called before begins before
            point("call.begin")
            value = method(*args, **kwargs)
            args, kwargs = (), {}  # what was lent to the call goes back with the answer
            if inspect.isawaitable(value):
                value = await Steps(self.interrupts, key, value)
            if not has_port:
                sealed = self.interrupts.during(key, lambda: self.seal(message, value))
            point("call.end")
        except asyncio.CancelledError as error:
            interrupted = self._done_with(message, error)
            self._uncancel()
            self.call_raised(message, error, has_port=has_port, interrupted=interrupted)
            return False
        except BaseException as error:  # noqa: BLE001  user code; anything may come out
            ended = self._seen(key, error)
            interrupted = self._done_with(message, ended)
            self.call_raised(message, ended, has_port=has_port, interrupted=interrupted)
            return is_failure(ended)
        self._done_with(message)
        if self.ended is not None and self.has_failed:
            self._answer_lost(message, self.ended)  # it went on though it was cancelled
            return False
        if (failed := self.hosting.failed).kept:
            failed.forget(self.spec.port)  # before anybody can ask for it again
        self.reply(message, sealed)
        return False

    def _seen(self, key: Key, error: BaseException) -> BaseException:
        # The call has raised this; what it ends with. It may be stopped there, and interrupted.
        failed, port = self.hosting.failed, self.spec.port
        if failed.stop is None or not isinstance(error, Exception):
            return failed.seen(port, error)
        try:
            return self.interrupts.during(key, partial(failed.seen, port, error))
        except KeyboardInterrupt as interrupt:  # it was meant for the call before that failed
            return interrupt

    def _opened(self, message: Message) -> Any:
        # What `open` returns, or None when it raised: the user's code may hang there too
        key = (message.source, message.reply)
        try:
            return self.interrupts.during(key, lambda: self.open(message))
        except BaseException as error:  # noqa: BLE001  user code runs while unpickling
            interrupted = self.interrupts.finish(key)
            self.call_raised(message, error, has_port=False, interrupted=interrupted)
            self._call_ended(is_failure(error))
            return None

    def _done_with(self, message: Message, error: BaseException | None = None) -> bool:
        if self.proc.links.forked:
            end_fork(error)
        key = (message.source, message.reply)
        if self._plain == key:
            self._plain = None
        return self.interrupts.finish(key)

    def _uncancel(self) -> None:
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()

    def _start_hooks(self) -> None:
        while self._asked:
            task = asyncio.create_task(self._in_turn(self._asked.popleft()))
            self._hooks.add(task)
            task.add_done_callback(self._hooks.discard)

    async def _in_turn(self, ask: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async with self._hook_turn:
            await ask()
        if self.has_failed and self._plain is not None and self._main is not None:
            self._main.cancel()  # whoever waits for this call is told why the actor has failed

    async def _returned(self, message: UndeliverableMessageEnvelope) -> None:
        hook = self.hook(RETURN_HOOK)
        try:
            answer = None if hook is None else hook(message)
            if inspect.isawaitable(answer):
                await answer
        except BaseException as error:  # noqa: BLE001  user code; anything may come out
            self.return_hook_raised(message, error)

    async def _ask_supervisor(self, failure: MeshFailure) -> None:
        handler = self.hook("__supervise__")
        try:
            handled = handler is not None and handler(failure)
            if inspect.isawaitable(handled):
                handled = await handled
        except BaseException as error:  # noqa: BLE001  the owner fails too, with both errors told
            self.not_handled(failure, error)
        else:
            if not handled:
                self.not_handled(failure)

    def end(self, ended: ActorEnded, *, tell: bool) -> None:
        self.finish(ended, tell=tell)
        self._wake()

    async def _clean_up(self) -> None:
        running = list(self._tasks)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=self.proc.config.cleanup_s)
        owned = [stopping.as_asyncio() for stopping in self._owned_stops]
        if owned:
            await asyncio.wait(owned, timeout=self.proc.config.cleanup_s)
        cleanup = self.cleanup_hook()
        if cleanup is None:
            return
        try:
            done = cleanup()
            if inspect.isawaitable(done):
                await asyncio.wait_for(done, self.proc.config.cleanup_s)
        except BaseException:  # noqa: BLE001  the actor is gone either way
            self.hosting.log_exception(f"__cleanup__ of {self.instance} raised")

    def refuse_backlog(self) -> None:
        while True:
            try:
                message = self._backlog.popleft()
            except IndexError:
                return
            self.refuse(message)
