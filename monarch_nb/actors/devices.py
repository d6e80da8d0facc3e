"""Which device a rank is meant to use, found without touching CUDA.

The kernel, the agent and the zygote must never initialise CUDA (a fork could not use it any more),
so GPUs are counted by their device files and `CUDA_VISIBLE_DEVICES`.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path


@functools.cache
def visible_gpus() -> int:
    """Number of NVIDIA GPUs that a process started here would see."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return len([each for each in chosen.split(",") if each.strip() and each.strip() != "-1"])
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def device_of(local_rank: int) -> str:
    """`cuda:<i>`, shared in turn when there are more ranks than GPUs, or `cpu`."""
    gpus = visible_gpus()
    return f"cuda:{local_rank % gpus}" if gpus else "cpu"
