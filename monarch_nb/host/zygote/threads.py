"""Threads of numeric libraries: none in the zygote, a fair share in each rank.

OpenBLAS (numpy) starts its threads when it is loaded and reads its variables only then; OpenMP
(torch) starts them at first use. So the zygote loads everything with one thread, and each rank is
told its share after the fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

_OPENBLAS_VARIABLE: Final = "OPENBLAS_NUM_THREADS"
_OPENBLAS_SETTERS: Final = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)
Setter = Callable[[int], object]


@contextlib.contextmanager
def single() -> Iterator[None]:
    """Let no library start a thread while it is loaded."""
    before = os.environ.get(_OPENBLAS_VARIABLE)
    os.environ[_OPENBLAS_VARIABLE] = "1"
    try:
        yield
    finally:
        os.environ.pop(_OPENBLAS_VARIABLE)
        if before is not None:
            os.environ[_OPENBLAS_VARIABLE] = before


def find_setters() -> list[Setter]:
    """Return what sets the number of threads of each OpenBLAS that this process has loaded."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[-1] for line in lines if "openblas" in line}
    found: list[Setter] = []
    for path in sorted(paths):
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(path)
            names = (name for name in _OPENBLAS_SETTERS if hasattr(library, name))
            found.extend(getattr(library, name) for name in names)
    return found


def share(host_size: int, setters: list[Setter]) -> None:
    """Give this rank its part of the cores it may use, unless the environment says otherwise."""
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // max(1, host_size))))
    wanted = _first_number(os.environ["OMP_NUM_THREADS"])
    if wanted and (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(wanted)
    blas = _first_number(os.environ.get(_OPENBLAS_VARIABLE, "")) or wanted
    for setter in setters if blas > 1 else ():
        setter(blas)


def _first_number(text: str) -> int:
    first = text.partition(",")[0].strip()  # OpenMP takes a list, a number for each level
    return int(first) if first.isdigit() else 0
