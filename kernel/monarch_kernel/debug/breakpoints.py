"""`breakpoint()` in a cell opens a prompt.

In a plain ipykernel it does nothing: debugpy, imported at start, has taken `sys.breakpointhook`
(ipykernel #897). With JupyterLab's debugger attached debugpy's hook is the right one, so it stays
in use then. A front end without input (nbconvert, papermill) is told where the breakpoint was and
goes on.
"""

import os
import pdb  # noqa: T100  opening it is what this file is for
import sys
from collections.abc import Callable


def install(can_ask: Callable[[], bool]) -> None:
    """Set the hook. `can_ask` says whether the front end of the running cell takes input."""
    debugpy_hook = sys.breakpointhook

    def hook(*args: object, **kwargs: object) -> None:
        if "PYTHONBREAKPOINT" in os.environ:
            sys.__breakpointhook__(*args, **kwargs)  # noqa: T100
        elif _debugger_is_attached():
            debugpy_hook(*args, **kwargs)
        else:
            _stop(can_ask())

    sys.breakpointhook = hook


def _stop(can_ask: bool) -> None:
    frame = sys._getframe(2)
    if can_ask:
        pdb.Pdb().set_trace(frame)  # ipykernel has put IPython's Pdb there
        return
    place = f"{frame.f_code.co_name}(), line {frame.f_lineno}"
    sys.stderr.write(f"breakpoint() in {place}: this front end takes no input, going on\n")


def _debugger_is_attached() -> bool:
    debugpy = sys.modules.get("debugpy")
    return debugpy is not None and bool(debugpy.is_client_connected())
