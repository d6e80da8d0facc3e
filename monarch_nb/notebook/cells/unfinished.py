"""Ranks that still work for a cell whose prompt has been given back.

Rule: a new cell on such a rank waits for it for a bounded time, then says which rank it is, what it
does and what can be done. A rank that nobody needs is not waited for.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from monarch_nb.core.errors.folding import rank_list, rank_words
from monarch_nb.notebook.errors import MagicError
from monarch_nb.notebook.runtime import CellRun

WAIT_S = 3.0


@dataclass(frozen=True)
class Straggler:
    """A run that has not ended on every rank."""

    mesh: str
    run: CellRun
    cell: int
    started_s: float

    def busy(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """Those of the ranks that still run it."""
        return tuple(sorted(set(self.run.pending).intersection(ranks)))


class Stragglers:
    """What was left running by interrupted cells."""

    def __init__(self) -> None:
        self._left: list[Straggler] = []

    def add(self, straggler: Straggler) -> None:
        """Remember a run that goes on."""
        self._left.append(straggler)

    def interrupt(self) -> None:
        """Interrupt them again."""
        for one in self.living():
            one.run.interrupt()

    def living(self) -> list[Straggler]:
        """Those that have still not ended."""
        self._left = [one for one in self._left if one.run.pending]
        return list(self._left)

    def wait_for(self, mesh: str, ranks: Iterable[int], timeout_s: float = WAIT_S) -> None:
        """Wait until these ranks are free. Raises `MagicError` that names those that are not."""
        wanted = tuple(ranks)
        deadline = time.monotonic() + timeout_s
        for one in self.living():
            if one.mesh != mesh:
                continue
            while one.busy(wanted) and (left := deadline - time.monotonic()) > 0:
                one.run.wait(min(left, 0.05))
            if busy := one.busy(wanted):
                raise MagicError(describe(one, busy))


def describe(one: Straggler, busy: tuple[int, ...]) -> str:
    """`rank 3 is still busy with cell In[4], started 12 s ago; ...`."""
    verb = "is" if len(busy) == 1 else "are"
    age_s = time.monotonic() - one.started_s
    return (
        f"{rank_words(busy)} {verb} still busy with cell In[{one.cell}], "
        f"started {age_s:.0f} s ago; wait, or %mesh interrupt --kill {rank_list(busy)}"
    )
