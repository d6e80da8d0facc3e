"""The status board of one host: ranks write it, the agent samples it while somebody looks.

The memory is a memfd: no name in a file system, nothing to clean up, no writing back of pages that
would make a rank wait. A rank maps it by the path in its boot record.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from monarch_nb.core.wire.board import (
    BOARD_BYTES,
    SLOTS,
    STARTING,
    STATES,
    BoardSlot,
    ReadCount,
    Status,
    parse,
)
from monarch_nb.core.wire.messages import agents as messages
from monarch_nb.core.wire.messages.agents import Row
from monarch_nb.host.status.gpus import Gpus

FASTEST_S: Final = 0.1
SLOWEST_S: Final = 10.0
_USAGE_S: Final = 1.0  # /proc is read this often at most
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_COARSE_BYTES: Final = 1 << 20  # a change of less is no news


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
        return len(self._free)

    def take(self) -> int:
        index = self._free.pop()
        BoardSlot(self._memory, index).clear()
        return index

    def give_back(self, index: int) -> None:
        self._free.append(index)

    def slot(self, index: int) -> BoardSlot:
        return BoardSlot(self._memory, index)

    def reads(self, index: int) -> ReadCount:
        return ReadCount(self._memory, index)

    def close(self) -> None:
        self._memory.close()
        os.close(self._fd)


def no_gpu(_: int) -> tuple[int | None, int | None]:
    return None, None


class Usage(NamedTuple):
    cpu_percent: int = 0
    rss_bytes: int = 0
    gpu_percent: int | None = None
    gpu_bytes: int | None = None


class _Seen:
    def __init__(self, proc: int, pid: int, slot: BoardSlot) -> None:
        self.proc = proc
        self.pid = pid
        self.slot = slot
        self.raw = b""
        self.row: Row = _row(proc, None)
        self.usage = Usage()
        self.cpu_s: float | None = None
        self.measured_at = 0.0


class News(NamedTuple):
    """What has changed: rows of the board, and of usage, as in docs/protocol.md."""

    ranks: list[Row]
    usage: list[Row]


class Sampler:
    """Turns the board into records of what changed.

    `gpu(pid)` tells the share of time and the memory that a process uses of its GPUs.
    """

    def __init__(self, gpu: Callable[[int], tuple[int | None, int | None]] = no_gpu) -> None:
        self._seen: dict[int, _Seen] = {}
        self._gpu = gpu
        self._measure_at = float("-inf")

    def add(self, proc: int, pid: int, slot: BoardSlot) -> None:
        self._seen[proc] = _Seen(proc, pid, slot)

    def remove(self, proc: int) -> None:
        self._seen.pop(proc, None)

    def changes(self, now: float) -> News:
        """Return what differs from the last call."""
        ranks = [seen.row for seen in self._seen.values() if _has_news(seen)]
        changed = [seen for seen in self._to_measure(now) if self._measure(seen, now)]
        return News(ranks, [_usage_row(seen) for seen in changed])

    def _to_measure(self, now: float) -> list[_Seen]:
        # all of them each second; one that has just come at once
        if now < self._measure_at:
            return [seen for seen in self._seen.values() if seen.cpu_s is None]
        self._measure_at = now + _USAGE_S
        return list(self._seen.values())

    def all(self) -> News:
        """Return everything as it is now; `changes` will tell of it all the same."""
        return News(self.rows(self._seen), [_usage_row(each) for each in self._seen.values()])

    def rows(self, procs: Iterable[int]) -> list[Row]:
        """Read the rows of these ranks now; `changes` will tell of them all the same."""
        found = [self._seen[proc] for proc in procs if proc in self._seen]
        return [_row_now(each) for each in found]

    def _measure(self, seen: _Seen, now: float) -> bool:
        before = seen.usage
        with contextlib.suppress(OSError, IndexError, ValueError):
            cpu_s, rss = _usage_of(seen.pid)
            percent = 0.0
            if seen.cpu_s is not None:
                percent = (cpu_s - seen.cpu_s) / (now - seen.measured_at) * 100
            seen.cpu_s, seen.measured_at = cpu_s, now
            coarse = rss // _COARSE_BYTES * _COARSE_BYTES
            seen.usage = Usage(round(percent), coarse, *self._gpu(seen.pid))
        return seen.usage != before


def _has_news(seen: _Seen) -> bool:
    # nearly always it is the one of last time
    raw = seen.slot.raw()
    if raw == seen.raw:
        return False
    record = seen.slot.whole()
    if record is None:  # nothing was written yet, or the writer has died in the middle
        is_new, seen.raw = not seen.raw, raw
        return is_new
    if record == seen.raw:
        return False
    seen.raw = record
    seen.row = _row(seen.proc, parse(record))
    return True


def _row_now(seen: _Seen) -> Row:
    # a writer that has died in the middle leaves what it wrote before
    status = seen.slot.read()
    return seen.row if status is None else _row(seen.proc, status)


def _row(proc: int, status: Status | None) -> Row:
    if status is None:
        return [proc, STATES[STARTING], 0, "", 0, 0, 0, 0, 0]
    _, since_ns, what, busy_ns, calls, failed, queue, beat = status
    return [proc, status.state_name, since_ns, what, busy_ns, queue, calls, failed, beat]


def _usage_row(seen: _Seen) -> Row:
    return [seen.proc, *seen.usage]


def _usage_of(pid: int) -> tuple[float, int]:
    # seconds of processor time, bytes of memory
    fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.read(fd, 4096)
    finally:
        os.close(fd)
    fields = text.rpartition(b")")[2].split(None, 23)
    return (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[21]) * _PAGE_BYTES


class Viewers:
    """Processes that look at the board, each with the period it asked for.

    All are told at the pace of the most eager; nothing is sampled while nobody looks.
    """

    def __init__(self, gpus: Gpus | None = None) -> None:
        self._gpus = gpus or Gpus()
        self.sampler = Sampler(self._gpus.use_of)
        self._periods: dict[int, float] = {}
        self._sample_at = 0.0

    def begin(self, viewer: int, period_s: float, now: float) -> messages.Board:
        """Let it look from now on, or at another pace; return everything as it is now."""
        self._periods[viewer] = min(SLOWEST_S, max(FASTEST_S, period_s))
        self._gpus.look()
        if self._periods.keys() == {viewer}:  # others wait for what has changed
            self.sampler.changes(now)
            self._sample_at = now + self._period_s()
        self._sample_at = min(self._sample_at, now + self._period_s())
        return _told(self.sampler.all(), now)

    def end(self, viewer: int) -> None:
        if self._periods.pop(viewer, None) is not None and not self._periods:
            self._gpus.rest()

    def due(self) -> float | None:
        return self._sample_at if self._periods else None

    def news(self, now: float) -> tuple[list[int], messages.Board] | None:
        """Return whom to tell what, if a sample is due and something has changed."""
        if not self._periods or now < self._sample_at:
            return None
        self._sample_at = now + self._period_s()
        changes = self.sampler.changes(now)
        if not changes.ranks and not changes.usage:
            return None
        return list(self._periods), _told(changes, now)

    def _period_s(self) -> float:
        return min(self._periods.values())


def _told(news: News, now: float) -> messages.Board:
    # ranks may have written while others were read
    now_ns = max([int(now * 1e9), *(row[2] for row in news.ranks)])
    return messages.Board(now_ns, news.ranks, news.usage)
