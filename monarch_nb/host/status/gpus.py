"""What processes use of this host's GPUs, as NVML tells it, once a second while somebody looks.

A rank's GPUs are those on which its process computes. NVML may take long, and hangs with a GPU that
is lost, so a thread of its own asks it. Where the library `pynvml` or the driver is missing, there
are no figures, and that is all.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Final

GpuUse = tuple[int | None, int | None]
"""Percent of the time in which its busiest GPU computed, and bytes on all of them."""

ASK_S: Final = 1.0
_UNKNOWN: Final[GpuUse] = (None, None)


class Gpus:
    """`use_of(pid)`, between `look` and `rest`. `load` gives the module of NVML."""

    def __init__(
        self, load: Callable[[], ModuleType] = lambda: importlib.import_module("pynvml")
    ) -> None:
        self._load = load
        self._use: dict[int, GpuUse] = {}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def use_of(self, pid: int) -> GpuUse:
        return self._use.get(pid, _UNKNOWN)

    def look(self) -> None:
        if self._thread is None:
            self._over = over = threading.Event()
            self._thread = threading.Thread(
                target=self._watch, args=(over,), name="monarch-gpus", daemon=True
            )
            self._thread.start()

    def rest(self) -> None:
        self._over.set()
        self._thread = None
        self._use = {}

    def _watch(self, over: threading.Event) -> None:
        with contextlib.suppress(Exception):  # no module, no driver, no device: no figures
            nvml = self._load()
            nvml.nvmlInit()
            try:
                self._ask(nvml, over)
            finally:
                nvml.nvmlShutdown()

    def _ask(self, nvml: ModuleType, over: threading.Event) -> None:
        count = nvml.nvmlDeviceGetCount()
        devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        while devices and not over.is_set():
            use = use_of_all(nvml, devices)
            if not over.is_set():
                self._use = use
            over.wait(ASK_S)


def use_of_all(nvml: ModuleType, devices: list[object]) -> dict[int, GpuUse]:
    """Ask for the use by process id. A device that does not answer hides no other."""
    found: dict[int, GpuUse] = {}
    for device in devices:
        with contextlib.suppress(Exception):
            processes = nvml.nvmlDeviceGetComputeRunningProcesses(device)
            percent = _percent(nvml, device) if processes else None
            for each in processes:
                found[each.pid] = _more(found.get(each.pid), percent, each.usedGpuMemory)
    return found


def _percent(nvml: ModuleType, device: object) -> int | None:
    with contextlib.suppress(Exception):  # not told of a part of a GPU (MIG)
        return int(nvml.nvmlDeviceGetUtilizationRates(device).gpu)
    return None


def _more(before: GpuUse | None, percent: int | None, used: int | None) -> GpuUse:
    if before is None:
        return percent, used
    percents = [each for each in (before[0], percent) if each is not None]
    sizes = [each for each in (before[1], used) if each is not None]
    return max(percents, default=None), sum(sizes) if sizes else None
