"""One `Session` for each InteractiveShell: it puts the parts together and follows the shell.

Rule of the file: parts are given to one another here, when they are made; none knows the session.
The shell's thread runs cells; the functions at the end are what the kernel calls.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult, InteractiveShell

from monarch_nb.control.api import Control
from monarch_nb.notebook import kept_meshes
from monarch_nb.notebook.cells.auto_transform import AutoTransform
from monarch_nb.notebook.cells.registry import Cell, CellRegistry
from monarch_nb.notebook.cells.unfinished import StopButton, UnfinishedRuns
from monarch_nb.notebook.client_link import ClientLink
from monarch_nb.notebook.completion.seen_names import SeenNames
from monarch_nb.notebook.debug.prompts import Prompts
from monarch_nb.notebook.debug.target import Debugging
from monarch_nb.notebook.jobs.running import RunningJobs
from monarch_nb.notebook.jobs.scaling import Scaling
from monarch_nb.notebook.layouts.live_displays import LiveDisplays
from monarch_nb.notebook.lifecycle import Lifecycle
from monarch_nb.notebook.meshes import Meshes
from monarch_nb.notebook.output.flusher import Flusher
from monarch_nb.notebook.output.router import OutputRouter
from monarch_nb.notebook.output.sinks import keep_order
from monarch_nb.notebook.view.answers.actions import Parts
from monarch_nb.notebook.view.answers.hub import Hub
from monarch_nb.notebook.view.answers.source import Source
from monarch_nb.notebook.view.browser.comm import serve_browsers
from monarch_nb.notebook.view.browser.showing import Showing


class Session:
    """What the magics, the kernel and the displays share."""

    def __init__(self, shell: InteractiveShell, control: Control | None = None) -> None:
        self.shell = shell
        self.control = control = control or Control()
        live = LiveDisplays()
        self._has_offered = False  # what has outlived an earlier kernel
        self._flusher = Flusher()
        self._undo = contextlib.ExitStack()
        self.cells = CellRegistry(shell, control, self._flusher, live)
        self.link = ClientLink(control, self.cells)
        self.output = OutputRouter(shell, self.cells, self.link, self._flusher, live)
        self.unfinished = UnfinishedRuns()
        self.stop_button = StopButton(
            shell, control, self.cells, self.link, self.output, self.unfinished
        )
        self.meshes = Meshes(shell, control)
        self.auto = AutoTransform(shell, lambda: self.cells.running is not None)
        self.seen = SeenNames()
        self.debugging = Debugging(control, self.link)
        self.prompts = Prompts(shell, control, self.cells, self.link, self.output)
        self.jobs = RunningJobs(control, lambda: self.live.notify(urgent=True))
        self.scaling = Scaling(control, self.meshes, self.jobs)
        self.lifecycle = Lifecycle(
            control, self.meshes, self.link, self.output, self.auto, self.jobs
        )
        source = Source(shell, control, self.meshes, self.cells, self.debugging, self.jobs)
        parts = Parts(control, self.link, self.lifecycle, self.debugging, self.scaling)
        self.live = Hub(parts, source)
        self.showing = Showing(shell, control, self.live.open)

    def start(self) -> None:
        """Follow the shell's cells."""
        for event, follow in (("pre_run_cell", self._begin), ("post_run_cell", self._end)):
            self.shell.events.register(event, follow)
            self._undo.callback(self.shell.events.unregister, event, follow)
        self.on_close(self.auto.install())
        self.on_close(self.control.when_started(self.link.attach))
        self.on_close(self.control.when_started(lambda: self.live.notify(urgent=True)))
        self.on_close(keep_order(self.shell, self.output))
        self.on_close(serve_browsers(self.shell, self.live))

    def on_close(self, undo: Callable[[], object]) -> None:
        """Call this when the session is closed."""
        self._undo.callback(undo)

    def close(self) -> None:
        self.live.close()
        self._flusher.close()
        self.showing.close()
        self.prompts.close()
        self._undo.close()

    def _begin(self, info: ExecutionInfo) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # a subshell; the main thread's cell keeps its tag
        # IPython counts up before it tells us, unless the cell is kept out of the history
        number = self.shell.execution_count - bool(info.store_history)
        cell = self.cells.begin(info.raw_cell or "", number)
        self.link.attach()
        self.output.begin(cell)
        if self.cells.is_watched(cell):
            self.live.notify(urgent=True)  # it may be short
        if not self._has_offered:
            self._has_offered = True
            self._offer(cell)

    def _offer(self, cell: Cell) -> None:
        if "%mesh attach" not in cell.source:  # who attaches knows
            for line in kept_meshes.offers(self.control.kept_meshes()):
                cell.output.say("stdout", f"{line}\n")

    def _end(self, result: ExecutionResult | None) -> None:
        cell = self.cells.running
        if cell is None or threading.current_thread() is not threading.main_thread():
            return
        self.prompts.cell_ends(cell)
        self.output.end(cell)
        failed = result is not None and result.error_in_exec is not None
        self.cells.end(cell, failed=failed)

    def shut_down(self, timeout_s: float) -> None:
        """End every mesh."""
        self.live.close()
        self.control.end_prewarm(timeout_s / 2)
        client = self.control.running_client()
        if client is not None:
            client.shutdown(timeout_s)


def session_of(shell: InteractiveShell) -> Session | None:
    """Return the session of a shell that has loaded the extension."""
    found: Session | None = vars(shell).get("_monarch_nb_session")
    return found


# What the kernel calls.


def interrupt(shell: InteractiveShell, stop_controller: Callable[[], None]) -> None:
    if session := session_of(shell):
        session.stop_button.press(stop_controller)
    else:
        stop_controller()


def prewarm(shell: InteractiveShell) -> None:
    """Start what the first mesh needs, in the background."""
    if session := session_of(shell):
        session.control.prewarm()


def status_line(shell: InteractiveShell) -> str:
    """Describe all meshes in one line, for the kernel's banner; asks no rank, so never waits."""
    session = session_of(shell)
    return session.meshes.status_line() if session else "monarch_nb is not loaded"


def shut_down(shell: InteractiveShell, timeout_s: float) -> None:
    """End every mesh, within the kernel's shutdown window."""
    if session := session_of(shell):
        session.shut_down(timeout_s)
