"""What agents have told of their boards, on this process's clock, by process.

Rule: the inbox thread writes, whoever makes a snapshot takes what has changed. A host has a clock
of its own: its offset is the smallest that was seen, that of the fastest message. Rows are kept as
they came, a thousand of them ten times a second: only what is looked at is made something of.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from monarch_nb.control.status.snapshots import Usage
from monarch_nb.core.wire.messages.agents import Board, Row

NOTHING = Usage()

URGENT: Final = frozenset(("starting", "paused"))
"""States whose end and, for the second, whose begin people are to see at once."""


class Told(NamedTuple):
    """When rows were sampled, on our clock, and what the clock of their host is behind it."""

    offset_s: float
    seen_at: float

    def time_s(self, there_ns: int) -> float:
        """Return a time of that host, on our clock; 0.0 for 0, which stands for an unknown one."""
        return there_ns / 1e9 + self.offset_s if there_ns else 0.0


class Boards:
    """Records and usage of all ranks that somebody looks at."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[Row, Told]] = {}
        self.usage: dict[int, Usage] = {}
        self._changed: set[int] = set()
        self._offsets: dict[int, float] = {}  # of the agents' clocks
        self._news = threading.Condition()

    def tell(self, agent: int, board: Board, now: float) -> bool:
        """Take a `board` message of an agent. True if it is urgent."""
        sampled_at = board.now_ns / 1e9
        with self._news:
            offset = min(self._offsets.get(agent, float("inf")), now - sampled_at)
            self._offsets[agent] = offset
            told = Told(offset, sampled_at + offset)
            is_urgent = any(self._is_urgent(row) for row in board.ranks)
            new = {row[0]: (row, told) for row in board.ranks}
            self.rows.update(new)
            self._changed.update(new)
            for process, *usage in board.usage:
                self.usage[process] = Usage(*usage)
                self._changed.add(process)
            self._news.notify_all()
        return is_urgent

    def _is_urgent(self, row: Row) -> bool:
        process, state, *_ = row
        known = self.rows.get(process)
        before = "starting" if known is None else known[0][1]
        return state != before and not URGENT.isdisjoint((state, before))

    def touch(self, process: int) -> None:
        with self._news:
            self._changed.add(process)
            self._news.notify_all()

    def wake(self) -> None:
        """Let who waits ask again whether it is done."""
        with self._news:
            self._news.notify_all()

    def take_changed(self) -> set[int]:
        """Return the processes with news since the last call."""
        with self._news:
            changed, self._changed = self._changed, set()
        return changed

    def wait_for(self, done: Callable[[], bool], limit_s: float) -> None:
        """Wait until `done`, which is asked after all that agents tell."""
        with self._news:
            self._news.wait_for(done, limit_s)

    def keep(self, processes: Collection[int]) -> None:
        with self._news:
            for process in self.rows.keys() - processes:
                del self.rows[process]
            for process in self.usage.keys() - processes:
                del self.usage[process]

    def clear(self) -> None:
        """Forget what is known, which will be old: nobody looks any more."""
        self.keep(())
        self._offsets.clear()
