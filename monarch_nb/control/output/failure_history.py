"""One failure, and those that are over: kept after their ranks were started again, until somebody
dismisses them.

Rule of the file: no clock, no thread; whoever keeps a history lets one thread at a time use it. The
last 100 are kept, of all meshes together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from monarch_nb.core.errors.records import ErrorRecord
from monarch_nb.core.text.units import duration

MAX_PAST: Final = 100
STOPPED: Final = "its mesh was stopped"


@dataclass(frozen=True)
class Failure:
    """Errors that arose in the same way.

    Attributes:
        id: tells failures apart, those that are over too, for the life of the client.
        ranks: those that had it, in order.
        record: the error of the one that had it last; messages may differ by rank.
        what: what it ran, as on the board: the cell, or the endpoint.
        at: when it happened last (`time.monotonic()`).
        count: how often, on all ranks together.
        came_at: the same time on the clock (`time.time()`).
        lines: the last lines that one of them had written by then.
        writer: which rank that is.
    """

    id: int
    ranks: tuple[int, ...]
    record: ErrorRecord
    what: str
    at: float
    count: int
    came_at: float = 0.0
    lines: tuple[str, ...] = ()
    writer: int = 0


@dataclass(frozen=True)
class PastFailure:
    """A failure that is over, on a mesh of this name, and what became of it."""

    mesh: str
    failure: Failure
    became: str


class FailureHistory:
    """Those that are over.

    Example:
        >>> FailureHistory().of("mesh0")
        ()
    """

    def __init__(self) -> None:
        self._past: deque[PastFailure] = deque(maxlen=MAX_PAST)
        self._shown: dict[str, tuple[PastFailure, ...]] = {}

    def add(self, past: PastFailure) -> None:
        self._past.append(past)
        self._shown.clear()

    def of(self, mesh: str) -> tuple[PastFailure, ...]:
        """Return those of a mesh, what was over last first; the same object while nothing
        changes."""
        if mesh not in self._shown:
            self._shown[mesh] = tuple(each for each in reversed(self._past) if each.mesh == mesh)
        return self._shown[mesh]

    def everything(self) -> Sequence[PastFailure]:
        return tuple(self._past)

    def dismiss(self, mesh: str, failure: int | None) -> int:
        """Forget one of a mesh, or all of them (None). Returns how many it were."""
        left = [
            each
            for each in self._past
            if each.mesh != mesh or failure not in (None, each.failure.id)
        ]
        gone = len(self._past) - len(left)
        self._past = deque(left, MAX_PAST)
        self._shown.clear()
        return gone


def replaced(*, died: bool, after_s: float) -> str:
    """Say that a rank has a new process, so long after it failed.

    Example:
        >>> replaced(died=True, after_s=0.42)
        'healed 0.4 s later: a new process'
    """
    return f"{'healed' if died else 'started again'} {duration(after_s)} later: a new process"


def parted(failure: Failure, ranks: Sequence[int]) -> tuple[Failure | None, Failure | None]:
    """Return what is over of a failure and what is left when these ranks have new processes.

    Of a death each rank is over by itself. What was raised is over with the last of its ranks:
    nobody wants it told twice.
    """
    over = tuple(rank for rank in failure.ranks if rank in ranks)
    left = tuple(rank for rank in failure.ranks if rank not in ranks)
    if not left:
        return failure, None
    if not (over and failure.record.died):
        return None, failure
    count = max(len(left), failure.count - len(over))
    past = replace(failure, ranks=over, count=max(len(over), failure.count - count))
    return past, replace(failure, ranks=left, count=count)
