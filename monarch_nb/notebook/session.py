"""One `Session` for each InteractiveShell: which cell is which, and what is known about its meshes.

Rules of the file: every executed cell has a tag, an int that only grows; calls made while it runs
carry the tag, and what ranks send back under a tag is shown under that cell, however late. The
shell's thread runs cells; `route` and `notice` come from the client's inbox thread, `interrupt`
from the kernel's control thread: none of them blocks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from monarch_nb.notebook.cells import wording as verdicts
from monarch_nb.notebook.cells.auto import Auto
from monarch_nb.notebook.cells.unfinished import Stragglers
from monarch_nb.notebook.cells.waiting import NEVER_S, WaitingLine
from monarch_nb.notebook.debug.prompts import Prompts
from monarch_nb.notebook.debug.stdin import Asker, asker_of_running_cell
from monarch_nb.notebook.debug.target import Debugging
from monarch_nb.notebook.display.units import mesh_text
from monarch_nb.notebook.errors import CellError
from monarch_nb.notebook.hangs import whereabouts, wording
from monarch_nb.notebook.hangs.watch import Lookout
from monarch_nb.notebook.layouts.live_displays import LiveDisplays
from monarch_nb.notebook.meshes import Meshes
from monarch_nb.notebook.output.cell_output import CellOutput
from monarch_nb.notebook.output.flusher import Flusher
from monarch_nb.notebook.output.ordering import keep_order
from monarch_nb.notebook.output.sinks import Outlet, outlet_of_running_cell
from monarch_nb.notebook.runtime import Client, MonarchRuntime, Runtime, Wait
from monarch_nb.notebook.source.seen_names import SeenNames
from monarch_nb.notebook.view.answers.hub import Hub
from monarch_nb.notebook.view.answers.source import Source
from monarch_nb.notebook.view.browser.comm import serve_browsers
from monarch_nb.notebook.view.browser.showing import Showing
from monarch_nb.notebook.view.feed.inputs import CellAtWork
from monarch_nb.notebook.widgets.comm_relay import CommRelay

STOP_AGAIN_S = 0.5
MAX_CELLS = 1_000
"""Output that comes later than this many cells is shown under the running one."""
MAX_LIVE = 64
"""Displays that change, of cells before so many others, are not kept."""


class Stoppable(Protocol):
    """A cell in the background (a `MeshCell`)."""

    def stop(self) -> None: ...


class Cell:
    """An executed cell, and how often the user has pressed stop while it ran."""

    def __init__(
        self,
        tag: int,
        number: int,
        source: str,
        output: CellOutput,
        waiting: WaitingLine,
        cell_id: str | None = None,
    ) -> None:
        self.tag = tag
        self.number = number
        self.cell_id = cell_id  # JupyterLab's
        self.source = source
        self.output = output
        self.waiting = waiting
        self.started_s = time.monotonic()
        self.outer: Cell | None = None
        self.asker: Asker | None = None
        """Who can answer a debugger's questions; None: nobody."""
        self.conversation: Any = None
        self.is_asking = self.is_prompt_closed = self.is_over = False
        self.interrupted_s = 0.0
        self._interrupts = 0

    def interrupted(self) -> None:
        """The kernel has told the ranks about an interrupt."""
        self._interrupts += 1
        self.interrupted_s = time.monotonic()

    def claim_interrupt(self) -> bool:
        """True once for each interrupt that the ranks already know of."""
        self._interrupts -= 1
        if self._interrupts < 0:
            self._interrupts = 0
            return False
        return True


class Session:
    """What the magics, the kernel and the displays share."""

    def __init__(self, shell: Any, runtime: Runtime | None = None) -> None:
        self.shell = shell
        self.runtime: Runtime = runtime or MonarchRuntime()
        self.meshes = Meshes(self)
        self.stragglers = Stragglers()
        self.running: Cell | None = None
        self.last_error: CellError | None = None
        self.failed_tag = 0  # of the last cell that has failed
        self.background: list[Stoppable] = []
        self.auto = Auto(shell, lambda: self.running is not None)
        self.seen = SeenNames()
        self.showing = Showing(self)
        self.debugging = Debugging(self)
        self._cells: dict[int, Cell] = {}
        self._last_tag = 0
        self._flusher = Flusher()
        self._heard: set[CellOutput] = set()  # since the last cell's end
        self._lookout = Lookout(shell, lambda: self.runtime)
        self._lookout.on_news = self._tell_hang
        self._live = LiveDisplays()
        self._comms = CommRelay(shell, self._outlet_of, self._flusher.due)
        self._client: Client | None = None
        self._notices: list[str] = []
        self._killed: set[int] = set()
        self._attaching = threading.Lock()
        self.prompts = Prompts(self)
        self.live = Hub(self, Source(self))
        self.undo: list[Callable[[], None]] = []

    # ------------------------------------------------------------------------------- cells

    def start(self) -> None:
        """Follow the shell's cells."""
        self.shell.events.register("pre_run_cell", self._begin)
        self.shell.events.register("post_run_cell", self._end)
        self.undo.append(self.auto.install())
        self.undo.append(self.runtime.when_started(self.attach))
        self.undo.append(keep_order(self.shell, self))
        self.undo.append(serve_browsers(self.shell, self.live))

    def close(self) -> None:
        """Leave the shell alone again."""
        self.shell.events.unregister("pre_run_cell", self._begin)
        self.shell.events.unregister("post_run_cell", self._end)
        self.live.close()
        self._flusher.close()
        self.showing.close()
        self.prompts.close()
        for undo in self.undo:
            undo()

    def cell(self) -> Cell:
        """The running cell; outside of cells, a new one for whoever calls."""
        return self.running or self._new_cell("", self.shell.execution_count)

    def cell_at_work(self) -> CellAtWork | None:
        """The cell that a person sees running. Any thread."""
        cell = self.running
        while cell is not None and cell.outer is not None:
            cell = cell.outer
        return None if cell is None else CellAtWork(cell.number, cell.cell_id, cell.started_s)

    def cell_id(self, number: int) -> str | None:
        """JupyterLab's id of the last cell with this number; None if it is not known."""
        ids = [cell.cell_id for cell in list(self._cells.values()) if cell.number == number]
        return next(filter(None, reversed(ids)), None)

    def tell_waits_after(self, seconds: float) -> None:
        """Of silence of the running cell; not above 0: never."""
        if self.running is not None:
            waiting = self.running.waiting
            waiting.after_s = seconds
            self._flusher.due(waiting, waiting.first_s)

    def tags(self, number: int) -> list[int]:
        """The tags of the cells with this number."""
        return [cell.tag for cell in list(self._cells.values()) if cell.number == number]

    def _begin(self, info: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # a subshell; the main thread's cell keeps its tag
        # IPython counts up before it tells us, unless the cell is kept out of the history
        cell = self._new_cell(info.raw_cell, self.shell.execution_count - bool(info.store_history))
        cell.outer = self.running
        cell.asker = asker_of_running_cell(self.shell)
        self.running = cell
        self.attach()
        self._flusher.due(cell.waiting, cell.waiting.first_s)
        while self._notices:
            cell.output.write("stderr", self._notices.pop(0))

    def _end(self, result: Any) -> None:
        cell = self.running
        if cell is None or threading.current_thread() is not threading.main_thread():
            return
        self.prompts.cell_ends(cell)
        if result is not None and result.error_in_exec is not None:
            self.failed_tag = cell.tag
        cell.waiting.end()
        heard, self._heard = self._heard, set()
        for other in heard:  # what earlier cells go on with has said this before what ends here
            other.settle()
        cell.output.end()
        self._comms.settle()
        self.running = cell.outer
        if self.running is None:
            cell.output.outlet.end()

    def _new_cell(self, source: str, number: int) -> Cell:
        self._last_tag += 1
        outlet = outlet_of_running_cell(self.shell)
        output = CellOutput(outlet, live=self._live)
        tag = self._last_tag
        waiting = WaitingLine(output, partial(self._waits, tag), partial(self._lookout.word, tag))
        if not outlet.is_watched:
            waiting.after_s = NEVER_S
        cell_id = _cell_id(self.shell) if source else None
        cell = Cell(self._last_tag, number, source, output, waiting, cell_id)
        self._cells[cell.tag] = cell
        self._cells.pop(cell.tag - MAX_CELLS, None)
        if old := self._cells.get(cell.tag - MAX_LIVE):
            old.output.forget()
        return cell

    def _tell_hang(self) -> None:
        """The running cell's ranks hang, or do so no more: its line says it now."""
        if (cell := self.running) is not None:
            self._flusher.due(cell.waiting, time.monotonic())

    def _waits(self, tag: int) -> Sequence[Wait]:
        cell = self._cells.get(tag)
        if self._client is None or (cell is not None and cell.is_asking):
            return ()  # at a prompt it is the person who is waited for
        return self._client.waits(tag)

    def cell_of(self, tag: int) -> Cell | None:
        """The cell for which ranks do something; of what is done for none, the latest."""
        return self._cells.get(tag) or self._latest()

    # ------------------------------------------------------------------------ from the ranks

    def attach(self) -> Client | None:
        """Listen to the client, if one runs, and give its calls the tag of the running cell."""
        client = self.runtime.running_client()
        if client is None:
            return None
        with self._attaching:  # buttons of the mesh view have threads of their own
            is_new = client is not self._client
            self._client = client
        if is_new:
            client.on_output(self.route)
            client.on_failure(self.notice)
            self._comms.send = client.comms.send
            client.comms.listen(self._comms)
            self.prompts.attach(client)
            self.debugging.attach(client)
        if self.running is not None:
            client.tag = self.running.tag
        return client

    def route(self, event: Any) -> None:
        """Show an output event under the cell that caused it."""
        live = self._live.find(event)
        cell = self.cell_of(event.tag)
        output = live.owner if live else cell.output if cell else None
        if output is not None:
            self._flusher.due(output, output.add(event))
            self._heard.add(output)

    def _outlet_of(self, tag: int) -> Outlet | None:
        cell = self.cell_of(tag)
        return None if cell is None else cell.output.outlet

    def notice(self, failure: Any) -> None:
        """Something failed that no call waits for: say so under the running cell, or the next."""
        if failure.ended is not None and failure.ended.process in self._killed:
            return
        text = f"{failure.report()}\n"
        cell = self.running
        if cell is None:
            self._notices.append(text)
        else:
            self.say(cell, text)

    def kill(self, mesh: Any, ranks: Sequence[int]) -> None:
        """End the processes of these ranks; who asks for it need not be told that they failed."""
        self._killed.update(self.runtime.processes(mesh, ranks))
        self.runtime.kill(mesh, ranks)

    def say(self, cell: Cell, text: str) -> None:
        """A line of ours on the cell's stderr, now."""
        cell.output.write("stderr", text)
        self._flusher.due(cell.output, time.monotonic())

    def follow(self, stream: str, text: str) -> bool:
        """The running cell prints; True when that will be shown behind what ranks have said."""
        cell = self.running
        if cell is None or not cell.output.follow(stream, text):
            return False
        self._flusher.due(cell.output, time.monotonic())
        return True

    def settle(self) -> None:
        """The running cell is about to show something."""
        if self.running is not None:
            self.running.output.settle()

    def _latest(self) -> Cell | None:
        return self.running or self._cells.get(self._last_tag)

    # ----------------------------------------------------------------------- from the kernel

    def interrupt(self, stop_controller: Callable[[], None]) -> None:
        """The stop button: stop this process, and the ranks that work for the running cell.

        In this order: an answer of an interrupted rank could otherwise end the wait, and the signal
        would hit whatever the main thread does next.
        """
        cell, client = self.running, self._client
        if cell is not None and client is not None:
            cell.interrupted()
        stop_controller()
        if cell is not None and client is not None:
            client.interrupt(cell.tag)
        elif cell is None and (self.background or self.stragglers.living()):
            threading.Thread(target=self._stop_ranks, name="monarch-stop", daemon=True).start()

    def _stop_ranks(self) -> None:
        """Stop was pressed while nothing runs here: it is meant for what ranks do."""
        for job in list(self.background):
            job.stop()
        self.stragglers.interrupt()
        cell = self._latest()
        if cell is None:
            return
        for one in self.stragglers.living():
            one.run.wait(STOP_AGAIN_S)
            if busy := one.run.pending:
                found = self.runtime.stacks(one.run.mesh, busy, brief=True)
                where = whereabouts.lines(self.shell, found) + wording.who_is_stuck(found)
                self.say(cell, f"{verdicts.still_at_work('interrupted again', busy, where)}\n")
            else:
                self.say(cell, f"cell In[{one.cell}] has ended on all ranks\n")

    def status_line(self) -> str:
        """One line on all meshes; asks no rank, so that it never waits."""
        return "; ".join(map(self._status_of, self.meshes.everything().values())) or "no mesh is up"

    def _status_of(self, mesh: Any) -> str:
        lost = len(self.runtime.lost(mesh))
        return f"{mesh.name}: {mesh_text(mesh)}" + (f", {lost} lost" if lost else "")

    def shut_down(self, timeout_s: float) -> None:
        """End every mesh."""
        self.live.close()
        self.runtime.end_prewarm(timeout_s / 2)
        client = self.runtime.running_client()
        if client is not None:
            client.shutdown(timeout_s)


def _cell_id(shell: Any) -> str | None:
    """What JupyterLab calls the cell that the shell is about to run."""
    if getattr(shell, "kernel", None) is None:
        return None
    found = shell.get_parent().get("metadata", {}).get("cellId")
    return found if isinstance(found, str) else None


def session_of(shell: Any) -> Session | None:
    """The session of a shell that has loaded the extension."""
    found: Session | None = vars(shell).get("_monarch_nb_session")
    return found


# What the kernel calls.


def interrupt(shell: Any, stop_controller: Callable[[], None]) -> None:
    """The stop button."""
    if session := session_of(shell):
        session.interrupt(stop_controller)
    else:
        stop_controller()


def prewarm(shell: Any) -> None:
    """Start what the first mesh needs, in the background."""
    if session := session_of(shell):
        session.runtime.prewarm()


def status_line(shell: Any) -> str:
    """For the kernel's banner."""
    session = session_of(shell)
    return session.status_line() if session else "monarch_nb is not loaded"


def shut_down(shell: Any, timeout_s: float) -> None:
    """End every mesh, within the kernel's shutdown window."""
    if session := session_of(shell):
        session.shut_down(timeout_s)
