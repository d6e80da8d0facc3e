"""What ranks send back goes under the cell that caused it, however late; failures too.

Rule of the file: `route` and `notice` are called by the client's inbox thread and do not block.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.notebook.cells.registry import Cell, CellRegistry
from monarch_nb.notebook.client_link import ClientLink
from monarch_nb.notebook.layouts.live_displays import LiveDisplays, Owner
from monarch_nb.notebook.output.comm_relay import CommRelay
from monarch_nb.notebook.output.flusher import Flusher
from monarch_nb.notebook.output.sinks import Sink

if TYPE_CHECKING:
    from monarch_nb.control.api import Client, Mended, MeshFailure, OutputEvent


class OutputRouter:
    """Between the client and the cells of a session."""

    def __init__(
        self,
        shell: InteractiveShell,
        cells: CellRegistry,
        link: ClientLink,
        flusher: Flusher,
        live: LiveDisplays,
    ) -> None:
        self._cells = cells
        self._flusher = flusher
        self._live = live
        self._comms = CommRelay(shell, self._sink_of, flusher.due, link.send_comm)
        self._heard: set[Owner] = set()  # since the last cell's end
        self._notices: list[str] = []
        self._killed: set[int] = set()
        link.on_attach(self._listen)

    def _listen(self, client: Client) -> None:
        client.on_output(self.route)
        client.on_failure(self.notice)
        client.on_pulse(self._cells.look_again)
        client.on_groups_made(self._made_again)
        client.on_mended(self._mended)
        client.on_restarted(self._restarted)
        client.comms.listen(self._comms)

    def route(self, event: OutputEvent) -> None:
        """Show an output event under the cell that caused it."""
        live = self._live.find(event)
        cell = self._cells.of(event.tag)
        output = live.owner if live else cell.output if cell else None
        if output is not None:
            self._flusher.due(output, output.add(event))
            self._heard.add(output)

    def notice(self, failure: MeshFailure) -> None:
        """Tell of a failure that no call waits for, under the running cell or the next."""
        if failure.ended is not None and failure.ended.process in self._killed:
            return
        self._tell(f"{failure.report()}\n")

    def _made_again(self, mesh: str, what: str) -> None:
        # its ranks have new process groups
        self._tell(f"{mesh}: {what}\n")

    def _mended(self, mended: Mended) -> None:
        # a loop goes on: said where it stands
        if (cell := self._cells.of(mended.tag)) is not None:
            self.say(cell, mended.text)

    def _restarted(self, line: str) -> None:
        # actors have come back by themselves
        self._tell(f"{line}\n")

    def _tell(self, text: str) -> None:
        if (cell := self._cells.running) is None:
            self._notices.append(text)
        else:
            self.say(cell, text)

    def expect_exits(self, processes: Iterable[int]) -> None:
        """Do not tell that these have failed: the user ends them."""
        self._killed.update(processes)

    def begin(self, cell: Cell) -> None:
        while self._notices:
            cell.output.write("stderr", self._notices.pop(0))

    def end(self, cell: Cell) -> None:
        """Send everything that came before the end of the cell."""
        cell.waiting.end()
        heard, self._heard = self._heard, set()
        for other in heard:  # what earlier cells go on with has said this before what ends here
            other.settle()
        cell.output.end()
        self._comms.settle()

    def say(self, cell: Cell, text: str) -> None:
        """Write a line of ours on the cell's stderr, now."""
        cell.output.write("stderr", text)
        self._flusher.due(cell.output, time.monotonic())

    def follow(self, stream: str, text: str) -> bool:
        """Queue what the running cell prints behind what ranks have said; False: nothing waits."""
        cell = self._cells.running
        if cell is None or not cell.output.follow(stream, text):
            return False
        self._flusher.due(cell.output, time.monotonic())
        return True

    def make_room(self) -> None:
        """Take back the line that stands alone below the running cell: it shows something."""
        if (cell := self._cells.running) is not None:
            cell.output.make_room()

    def settle(self) -> None:
        """Send what waits: the running cell is about to show something."""
        if (cell := self._cells.running) is not None:
            cell.output.settle()

    def _sink_of(self, tag: int) -> Sink | None:
        cell = self._cells.of(tag)
        return None if cell is None else cell.output.sink
