"""Which device a rank is meant to use, found without touching CUDA.

The kernel, the agent and the zygote must never initialise CUDA (a fork could not use it any more),
so GPUs are counted by their device files and `CUDA_VISIBLE_DEVICES`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


@functools.cache
def visible_gpus() -> tuple[str, ...]:
    """Name the NVIDIA GPUs that a process started here would see."""
    chosen = os.environ.get(VISIBLE)
    if chosen is not None:
        return chosen_gpus(chosen)
    return tuple(str(number) for number in range(len(list(Path("/dev").glob("nvidia[0-9]*")))))


def chosen_gpus(chosen: str) -> tuple[str, ...]:
    """Return what CUDA_VISIBLE_DEVICES names: `0,2`; nothing where it is empty."""
    names = (each.strip() for each in chosen.split(","))
    return tuple(name for name in names if name and name != "-1")


def device_of(local_rank: int, environment: Mapping[str, str | None]) -> str:
    """Return `cuda:<i>`, shared in turn by more ranks than GPUs, or `cpu`, with these changes."""
    chosen = environment.get(VISIBLE)
    gpus = visible_gpus() if chosen is None else chosen_gpus(chosen)
    return f"cuda:{local_rank % len(gpus)}" if gpus else "cpu"
