"""`breakpoint()` and `pdb.set_trace()` on a rank, where nobody can type: they say where they are,
and the code goes on.
"""

from __future__ import annotations

import os
import pdb  # noqa: T100  so that nobody waits in it
import sys


def install() -> None:
    """Unless the user has chosen another debugger."""
    if "PYTHONBREAKPOINT" not in os.environ and sys.breakpointhook is sys.__breakpointhook__:
        sys.breakpointhook = pdb.set_trace = _pass_over


def _pass_over(*_: object, **__: object) -> None:
    frame = sys._getframe(1)
    place = f"{frame.f_code.co_name}(), line {frame.f_lineno}"
    sys.stderr.write(f"breakpoint in {place}: a rank takes no input, going on\n")
