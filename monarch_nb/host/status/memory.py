"""The memory that ranks live in: whether there is room for more, and whether the out-of-memory
killer ended one.

Ranks live in the cgroup of their agent. The kernel says how many processes it killed, not which; so
each kill is credited to one SIGKILL that nobody here sent, seen shortly after.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import psutil

_CREDIT_S: Final = 2.0
_ROOTS: Final = ((Path("/sys/fs/cgroup/memory"), "memory"), (Path("/sys/fs/cgroup"), ""))
_COUNTERS: Final = ("memory.oom_control", "memory.events")  # version 1, version 2
_LIMITS: Final = ("memory.limit_in_bytes", "memory.max")
_PEAKS: Final = ("memory.max_usage_in_bytes", "memory.peak")
_USED: Final = ("memory.usage_in_bytes", "memory.current")
_STATISTICS: Final = ("memory.stat",)
_CACHE: Final = {"inactive_file", "total_inactive_file"}  # given back when memory is short

_FORKED_BYTES: Final = 16 << 20
_STARTED_BYTES: Final = 200 << 20
"""What a rank takes before it does anything: as a fork, whose pages are the zygote's but for 11 MB
and the tables of the kernel; as a process with a torch of its own."""


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

    def check_room(self, forked: int, started: int) -> None:
        """Raise `ValueError` where so many more ranks would not fit, however little they do."""
        needed, free = forked * _FORKED_BYTES + started * _STARTED_BYTES, self.free()
        if needed > free:
            raise ValueError(
                f"{forked + started} ranks need about {_gib(needed)} of memory before they do "
                f"anything, {_gib(free)} are free on this host"
            )

    def free(self) -> int:
        """Return the bytes that processes of the group may still take."""
        free: int = psutil.virtual_memory().available
        limit, used = self._read(_LIMITS).strip(), self._read(_USED).strip()
        if limit.isdigit() and used.isdigit():
            free = min(free, max(0, int(limit) - int(used) + self._cache()))
        return free

    def _cache(self) -> int:
        found = (line.split() for line in self._read(_STATISTICS).splitlines())
        return max((int(value) for name, value in found if name in _CACHE), default=0)

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


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def _size(text: str) -> str:
    return f"{int(text) / (1 << 20):.0f} MiB" if text.isdigit() else text or "unknown"
