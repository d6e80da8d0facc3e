"""Where the stop button may hit: in the user's code, and not in what answers the front end.

ipykernel has SIGINT raise KeyboardInterrupt wherever the main thread is while a request is handled.
Between the end of a cell's code and its reply that loses the reply, and the cell looks busy for
ever; a second press while the first is being reported is enough. A few steps on it ends the kernel.
And what IPython does before the user's code catches a KeyboardInterrupt, tells of it, and runs the
cell all the same. So one handler stands all the time, and looks where the main thread is.
"""

import asyncio
import contextlib
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType
from typing import Any, Final

WAKE: Final = signal.SIGRTMIN + 1
WAKES_S: Final = (0.005, 0.02, 0.08, 0.3)


def press() -> None:
    """Send SIGINT to this process, and see to it that the main thread notices. On an event loop.

    A signal that comes between Python's last look and a system call that blocks is not noticed
    before that call ends: `time.sleep(30)` would sleep on. Another signal, which does nothing, ends
    the call, and Python looks.
    """
    os.kill(os.getpid(), signal.SIGINT)
    main = threading.main_thread().ident or 0
    loop = asyncio.get_running_loop()
    for delay_s in WAKES_S:
        loop.call_later(delay_s, signal.pthread_kill, main, WAKE)


class StopButton:
    """Decides what a press of the stop button does to a shell, by where the main thread is.

    In the user's code it raises KeyboardInterrupt; before that code begins, it stops what comes
    next. `handlers` are the functions of the kernel that run callbacks of widgets: there it raises,
    too. Nowhere else does it raise.
    """

    def __init__(self, shell: Any, handlers: Iterable[Any]) -> None:
        cls, events = type(shell), type(shell.events)
        self._shell = shell
        self._run_code = shell.run_code
        self._shows = cls.showtraceback.__code__
        self._triggers = events.trigger.__code__  # it catches, tells, and goes on
        self._runs = {cls.run_code.__code__, cls.user_expressions.__code__, self._triggers}
        self._handles = {each.__code__ for each in handlers}
        self._is_due = False
        self._cancel: Callable[[], object] | None = None
        shell.run_code = self._run_unless_stopped

    def listen(self) -> None:
        """Handle SIGINT, and `WAKE`, which does nothing but end a call that blocks the main thread.

        Again with each cell, as the user's code may have set a handler of its own.
        """
        signal.signal(WAKE, lambda *_: None)
        signal.signal(signal.SIGINT, self._pressed)

    @contextlib.contextmanager
    def one_cell(self) -> Iterator[None]:
        """While a cell is handled: let a press before its code stop what comes next."""
        if threading.current_thread() is not threading.main_thread():
            yield  # a subshell: signals are not for it
            return
        self._is_due = False
        self.listen()
        try:
            yield
        finally:
            self.listen()

    @contextlib.contextmanager
    def cancels(self, future: asyncio.Future[object]) -> Iterator[None]:
        """While an `await` cell runs: let a press outside the user's code cancel it.

        Its loop wakes even for a signal that comes just before it begins to wait: asyncio has the
        operating system's handler write to a file that the loop reads, whatever the signal.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(WAKE, lambda: None)
        self.listen()  # asyncio would have a call that blocks go on after WAKE
        # By the loop: a task that is cancelled in its last step would be so with its result
        self._cancel = functools.partial(loop.call_soon_threadsafe, future.cancel)
        try:
            yield
        finally:
            self._cancel = None

    def _pressed(self, _: int, frame: FrameType | None) -> None:
        if self._hits_cell(frame):
            raise KeyboardInterrupt
        if self._cancel is not None:
            self._cancel()
        if any(each.f_code in self._handles for each in _stack(frame)):
            raise KeyboardInterrupt

    def _hits_cell(self, frame: FrameType | None) -> bool:
        """Decide whether a press that came in this frame raises there, for IPython to catch it."""
        called, base = frame, frame
        while base is not None and base.f_code not in self._runs:
            is_showing = base.f_code is self._shows
            called, base = base, None if is_showing else base.f_back
        in_callback = base is not None and base.f_code is self._triggers
        raises = base is not None and not (in_callback and _is_ours(called))
        self._is_due = in_callback or not raises
        return raises

    async def _run_unless_stopped(
        self, code: CodeType, result: Any = None, *, async_: bool = False
    ) -> bool:
        if not self._is_due:
            return bool(await self._run_code(code, result, async_=async_))
        self._is_due = False
        stopped = KeyboardInterrupt()
        if result is not None:
            result.error_in_exec = stopped
        self._shell.showtraceback((KeyboardInterrupt, stopped, None))
        return True


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_ours(frame: FrameType | None) -> bool:
    return frame is not None and str(frame.f_globals.get("__name__")).startswith("monarch_")
