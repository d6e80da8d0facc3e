"""Whether the out-of-memory killer did it: what the agent's memory cgroup counted.

Ranks live in the cgroup of their agent. The kernel says how many processes it killed, not which; so
each kill is credited to one SIGKILL that nobody here sent, seen shortly after.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

_CREDIT_S: Final = 2.0
_ROOTS: Final = ((Path("/sys/fs/cgroup/memory"), "memory"), (Path("/sys/fs/cgroup"), ""))
_COUNTERS: Final = ("memory.oom_control", "memory.events")  # version 1, version 2
_LIMITS: Final = ("memory.limit_in_bytes", "memory.max")
_PEAKS: Final = ("memory.max_usage_in_bytes", "memory.peak")


class KillCounter:
    """Credits the kernel's kills to ranks. Pure: it is told count and time."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._credit = 0
        self._until = 0.0

    def claim(self, count: int, now: float) -> bool:
        """Return whether one of the kills of the last moments can be this one."""
        if count > self._count:
            self._credit = count - self._count + (self._credit if now < self._until else 0)
            self._until = now + _CREDIT_S
            self._count = count
        if self._credit == 0 or now >= self._until:
            return False
        self._credit -= 1
        return True


class MemoryGroup:
    def __init__(self) -> None:
        self._folder = _folder()
        self._kills = KillCounter(self.kills())

    def kills(self) -> int:
        """Return how many processes of the group the kernel has killed for memory."""
        for line in self._read(_COUNTERS).splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
        return 0

    def killed(self, now: float) -> bool:
        """Return whether a SIGKILL that was just seen came from the out-of-memory killer."""
        return self._kills.claim(self.kills(), now)

    def reason(self) -> str:
        limit, peak = self._read(_LIMITS).strip(), self._read(_PEAKS).strip()
        return f"out of memory (limit {_size(limit)}, peak {_size(peak)})"

    def _read(self, names: tuple[str, ...]) -> str:
        if self._folder is not None:
            for name in names:
                with contextlib.suppress(OSError):
                    return (self._folder / name).read_text()
        return ""


def _folder() -> Path | None:
    # in a container the group may be shown as the root
    own = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            own.update(dict.fromkeys(controllers.split(","), path))
    for root, controller in _ROOTS:
        for folder in (root / own.get(controller, "/").lstrip("/"), root):
            if any((folder / name).exists() for name in _COUNTERS):
                return folder
    return None


def _size(text: str) -> str:
    return f"{int(text) / (1 << 20):.0f} MiB" if text.isdigit() else text or "unknown"
