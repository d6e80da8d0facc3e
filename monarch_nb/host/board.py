"""The status board of one host: ranks write it, the agent samples it while somebody looks.

The memory is a memfd: no name in a file system, nothing to clean up, no writing back of pages that
would make a rank wait. A rank maps it by the path in its boot record.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path
from typing import Any, Final, NamedTuple

from monarch_nb.core.board import BOARD_BYTES, SLOTS, BoardSlot, ReadCount

SAMPLE_S: Final = 0.1
_USAGE_S: Final = 1.0  # /proc is read this often at most
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_COARSE_BYTES: Final = 1 << 20  # a change of less is no news
Record = dict[str, Any]


class Board:
    """The memory, and who has which slot."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("monarch-board", os.MFD_CLOEXEC)
        os.posix_fallocate(self._fd, 0, BOARD_BYTES)
        self._memory = mmap.mmap(self._fd, BOARD_BYTES)
        self._free = list(range(SLOTS - 1, -1, -1))

    @property
    def path(self) -> str:
        """Where a process of this host opens it."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    @property
    def room(self) -> int:
        """How many slots are free."""
        return len(self._free)

    def take(self) -> int:
        """A free slot, empty."""
        index = self._free.pop()
        BoardSlot(self._memory, index).clear()
        return index

    def give_back(self, index: int) -> None:
        """The rank of this slot has ended."""
        self._free.append(index)

    def slot(self, index: int) -> BoardSlot:
        """To read it."""
        return BoardSlot(self._memory, index)

    def reads(self, index: int) -> ReadCount:
        """To count."""
        return ReadCount(self._memory, index)

    def close(self) -> None:
        """Unmap."""
        self._memory.close()
        os.close(self._fd)


class Usage(NamedTuple):
    """What a process uses."""

    rss_bytes: int = 0
    cpu_percent: int = 0


class _Seen:
    """One rank as it was last sampled."""

    def __init__(self, pid: int, slot: BoardSlot) -> None:
        self.pid = pid
        self.slot = slot
        self.usage = Usage()
        self.usage_at = float("-inf")
        self.cpu_s: float | None = None
        self.last: Record = {}


class Sampler:
    """Turns the board into records of what changed."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def add(self, proc: int, pid: int, slot: BoardSlot) -> None:
        """Include a rank."""
        self._seen[proc] = _Seen(pid, slot)

    def remove(self, proc: int) -> None:
        """Its rank has ended."""
        self._seen.pop(proc, None)

    def changes(self, now: float) -> list[Record]:
        """The records that differ from those of the last call."""
        changed = []
        for proc, seen in self._seen.items():
            record = _record(proc, seen, now)
            if record != seen.last:
                seen.last = record
                changed.append(_aged(record, now))
        return changed

    def all(self, now: float) -> list[Record]:
        """Every record as last sampled."""
        return [_aged(seen.last, now) for seen in self._seen.values() if seen.last]


def _record(proc: int, seen: _Seen, now: float) -> Record:
    if now - seen.usage_at >= _USAGE_S:
        _measure(seen, now)
    status = seen.slot.read()
    return {
        "proc": proc,
        "state": "starting" if status is None else status.state_name,
        "since_ns": 0 if status is None else status.since_ns,
        "what": "" if status is None else status.what,
        "beat": 0 if status is None else status.beat,
        "calls": 0 if status is None else status.calls,
        **seen.usage._asdict(),
    }


def _aged(record: Record, now: float) -> Record:
    """With an age, which other hosts understand, for the time on this host's clock."""
    since_ns = record["since_ns"]
    sent = {name: value for name, value in record.items() if name != "since_ns"}
    sent["since_s"] = max(0.0, round(now - since_ns / 1e9, 3)) if since_ns else 0.0
    return sent


def _measure(seen: _Seen, now: float) -> None:
    with contextlib.suppress(OSError, IndexError, ValueError):
        folder = Path(f"/proc/{seen.pid}")
        rss = int((folder / "statm").read_text().split()[1]) * _PAGE_BYTES
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS
        percent = 0.0
        if seen.cpu_s is not None:
            percent = (cpu_s - seen.cpu_s) / (now - seen.usage_at) * 100
        seen.usage = Usage(rss // _COARSE_BYTES * _COARSE_BYTES, round(percent))
        seen.cpu_s, seen.usage_at = cpu_s, now
