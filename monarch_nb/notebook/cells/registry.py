"""Which cell is which: tags, numbers, JupyterLab's ids, and the one that runs.

Rules of the file: every executed cell has a tag, an int that only grows; calls made while it runs
carry the tag. The shell's thread begins and ends cells; any thread may ask.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.notebook.cells.waiting import AFTER_S, NEVER_S, HangWatch, WaitingLine
from monarch_nb.notebook.debug.stdin import Asker, asker_of_running_cell
from monarch_nb.notebook.errors import CellError
from monarch_nb.notebook.layouts.live_displays import LiveDisplays
from monarch_nb.notebook.output.cell_output import CellOutput
from monarch_nb.notebook.output.flusher import Flusher
from monarch_nb.notebook.output.sinks import sink_of_running_cell
from monarch_nb.notebook.shells import cell_id_of
from monarch_nb.notebook.view.feed.inputs import CellAtWork

if TYPE_CHECKING:
    from monarch_nb.control.api import Control, Wait

_FIRST_TAGS: Final = 1 << 31
MAX_CELLS = 1_000
"""Output that comes later than this many cells is shown under the running one."""
MAX_LIVE = 64
"""Displays that change, of cells before so many others, are not kept."""


@dataclass(eq=False)
class Cell:
    """An executed cell, and how often the user has pressed stop while it ran.

    `cell_id` is JupyterLab's. `asker` can answer a debugger's questions; None: nobody can. Of one
    that `is_resumed`, which another kernel has begun, in the cell that runs, once that waits.
    """

    tag: int
    number: int
    source: str
    output: CellOutput
    waiting: WaitingLine
    cell_id: str | None = None
    outer: Cell | None = None
    asker: Asker | None = None
    is_resumed: bool = False
    started_s: float = field(default_factory=time.monotonic)
    is_asking: bool = False
    is_over: bool = False
    interrupted_s: float = 0.0
    _interrupts: int = 0

    def end(self) -> None:
        """Let what asks in it take its question back: it has run."""
        self.is_over = True

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """Say that a debugger asks in it, so it is the person who is waited for."""
        self.is_asking = True
        try:
            yield
        finally:
            self.is_asking = False

    def interrupted(self) -> None:
        """Count an interrupt of which the kernel has told the ranks."""
        self._interrupts += 1
        self.interrupted_s = time.monotonic()

    def claim_interrupt(self) -> bool:
        """Return True once for each interrupt that the ranks already know of."""
        self._interrupts -= 1
        if self._interrupts < 0:
            self._interrupts = 0
            return False
        return True


class CellRegistry:
    """The cells of a session."""

    def __init__(
        self, shell: InteractiveShell, control: Control, flusher: Flusher, live: LiveDisplays
    ) -> None:
        self._shell = shell
        self._control = control
        self._flusher = flusher
        self._live = live
        self._hangs = HangWatch(shell, control, self.look_again)
        self._cells: dict[int, Cell] = {}
        # Ranks of a kept mesh may know cells of several kernels, of which no two have one tag
        self._last_tag = secrets.randbelow(_FIRST_TAGS)
        self._running: Cell | None = None
        self._last_error: CellError | None = None
        self._failed_tag = 0
        self._watched_tag = 0  # of the cell whose end a person wants to be told; 0: none
        self._is_next_watched = False

    @property
    def running(self) -> Cell | None:
        """The cell that runs; of cells that run cells, the innermost."""
        return self._running

    @property
    def last_error(self) -> CellError | None:
        return self._last_error

    @property
    def failed_tag(self) -> int:
        """The tag of the cell that has raised last; 0: none has."""
        return self._failed_tag

    def begin(self, source: str, number: int) -> Cell:
        asker = asker_of_running_cell(self._shell)
        cell = self._running = self._new(source, number, self._running, asker)
        self._flusher.due(cell.waiting, cell.waiting.first_s)
        if self._is_next_watched and cell.cell_id is not None:
            self._watched_tag, self._is_next_watched = cell.tag, False
        return cell

    def end(self, cell: Cell, *, failed: bool) -> None:
        """Note that a cell has run, and that its output is on its way."""
        if failed:
            self._failed_tag = cell.tag
        self._running = cell.outer
        if cell.outer is None:
            cell.output.sink.end()

    def failed_on_ranks(self, error: CellError) -> None:
        """Keep the error for `%mesh errors`."""
        self._last_error = error

    def here(self) -> Cell:
        """Return the running cell; outside of cells, a new one for whoever calls."""
        return self._running or self._new("", self._shell.execution_count)

    def resumed(self, source: str, number: int) -> Cell:
        """Return a new one for what another kernel has begun; its output is the running cell's."""
        asker = asker_of_running_cell(self._shell)
        return self._new(source, number, asker=asker, is_resumed=True)

    def of(self, tag: int) -> Cell | None:
        """Return the cell for which ranks do something; of what is done for none, the latest."""
        return self._cells.get(tag) or self.latest()

    def latest(self) -> Cell | None:
        """Return the running cell, or the one that ran last."""
        return self._running or self._cells.get(self._last_tag)

    def at_work(self) -> CellAtWork | None:
        """Return the cell that a person sees running."""
        cell = self._outermost()
        if cell is None:
            return None
        return CellAtWork(cell.number, cell.cell_id, cell.started_s, self.is_watched(cell))

    def is_watched(self, cell: Cell) -> bool:
        """Whether a person wants to be told when it has ended."""
        return cell.tag == self._watched_tag

    def watch(self, *, is_next: bool) -> bool:
        """Have the page tell a person when the running cell has ended, or the next one. False
        where no page runs it."""
        cell = self._outermost()
        if cell is None or cell.cell_id is None:
            return False
        if is_next:
            self._is_next_watched = True
        else:
            self._watched_tag = cell.tag
        return True

    def _outermost(self) -> Cell | None:
        cell = self._running
        while cell is not None and cell.outer is not None:
            cell = cell.outer
        return cell

    def cell_id(self, number: int) -> str | None:
        """Return JupyterLab's id of the last cell with this number; None if it is not known."""
        ids = [cell.cell_id for cell in list(self._cells.values()) if cell.number == number]
        return next(filter(None, reversed(ids)), None)

    def tags(self, number: int) -> list[int]:
        return [cell.tag for cell in list(self._cells.values()) if cell.number == number]

    def tell_waits_after(self, seconds: float) -> None:
        """Tell them after so much silence of the running cell; not above 0: never."""
        if self._running is not None:
            waiting = self._running.waiting
            waiting.begin_after(seconds)
            self._flusher.due(waiting, waiting.first_s)

    def _new(
        self,
        source: str,
        number: int,
        outer: Cell | None = None,
        asker: Asker | None = None,
        *,
        is_resumed: bool = False,
    ) -> Cell:
        self._last_tag += 1
        tag = self._last_tag
        sink = sink_of_running_cell(self._shell)
        output = CellOutput(sink, live=self._live)
        after_s = AFTER_S if sink.is_watched else NEVER_S
        waits, alarm = partial(self._waits, tag), partial(self._hangs.alarm, tag)
        waiting = WaitingLine(output, waits, alarm, after_s)
        cell_id = cell_id_of(self._shell) if source else None
        cell = Cell(tag, number, source, output, waiting, cell_id, outer, asker, is_resumed)
        self._cells[tag] = cell
        self._cells.pop(tag - MAX_CELLS, None)
        if old := self._cells.get(tag - MAX_LIVE):
            old.output.forget()
        return cell

    def look_again(self) -> None:
        """Have the line below the running cell say what is known now. Any thread."""
        if (cell := self._running) is not None:
            self._flusher.due(cell.waiting, time.monotonic())

    def _waits(self, tag: int) -> Sequence[Wait]:
        cell, client = self._cells.get(tag), self._control.running_client()
        if client is None or (cell is not None and cell.is_asking):
            return ()  # at a prompt it is the person who is waited for
        return client.waits(tag)
