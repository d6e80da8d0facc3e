"""What a rank does when it is measured: the same plain functions in every system.

They run in the ranks' processes. numpy and torch load where they are used, so that the memory of a
rank that loads neither can be measured.
"""

import os
import sys
import time
from typing import Any

METHODS = ("echo", "pid", "load_torch", "ends", "total", "hold", "fill", "length", "blob", "spin")

_kept: dict[int, Any] = {}


def echo(x: Any) -> Any:
    return x


def pid() -> int:
    return os.getpid()


def load_torch() -> bool:
    import torch  # noqa: F401

    return "torch" in sys.modules


def ends(array: Any) -> float:
    return float(array[0]) + float(array[-1])


def total(array: Any) -> float:
    return float(array.sum())


def hold(count: int) -> None:
    """Make `count` ones of float32."""
    import numpy as np

    _kept[count] = np.ones(count, np.float32)


def fill(count: int, first: float) -> Any:
    """`count` float32, the first one `first`. Made by `hold`: only moving it is measured."""
    _kept[count][0] = first
    return _kept[count]


def length(sized: Any) -> int:
    return len(sized)


def blob(count: int) -> bytes:
    return bytes(count)


def spin(flag: str) -> None:
    """Tell whoever waits for `flag` that this rank is busy, and stay busy for good."""
    fd = os.open(flag, os.O_WRONLY)
    os.write(fd, b"x")
    os.close(fd)
    while True:
        time.sleep(0.01)
