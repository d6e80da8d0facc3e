"""The stop button of a front end: it stops this process, and the ranks that work for a cell."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.notebook.cells import wording
from monarch_nb.notebook.cells.registry import CellRegistry
from monarch_nb.notebook.cells.unfinished import UnfinishedRuns
from monarch_nb.notebook.client_link import ClientLink
from monarch_nb.notebook.hangs import reports, whereabouts
from monarch_nb.notebook.output.router import OutputRouter

if TYPE_CHECKING:
    from monarch_nb.control.api import Control

STOP_AGAIN_S: Final = 0.5


@dataclass(frozen=True)
class StopButton:
    """Of a session; pressed in the kernel's control thread, which it does not block."""

    shell: InteractiveShell
    control: Control
    cells: CellRegistry
    link: ClientLink
    output: OutputRouter
    unfinished: UnfinishedRuns

    def press(self, stop_controller: Callable[[], None]) -> None:
        """Stop this process, and the ranks that work for the running cell.

        In this order: an answer of an interrupted rank could otherwise end the wait, and the signal
        would hit whatever the main thread does next.
        """
        cell, client = self.cells.running, self.link.client
        if cell is not None and client is not None:
            cell.interrupted()
        stop_controller()
        if cell is not None and client is not None:
            client.interrupt(cell.tag)
        elif cell is None and self.unfinished:
            threading.Thread(target=self._stop_ranks, name="monarch-stop", daemon=True).start()

    def _stop_ranks(self) -> None:
        # It was pressed while nothing runs here: it is meant for what ranks do
        self.unfinished.interrupt()
        cell = self.cells.latest()
        if cell is None:
            return
        for one in self.unfinished.living():
            one.run.wait(STOP_AGAIN_S)
            if busy := one.run.pending:
                found = self.control.stacks(one.run.mesh, busy, brief=True)
                where = whereabouts.lines(self.shell, found) + reports.who_is_stuck(found)
                told = wording.still_at_work("interrupted again", busy, where)
                self.output.say(cell, f"{told}\n")
            else:
                self.output.say(cell, f"cell In[{one.cell}] has ended on all ranks\n")
