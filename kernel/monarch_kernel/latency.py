"""What IPython would do while somebody waits is done before or after that; nothing is left out.

What lays out a traceback (stack_data, pygments) is loaded with the first one, which takes a quarter
of a second: too long for the prompt after a stop button, or for a tooltip, which is coloured too.
And the thread that writes the history of inputs takes 0.6 ms of the interpreter as each cell
begins: it waits a moment. History that is asked for is written first, and so is the rest at the
end.
"""

import atexit
import threading
from typing import Any, Final

from ipykernel.zmqshell import ZMQInteractiveShell

MOMENT_S: Final = 0.2


def prepare_errors(shell: ZMQInteractiveShell) -> None:
    """Lay out an error that nobody sees, in the background."""
    name = "monarch-first-error"
    threading.Thread(target=_lay_out, args=(shell.InteractiveTB,), name=name, daemon=True).start()


def _lay_out(shown: Any) -> None:
    apart = type(shown)(mode=shown.mode, theme_name=shown._theme_name)  # a user's is left alone
    try:
        int("")
    except ValueError as error:
        apart.structured_traceback(type(error), error, error.__traceback__)


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


def delay_history(shell: ZMQInteractiveShell) -> None:
    """Let the thread that writes the history of `shell` wait, if it has one."""
    thread = getattr(shell.history_manager, "save_thread", None)
    if thread is None:
        return
    before, thread.save_flag = thread.save_flag, _Later()
    before.set()  # it waits there
    atexit.register(thread.save_flag.ends.set)  # before the thread's own, which joins it
