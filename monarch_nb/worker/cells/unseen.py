"""Cells of a kept mesh whose controller has not yet said that it knows how they ended.

Should it be gone, the next one is answered in its place. Under the queue's lock, but for reading.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from monarch_nb.core.wire.messages.keeping import CellFile, KeptCell

if TYPE_CHECKING:
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.core.wire.messages.cells import CellOutcome, RunCell

MAX_CELLS: Final = 1000
"""What a rank remembers; the oldest goes."""
MAX_FILES: Final = 100
Key = tuple[int, int]
"""Who has asked for a cell, and the port at which it is answered."""


@dataclass
class UnseenCell:
    """A cell as it was asked for; `asker` gets its `outcome`."""

    cell: RunCell
    tag: int
    asker: Message
    outcome: CellOutcome | None = None


class UnseenCells:
    """Remembers the cells of one rank."""

    def __init__(self) -> None:
        self._cells: dict[Key, UnseenCell] = {}
        self._files: dict[str, str] = {}  # also of cells that have been seen

    def add(self, cell: RunCell, message: Message) -> None:
        self._cells[message.source, message.reply] = UnseenCell(cell, message.tag, message)
        if len(self._cells) > MAX_CELLS:
            del self._cells[next(iter(self._cells))]
        self._files.pop(cell.filename, None)
        self._files[cell.filename] = cell.what
        if len(self._files) > MAX_FILES:
            del self._files[next(iter(self._files))]

    def original(self, key: Key) -> Key:
        """Return who has asked first for the cell that is answered there now."""
        for first, each in list(self._cells.items()):
            if (each.asker.source, each.asker.reply) == key:
                return first
        return key

    def asker(self, message: Message) -> Message:
        """Return the message that a cell is answered to, which this one has asked for."""
        found = self._cells.get((message.source, message.reply))
        return message if found is None else found.asker

    def ended(self, key: Key, outcome: CellOutcome) -> None:
        if (found := self._cells.get(key)) is not None:
            found.outcome = outcome

    def resume(self, key: Key, asker: Message) -> UnseenCell | None:
        """Have another one be answered."""
        if (found := self._cells.get(self.original(key))) is not None:
            found.asker = asker
        return found

    def forget(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._cells.pop(self.original(key), None)

    def files(self) -> list[CellFile]:
        """Name the files of the cells that came last."""
        return [CellFile(*each) for each in self._files.items()]

    def listed(self) -> list[KeptCell]:
        """Return them as the next controller is told."""
        return [
            KeptCell(
                source=each.asker.source,
                reply=each.asker.reply,
                tag=each.tag,
                what=each.cell.what,
                code=each.cell.code,
                filename=each.cell.filename,
                first_line=each.cell.first_line,
                keep=each.cell.keep,
                is_over=each.outcome is not None,
            )
            for each in list(self._cells.values())
        ]
