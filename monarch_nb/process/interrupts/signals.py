"""SIGINT for the main thread, seen to be noticed.

A signal that comes between Python's last look and a system call that blocks is not noticed before
that call ends. Another signal, which does nothing, ends the call, and Python looks.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from monarch_nb.net.threads import helper_thread

NUDGE: Final = signal.SIGRTMIN + 1
PAUSES_S: Final = (0.005, 0.015, 0.06, 0.2)


def install() -> None:
    """Let the main thread be nudged. To be called there."""
    if signal.getsignal(NUDGE) == signal.SIG_DFL:
        signal.signal(NUDGE, lambda *_: None)


def interrupt_main(end_wait: Callable[[], bool] = lambda: False) -> None:
    """Send SIGINT to the main thread. Returns at once. Any thread.

    `end_wait` ends a wait that sees no signal, and says whether there was one.
    """
    main = threading.main_thread().ident or 0
    signal.pthread_kill(main, signal.SIGINT)
    if signal.getsignal(NUDGE) == signal.SIG_DFL:  # a nudge would end the process
        return
    helper_thread(partial(_nudge, main, end_wait), "monarch-nudge").start()


def _nudge(main: int, end_wait: Callable[[], bool]) -> None:
    for pause_s in PAUSES_S:
        time.sleep(pause_s)
        signal.pthread_kill(main, NUDGE)
        if end_wait():
            return
