"""`breakpoint()` in a cell opens a prompt, or stops in JupyterLab's debugger while that is on.

In a plain ipykernel it does nothing: debugpy, imported at start, has taken `sys.breakpointhook`
(ipykernel #897). A front end without input (nbconvert, papermill) is told where the breakpoint was
and goes on.
"""

import os
import pdb  # noqa: T100  opening it is what this file is for
import sys
from collections.abc import Callable

from monarch_kernel.debug.controller import Controller


def install(can_ask: Callable[[], bool], controller: Controller | None) -> None:
    """Set the hook. `can_ask` says whether the front end of the running cell takes input."""

    def hook(*args: object, **kwargs: object) -> None:
        if "PYTHONBREAKPOINT" in os.environ:
            sys.__breakpointhook__(*args, **kwargs)  # noqa: T100
        elif controller is not None and controller.is_attached:
            controller.stop_at(sys._getframe(1))
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
