"""Processes that look at the ranks of this host, and drive nothing: what these print they read from
the logs, which kept ranks write.

Rule: one asks a few times a second for what is new. One that has not asked for `FOLLOW_S` has gone:
nobody else tells of its end, where it is a process of another host.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from monarch_nb.core.wire.frames import OUTPUT_PORT
from monarch_nb.core.wire.messages.codec import Refused
from monarch_nb.core.wire.messages.keeping import Followed, Printed
from monarch_nb.data.record_log import FollowedLog, output_log

FOLLOW_S: Final = 30.0
PART_BYTES: Final = 1 << 18
_GONE: Final = f"it had not asked for {FOLLOW_S:g} s, and is not known here any more"


class Followers:
    """Knows who looks, and how far each has read the logs in the run dir."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._logs: dict[int, dict[int, FollowedLog]] = {}  # by who looks, and whose
        self._asked_at: dict[int, float] = {}

    def begin(self, follower: int, now: float) -> None:
        """Know it from now on; what it asks for first is what was logged before."""
        self._forget(follower)
        self._logs[follower], self._asked_at[follower] = {}, now

    def read(self, follower: int, procs: Sequence[int], now: float) -> Followed | Refused:
        """Return what these have logged since it has asked last, `PART_BYTES` at most, or a
        little more."""
        if follower not in self._logs:
            return Refused(_GONE)
        self._asked_at[follower] = now
        logs = self._logs_of(follower, procs)
        found: list[Printed] = []
        room = PART_BYTES
        for proc, log in list(logs.items()):
            logs[proc] = logs.pop(proc)  # of the next part the others come first
            for record in log.read(room):
                if record.port == OUTPUT_PORT:
                    found.append(Printed(proc, record.payload.decode(errors="replace")))
                room -= len(record.payload)
            if log.has_more or room <= 0:
                return Followed(found, is_all=False)
        return Followed(found, is_all=True)

    def due(self) -> float | None:
        """Return when `expire` has something to do, unless somebody asks."""
        return min(self._asked_at.values()) + FOLLOW_S if self._asked_at else None

    def expire(self, now: float) -> list[int]:
        """Forget those that have gone; return them."""
        gone = [each for each, asked in self._asked_at.items() if asked + FOLLOW_S <= now]
        for each in gone:
            self._forget(each)
        return gone

    def _logs_of(self, follower: int, procs: Sequence[int]) -> dict[int, FollowedLog]:
        logs = self._logs[follower]
        for proc in logs.keys() - set(procs):
            logs.pop(proc).close()
        for proc in procs:
            if proc not in logs:
                logs[proc] = FollowedLog(output_log(self._run_dir, proc))
        return logs

    def _forget(self, follower: int) -> None:
        self._asked_at.pop(follower, None)
        for log in self._logs.pop(follower, {}).values():
            log.close()
