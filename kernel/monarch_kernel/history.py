"""The history of inputs is written a moment after a cell began, not at once.

IPython has a thread for that, which takes 0.6 ms of the interpreter for each cell and begins
together with it. Nothing is lost: history that is asked for is written first, and so is the rest
when the kernel ends.
"""

import atexit
import threading
from typing import Final

from ipykernel.zmqshell import ZMQInteractiveShell

MOMENT_S: Final = 0.2


class _Later(threading.Event):
    """The thread's `save_flag`: who waits for it wakes a moment after it was set."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = threading.Event()
        """The process ends: no more waiting."""

    def wait(self, timeout: float | None = None) -> bool:
        is_set = super().wait(timeout)
        self.ends.wait(MOMENT_S)
        return is_set


def write_later(shell: ZMQInteractiveShell) -> None:
    """Let the thread that writes the history of `shell` wait, if it has one."""
    thread = getattr(shell.history_manager, "save_thread", None)
    if thread is None:
        return
    before, thread.save_flag = thread.save_flag, _Later()
    before.set()  # it waits there
    atexit.register(thread.save_flag.ends.set)  # before the thread's own, which joins it
