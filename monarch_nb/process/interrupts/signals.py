"""SIGINT for the main thread, seen to be noticed.

A signal that comes between Python's last look and a system call that blocks is not noticed before
that call ends. Another signal, which does nothing, ends the call, and Python looks.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

NUDGE: Final = signal.SIGRTMIN + 1
PAUSES_S: Final = (0.005, 0.015, 0.06, 0.2)


def install() -> None:
    """Let the main thread be nudged. To be called there."""
    if signal.getsignal(NUDGE) == signal.SIG_DFL:
        signal.signal(NUDGE, lambda *_: None)


def interrupt_main(*ends_wait: Callable[[], bool]) -> None:
    """Returns at once. Any thread. Each of `ends_wait` ends a wait that sees no signal, if there is
    one, and says whether it did."""
    main = threading.main_thread().ident or 0
    signal.pthread_kill(main, signal.SIGINT)
    if signal.getsignal(NUDGE) == signal.SIG_DFL:  # a nudge would end the process
        return
    nudging = threading.Thread(
        target=_nudge, args=(main, ends_wait), name="monarch-nudge", daemon=True
    )
    vars(nudging).update(pydev_do_not_trace=True, is_pydev_daemon_thread=True)
    nudging.start()


def _nudge(main: int, ends_wait: Iterable[Callable[[], bool]]) -> None:
    for pause_s in PAUSES_S:
        time.sleep(pause_s)
        signal.pthread_kill(main, NUDGE)
        if any(ends() for ends in ends_wait):
            return
