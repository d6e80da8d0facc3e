"""`time.sleep` that an interrupt can end in every thread of a rank.

A KeyboardInterrupt that is raised in another thread than the main one comes up at the next
bytecode, hence after a sleep in C. So sleeps of such threads are cut into short ones.
"""

from __future__ import annotations

import threading
import time
from typing import Final, SupportsIndex

SLICE_S: Final = 0.1
_sleep: Final = time.sleep


def sleep(seconds: float | SupportsIndex, /) -> None:
    """Sleep as the function of the standard library does."""
    is_long = isinstance(seconds, float | int) and seconds > SLICE_S
    if not is_long or threading.current_thread() is threading.main_thread():
        _sleep(seconds)  # which also says what is wrong with an argument
        return
    deadline = time.monotonic() + float(seconds)
    while (left := deadline - time.monotonic()) > 0:
        _sleep(min(left, SLICE_S))


def install() -> None:
    """Replace `time.sleep` of this process."""
    time.sleep = sleep
