"""What the board of a rank says of a frame that a debugger holds."""

from __future__ import annotations

import os
from types import FrameType


def place_of(frame: FrameType) -> str:
    """Where a frame is, for people: `train.py:41 step()`."""
    code = frame.f_code
    name = os.path.basename(code.co_filename)  # noqa: PTH119  a name, of a file or of none
    return f"{name}:{frame.f_lineno} {code.co_name}()".replace("<module>()", "").strip()
