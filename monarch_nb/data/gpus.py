"""Which GPUs a process sees, and which of them is meant for a rank; found without touching CUDA.

The kernel, the agent and the zygote must never initialise CUDA (a fork could not use it any more),
so GPUs are counted by their device files and `CUDA_VISIBLE_DEVICES`. Rule: each host knows its own
GPUs; nobody counts those of another. A rank that starts again is told the same as before.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Sequence
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


def gpus_seen(chosen: str | None, host: Sequence[str]) -> tuple[str, ...]:
    """Name those of a `host` that a process sees whose CUDA_VISIBLE_DEVICES is this; None: that of
    the host."""
    return tuple(host) if chosen is None else chosen_gpus(chosen)


def device_of(slot: int, gpus: Sequence[str]) -> str:
    """Return `cuda:<i>` of these, shared in turn by more ranks than GPUs, or `cpu`."""
    return f"cuda:{slot % len(gpus)}" if gpus else "cpu"


def gpu_of(slot: int, gpus: Sequence[str]) -> str | None:
    """Name the GPU that `device_of` means; None where there is none."""
    return gpus[slot % len(gpus)] if gpus else None


def free_slots(taken: Collection[str], gpus: Sequence[str]) -> list[int]:
    """Return which of these GPUs nobody has."""
    return [slot for slot, gpu in enumerate(gpus) if gpu not in taken]
