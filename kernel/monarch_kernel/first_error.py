"""The first error of a kernel is shown as fast as those after it.

What lays out a traceback (stack_data, pygments) is loaded with the first one, which takes a quarter
of a second: too long for the prompt after a stop button, or for a tooltip, which is coloured too.
"""

import threading
from typing import Any

from ipykernel.zmqshell import ZMQInteractiveShell


def prepare(shell: ZMQInteractiveShell) -> None:
    """Lay out an error that nobody sees, in the background."""
    name = "monarch-first-error"
    threading.Thread(target=_lay_out, args=(shell.InteractiveTB,), name=name, daemon=True).start()


def _lay_out(shown: Any) -> None:
    apart = type(shown)(mode=shown.mode, theme_name=shown._theme_name)  # a user's is left alone
    try:
        int("")
    except ValueError as error:
        apart.structured_traceback(type(error), error, error.__traceback__)
