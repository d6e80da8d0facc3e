"""Where the stop button may hit: in the user's code, and not in what answers the front end.

ipykernel has SIGINT raise KeyboardInterrupt wherever the main thread is while a request is handled.
Between the end of a cell's code and its reply that loses the reply, and the cell looks busy for
ever; a second press while the first is being reported is enough. And what IPython does before the
user's code catches a KeyboardInterrupt, tells of it, and runs the cell all the same.
"""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, Final

WAKE: Final = signal.SIGRTMIN + 1
WAKES_S: Final = (0.005, 0.02, 0.08, 0.3)


def install() -> None:
    """Let a signal that does nothing end a call that blocks the main thread."""
    signal.signal(WAKE, lambda *_: None)


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
    """Of one shell: where a press may raise, and one that waits for the user's code to begin."""

    def __init__(self, shell: Any) -> None:
        cls, events = type(shell), type(shell.events)
        self._shell = shell
        self._run_code = shell.run_code
        self._shows = cls.showtraceback.__code__
        self._triggers = events.trigger.__code__  # it catches, tells, and goes on
        self._runs = {cls.run_code.__code__, cls.user_expressions.__code__, self._triggers}
        self._is_due = False
        shell.run_code = self._run_unless_stopped

    @contextlib.contextmanager
    def only_user_code(self) -> Iterator[None]:
        """Let a stop raise in the user's code only; one before it stops what comes next."""
        if threading.current_thread() is not threading.main_thread():
            yield  # a subshell: signals are not for it
            return

        def stop(_: int, frame: FrameType | None) -> None:
            if self.hits_user_code(frame):
                raise KeyboardInterrupt

        self._is_due = False
        before = signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def hits_user_code(self, frame: FrameType | None) -> bool:
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


def _is_ours(frame: FrameType | None) -> bool:
    return frame is not None and str(frame.f_globals.get("__name__")).startswith("monarch_")
