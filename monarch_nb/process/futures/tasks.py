"""`TaskFuture`: a future whose value a coroutine makes, where somebody first looks at it.

Rules: the body runs at most once, in the context of whoever made the future. Whoever looks first
owns the run: a time-out or an interrupt of that `get` cancels the body and waits for its clean-up.
Others only watch.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

from monarch_nb.errors import CallCancelled
from monarch_nb.process.futures.future import Future, call_in_loop, make, waiting

R = TypeVar("R")
Body = Callable[[], Awaitable[R]]


class TaskFuture(Future[R]):
    __slots__ = ("_context", "_make", "_started", "_stop", "_task")
    _make: list[Body[R]]
    _context: contextvars.Context
    _started: threading.Event
    _stop: Callable[[], None]
    _task: asyncio.Task[R]

    @classmethod
    def of(cls, body: Body[R]) -> TaskFuture[R]:
        future = make(cls)
        future._make = [body]
        future._context = contextvars.copy_context()
        future._started = threading.Event()
        return future

    def cancel(self) -> bool:
        """Cancel the body; one that has not started never will."""
        if self._claim() is not None:
            self._set_exception(CallCancelled("it was cancelled before it started"))
        elif self.done():
            return False
        else:
            self._stop_body()
        return True

    def _claim(self) -> Body[R] | None:
        try:
            return self._make.pop()
        except IndexError:
            return None

    def _observe(self) -> None:
        body = self._claim()
        if body is not None:
            self._run_aside(body, None)

    def _wait(self, timeout: float | None) -> None:
        body = self._claim()
        if body is None:
            super()._wait(timeout)
        elif waiting.pump is None and not _loop_runs_here():
            self._run(body, timeout)
        else:
            self._run_aside(body, timeout)
            try:
                super()._wait(None)
            except KeyboardInterrupt:
                self._stop_body()
                self._block(None)
                raise

    def _abandon(self) -> None:
        """Only the owner's interrupt stops the body."""

    def _stop_body(self) -> None:
        self._started.wait()
        self._stop()

    def _run_aside(self, body: Body[R], timeout: float | None) -> None:
        # In a thread of its own: this one has a loop already (a cell), or other duties
        threading.Thread(
            target=self._run, args=(body, timeout), name="monarch-future", daemon=True
        ).start()

    def _run(self, body: Body[R], timeout: float | None) -> None:
        try:
            with asyncio.Runner() as runner:
                value = runner.run(self._bounded(body, timeout), context=self._context)
        except asyncio.CancelledError:
            self._set_exception(CallCancelled("it was cancelled while it ran"))
        except BaseException as error:
            self._set_exception(error)
            if isinstance(error, KeyboardInterrupt):
                raise
        else:
            self._set_result(value)

    async def _bounded(self, body: Body[R], limit_s: float | None) -> R:
        self._begin()
        return await asyncio.wait_for(_coroutine(body), limit_s)

    def _begin(self) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._stop = lambda: call_in_loop(loop, task.cancel)
        self._started.set()

    def __await__(self) -> Generator[object, None, R]:
        body = self._claim()
        if body is not None:
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._bounded(body, None), context=self._context)
            self._task.add_done_callback(self._finished)
        return (yield from super().__await__())

    def _finished(self, task: asyncio.Task[R]) -> None:
        if task.cancelled():
            self._set_exception(CallCancelled("it was cancelled while it ran"))
        elif (error := task.exception()) is not None:
            self._set_exception(error)
        else:
            self._set_result(task.result())


def _loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _coroutine(body: Body[R]) -> R:
    return await body()
