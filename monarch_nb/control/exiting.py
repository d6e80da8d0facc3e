"""How a program that drives a mesh ends when it is told to, or when its mesh has failed."""

from __future__ import annotations

import signal
import sys
import threading

from monarch_nb.process.interrupts import signals


def exit_when_told() -> None:
    """Let a failure interrupt the main thread wherever it waits; and end in an orderly way on
    SIGTERM, where the program has no plan of its own.

    The default would end this process without its actors' clean-up; a Jupyter kernel has its own
    way.
    """
    if threading.current_thread() is not threading.main_thread() or "ipykernel" in sys.modules:
        return
    signals.install()
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
