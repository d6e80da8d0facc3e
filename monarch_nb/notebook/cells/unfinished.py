"""What ranks still do for cells whose prompt has been given back, and the stop button, which ends
it.

Rule: a new cell on a rank that runs an interrupted one waits for it for a bounded time, then says
which rank it is, what it does and what can be done. A rank that nobody needs is not waited for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.core.errors.folding import rank_list, rank_words
from monarch_nb.core.text.units import are
from monarch_nb.notebook import hangs
from monarch_nb.notebook.cells import wording
from monarch_nb.notebook.cells.registry import CellRegistry
from monarch_nb.notebook.client_link import ClientLink
from monarch_nb.notebook.errors import MagicError
from monarch_nb.notebook.output.router import OutputRouter

if TYPE_CHECKING:
    from monarch_nb.control.api import CellRun, Control, Stack

WAIT_S = 3.0

STOP_AGAIN_S: Final = 0.5


class Stoppable(Protocol):
    """A cell in the background (a `MeshCell`)."""

    def stop(self) -> None: ...


@dataclass(frozen=True)
class UnfinishedRun:
    """The run of an interrupted cell that has not ended on every rank."""

    mesh: str
    run: CellRun
    cell: int
    started_s: float

    def busy(self, ranks: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(set(self.run.pending).intersection(ranks)))


class UnfinishedRuns:
    """Cells in the background, and what was left running by interrupted cells."""

    def __init__(self) -> None:
        self._background: list[Stoppable] = []
        self._left: list[UnfinishedRun] = []

    def begin(self, cell: Stoppable) -> None:
        self._background.append(cell)

    def end(self, cell: Stoppable) -> None:
        self._background.remove(cell)

    def add(self, run: UnfinishedRun) -> None:
        self._left.append(run)

    def __bool__(self) -> bool:
        return bool(self._background or self.living())

    def interrupt(self) -> None:
        """Stop the cells in the background; interrupt again what is left of others."""
        for cell in list(self._background):
            cell.stop()
        for one in self.living():
            one.run.interrupt()

    def living(self) -> list[UnfinishedRun]:
        """Return what was left and has still not ended."""
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


def describe(one: UnfinishedRun, busy: tuple[int, ...]) -> str:
    """Return `rank 3 is still busy with cell In[4], started 12 s ago; ...`."""
    age_s = time.monotonic() - one.started_s
    return (
        f"{rank_words(busy)} {are(busy)} still busy with cell In[{one.cell}], "
        f"started {age_s:.0f} s ago; wait, or %mesh interrupt --kill {rank_list(busy)}"
    )


@dataclass(frozen=True)
class StopButton:
    """The stop button of a session; it works in the control thread, which it does not block."""

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
            found: Mapping[int, Sequence[Stack]] = {}
            if busy := one.run.pending:
                found = self.control.stacks(one.run.mesh, busy, brief=True)
            if busy := one.run.pending:  # some may have ended meanwhile
                found = {rank: stacks for rank, stacks in found.items() if rank in busy}
                where = hangs.where_and_why(self.shell, found)
                told = wording.still_at_work("interrupted again", busy, where)
                self.output.say(cell, f"{told}\n")
            else:
                self.output.say(cell, f"cell In[{one.cell}] has ended on all ranks\n")
