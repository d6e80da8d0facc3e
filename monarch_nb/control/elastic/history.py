"""The cells that the ranks of a mesh have run to their end: what a new process may have to run."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection
from typing import TYPE_CHECKING, Final, NamedTuple

from monarch_nb.core.elastic import replay

if TYPE_CHECKING:
    from monarch_nb.core.wire.messages.cells import RunCell

MAX_CELLS: Final = 1_000
"""Of each mesh; the oldest is forgotten."""


class _Past(NamedTuple):
    cell: RunCell
    ranks: frozenset[int]


class CellHistory:
    """Keeps the last cells of each mesh, by its number. Any thread may call."""

    def __init__(self) -> None:
        self._cells: dict[int, deque[_Past]] = {}
        self._lock = threading.Lock()

    def add(self, mesh: int, cell: RunCell, ranks: Collection[int]) -> None:
        """Note a cell that these ranks have ended well."""
        with self._lock:
            kept = self._cells.setdefault(mesh, deque(maxlen=MAX_CELLS))
            kept.append(_Past(cell, frozenset(ranks)))

    def forget(self, mesh: int) -> None:
        """Drop the cells of a mesh that is down. Harmless when repeated."""
        with self._lock:
            self._cells.pop(mesh, None)

    def wanted(self, mesh: int, rank: int, cell: RunCell) -> list[RunCell]:
        """Return those that define what a cell uses on a rank, in the order in which they ran."""
        with self._lock:
            past = [each.cell for each in self._cells.get(mesh, ()) if rank in each.ranks]
        return [past[index] for index in replay.wanted([each.code for each in past], cell.code)]
