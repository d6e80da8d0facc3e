"""The cells that the ranks of a mesh have run to their end: what a new process may have to run."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from monarch_nb.core.elastic import replay

if TYPE_CHECKING:
    from monarch_nb.core.wire.messages.cells import RunCell

MAX_CELLS: Final = 1_000
"""Of each mesh; the oldest is forgotten."""


class PastCell(NamedTuple):
    """A cell that ranks have run. `lacking` are those of them that have a new process since, which
    has not run it."""

    cell: RunCell
    lacking: tuple[int, ...]


class _Past(NamedTuple):
    cell: RunCell
    processes: dict[int, int]  # by rank, those that have run it last


class CellHistory:
    """Keeps the last cells of each mesh, by its number. Any thread may call."""

    def __init__(self) -> None:
        self._cells: dict[int, dict[tuple[str, str], _Past]] = {}  # each by its name and its code
        self._lock = threading.Lock()

    def add(self, mesh: int, cell: RunCell, processes: Mapping[int, int]) -> None:
        """Note a cell that these ranks have ended well, by their processes. One that is run again
        for ranks that lack it keeps its place."""
        with self._lock:
            kept = self._cells.setdefault(mesh, {})
            past = kept.setdefault((cell.what, cell.code), _Past(cell, {}))
            past.processes.update(processes)
            if len(kept) > MAX_CELLS:
                del kept[next(iter(kept))]

    def forget(self, mesh: int) -> None:
        """Drop the cells of a mesh that is down. Harmless when repeated."""
        with self._lock:
            self._cells.pop(mesh, None)

    def wanted(self, mesh: int, rank: int, cell: RunCell) -> list[RunCell]:
        """Return those that define what a cell uses on a rank, in the order in which they ran."""
        past = [each.cell for each in self._of(mesh) if rank in each.processes]
        return [past[index] for index in replay.wanted([each.code for each in past], cell.code)]

    def past(self, mesh: int, processes: Sequence[int]) -> list[PastCell]:
        """Return all of a mesh whose ranks have these processes now, in the order in which they
        ran."""
        return [
            PastCell(
                each.cell,
                tuple(
                    rank
                    for rank, process in enumerate(processes)
                    if each.processes.get(rank, process) != process
                ),
            )
            for each in self._of(mesh)
        ]

    def _of(self, mesh: int) -> list[_Past]:
        with self._lock:
            return [
                each._replace(processes=dict(each.processes))
                for each in self._cells.get(mesh, {}).values()
            ]
