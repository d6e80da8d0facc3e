"""Where the stop button may hit: in the user's code, and not in what answers the front end.

ipykernel has SIGINT raise KeyboardInterrupt wherever the main thread is while a request is handled.
Between the end of a cell's code and its reply that loses the reply, and the cell looks busy for
ever; a second press while the first is being reported is enough.
"""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

NUDGE: Final = signal.SIGRTMIN + 1
NUDGES_S: Final = (0.005, 0.02, 0.08, 0.3)


def install() -> None:
    """Let the main thread be nudged."""
    signal.signal(NUDGE, lambda *_: None)


def press() -> None:
    """SIGINT to this process, and see to it that the main thread notices. On an event loop.

    A signal that comes between Python's last look and a system call that blocks is not noticed
    before that call ends: `time.sleep(30)` would sleep on. Another signal, which does nothing, ends
    the call, and Python looks.
    """
    os.kill(os.getpid(), signal.SIGINT)
    main = threading.main_thread().ident or 0
    loop = asyncio.get_running_loop()
    for delay_s in NUDGES_S:
        loop.call_later(delay_s, signal.pthread_kill, main, NUDGE)


@contextlib.contextmanager
def only_user_code(shell: Any) -> Iterator[None]:
    """While a cell is executed: a stop before or after the user's code does nothing, nor does one
    while an error is being shown."""
    if threading.current_thread() is not threading.main_thread():
        yield  # a subshell: signals are not for it
        return

    def stop(_: int, frame: FrameType | None) -> None:
        if is_user_code(shell, frame):
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def is_user_code(shell: Any, frame: FrameType | None) -> bool:
    """Whether the user's code runs in this frame, for IPython to catch what is raised there."""
    shows = type(shell).showtraceback.__code__
    runs = {
        shell.run_code.__code__,
        shell.user_expressions.__code__,
        type(shell.events).trigger.__code__,  # it stops what others have registered, and goes on
    }
    while frame is not None and frame.f_code not in runs:
        if frame.f_code is shows:
            return False
        frame = frame.f_back
    return frame is not None
