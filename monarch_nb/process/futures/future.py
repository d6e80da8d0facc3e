"""`Future`: the answer to a call, waited for by any thread, any event loop, or both.

Rules: a future moves forward only (pending, then done); it is completed once, by the inbox thread
or by a lazy starter; what arrives is kept as it came and decoded by the first thread that asks,
never by the inbox thread. A wait that is interrupted (KeyboardInterrupt) cancels the call on the
ranks; a wait that times out leaves it alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from monarch_nb.process import current

R = TypeVar("R")
F = TypeVar("F", bound="Future[Any]")

_PENDING, _ARRIVED, _VALUE, _ERROR = range(4)
_LOOK_S: Final = 1.0  # a SIGINT that comes just before a wait is seen when Python looks again


class Pump(Protocol):
    """Does a thread's other duties while it waits. True: `done` came to hold."""

    def __call__(
        self,
        done: Callable[[], bool],
        wake_on: Callable[[Callable[[], None]], None],
        timeout: float | None,
    ) -> bool: ...


class _Waiting(threading.local):
    """How the calling thread waits for answers."""

    pump: Pump | None = None

    def begin(self, pump: Pump) -> None:
        """Let `pump` do the waiting of this thread, until `end`."""
        self.pump = pump

    def end(self) -> None:
        self.pump = None


waiting = _Waiting()


class Future(Generic[R]):
    """The result of a call that runs elsewhere.

    Made by calls (`actor.step.call()`), never by hand (`TypeError`). `get` blocks, `await` does
    not; both may be used any number of times, from any thread. The errors a `get` raises are those
    of the call: `ActorError`, `SupervisionError`, ... Not meant for subclasses.

    Example:
        >>> answer = trainer.step.call(batch)        # doctest: +SKIP
        >>> answer.get(timeout=10)                    # doctest: +SKIP
    """

    __slots__ = ("__weakref__", "_callbacks", "_content", "_keep", "_state", "_waiters")

    def __new__(cls, *_: object, **__: object) -> Future[R]:
        raise TypeError("a Future cannot be made by hand; it is what a call returns")

    def get(self, timeout: float | None = None) -> R:
        """Wait for the value.

        Args:
            timeout: seconds; None waits for ever. `TimeoutError` consumes nothing: ask again later.

        Raises:
            ValueError: for a negative or non-finite timeout.
        """
        if timeout is not None:
            _check_timeout(timeout)
        if self._state == _PENDING:
            self._wait(timeout)
        return self._result()

    result = get

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return the error instead of raising it; None for success."""
        if timeout is not None:
            _check_timeout(timeout)
        if self._state == _PENDING:
            self._wait(timeout)
        if self._state == _ARRIVED:
            self._settle()
        return cast("BaseException", self._content) if self._state == _ERROR else None

    def done(self) -> bool:
        """Tell whether the answer is here; never blocks."""
        return self._state != _PENDING

    def cancel(self) -> bool:
        """Ask the ranks to stop working on this call. False when it is already done.

        Drops a queued call (`CallCancelled`), interrupts a running endpoint (`CallInterrupted`).
        """
        return False

    def add_done_callback(self, callback: Callable[[Future[R]], None]) -> None:
        """Call `callback(self)` once done, in the thread that completes it; now, if it is done."""
        self._observe()
        self._callbacks.append(callback)
        if self._state != _PENDING:
            _call_each(self._callbacks, self)

    def as_asyncio(self) -> asyncio.Future[R]:
        """Return an `asyncio.Future` of the running loop. Raises `RuntimeError` without one."""
        loop = asyncio.get_running_loop()
        mirror: asyncio.Future[R] = loop.create_future()

        def copy() -> None:
            if mirror.done():
                return
            try:
                mirror.set_result(self._result())
            except BaseException as error:  # noqa: BLE001  handed on to whoever awaits
                mirror.set_exception(error)

        self.add_done_callback(lambda _: call_in_loop(loop, copy))
        return mirror

    def __await__(self) -> Generator[object, None, R]:
        if self._state == _PENDING:
            yield from self._arrival().__await__()
        return self._result()

    async def _arrival(self) -> None:
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        self.add_done_callback(lambda _: call_in_loop(loop, arrived.set))
        current.flush()
        await arrived.wait()

    def __repr__(self) -> str:
        return f"<Future {('pending', 'done', 'done', 'failed')[self._state]}>"

    # Below: for the modules of this box.

    def _init(self) -> None:
        self._state = _PENDING
        self._content: Any = None
        self._waiters: list[Callable[[], None]] = []
        self._callbacks: list[Callable[[Future[R]], None]] = []
        self._keep: Any = None  # what must not be garbage collected before the answer is here

    def _observe(self) -> None:
        """Somebody looks at this future. Lazy futures start here."""

    def _abandon(self) -> None:
        self.cancel()

    def _decode(self, content: Any) -> R:
        return cast("R", content)

    def _wait(self, timeout: float | None) -> None:
        self._observe()
        if self._state != _PENDING:
            return
        try:
            if not self._block(timeout):
                raise TimeoutError(f"no answer within {timeout:g} s; the call goes on, ask again")
        except KeyboardInterrupt:
            self._abandon()
            raise

    def _block(self, timeout: float | None) -> bool:
        current.flush()
        if waiting.pump is not None:
            return waiting.pump(self.done, self._wake_on, timeout)
        lock = threading.Lock()
        lock.acquire()
        self._wake_on(lock.release)
        end = math.inf if timeout is None else time.monotonic() + timeout
        while not lock.acquire(timeout=min(_LOOK_S, max(0.0, end - time.monotonic()))):
            if time.monotonic() >= end:
                return False
        return True

    def _wake_on(self, wake: Callable[[], None]) -> None:
        # append, then look again: whoever completes looks at the list after setting the state
        self._waiters.append(wake)
        if self._state != _PENDING:
            _call_each(self._waiters)

    def _result(self) -> R:
        if self._state == _ARRIVED:
            self._settle()
        if self._state == _ERROR:
            raise self._content.with_traceback(None)
        return cast("R", self._content)

    def _settle(self) -> None:
        try:
            value = self._decode(self._content)
        except BaseException as error:  # noqa: BLE001  becomes the outcome
            # without the frames of the decoding: nobody wants them, and they hold a kilobyte each
            self._content, self._state = error.with_traceback(None), _ERROR
        else:
            self._content, self._state = value, _VALUE

    def _arrive(self, content: object) -> None:
        self._complete(_ARRIVED, content)

    def _set_result(self, value: object) -> None:
        self._complete(_VALUE, value)

    def _set_exception(self, error: BaseException) -> None:
        self._complete(_ERROR, error)

    def _complete(self, state: int, content: object) -> None:
        if self._state != _PENDING:
            return
        self._content = content
        self._state = state
        self._keep = None
        if self._callbacks:
            _call_each(self._callbacks, self)
        if self._waiters:  # last: who is woken needs the interpreter that this thread still holds
            _call_each(self._waiters)


def _call_each(callbacks: list[Callable[..., None]], *args: object) -> None:
    # Call each once, in order, whoever comes first: `pop` hands it to one thread only
    while callbacks:
        try:
            callback = callbacks.pop(0)
        except IndexError:
            return
        callback(*args)


def call_in_loop(loop: asyncio.AbstractEventLoop, action: Callable[[], object]) -> None:
    """Call it in the thread of the loop, unless that has ended: then nobody awaits any more."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(action)


def make(kind: type[F]) -> F:
    future = object.__new__(kind)
    future._init()
    return future


def completed(value: R) -> Future[R]:
    future: Future[R] = make(Future)
    future._set_result(value)
    return future


def failed(error: BaseException) -> Future[object]:
    future: Future[object] = make(Future)
    future._set_exception(error)
    return future


class LazyFuture(Future[R]):
    """Starts when first observed (`get`, `await`, `add_done_callback`), once."""

    __slots__ = ("_start",)
    _start: list[Callable[[Any], None]]

    @classmethod
    def starting(cls, start: Callable[[LazyFuture[R]], None]) -> LazyFuture[R]:
        future = make(cls)
        future._start = [start]
        return future

    def _observe(self) -> None:
        try:
            start = self._start.pop()
        except IndexError:
            return
        start(self)

    def _abandon(self) -> None:
        """What was started (a stop, a receive) goes on."""


def _check_timeout(timeout: float) -> None:
    if not 0 <= timeout < threading.TIMEOUT_MAX:
        raise ValueError(
            f"timeout must be between 0 and {threading.TIMEOUT_MAX:g} s, not {timeout}"
        )
