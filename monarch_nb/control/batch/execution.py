"""A notebook, cell by cell, on a kernel of its own; written while it runs.

Rule of the file: nbclient runs a cell and collects what it shows. When that is written, what is
told of it, and how the run is stopped are here.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellControlSignal, CellExecutionError, DeadKernelError
from nbformat import NotebookNode, v4
from traitlets.config import Config

from monarch_nb.control.batch import notebook_file
from monarch_nb.control.batch.notebook_file import is_code, title
from monarch_nb.control.batch.run_record import FAILED, PASSED, STOPPED, RunRecord
from monarch_nb.control.batch.transcript import Transcript

_WRITE_S: Final = 1.0
_SHARE: Final = 10
"""Writing takes at most a part of the time: one in so many."""
_STOP_S: Final = 10.0
"""How long a cell that is stopped may take to end."""
_OUTPUT_S: Final = 60
"""How long what a cell has shown may take to come, behind its end."""
_ENCRYPTED: Final = Config({"KernelManager": {"transport_encryption": "auto"}})


@dataclass(frozen=True)
class Outcome:
    """How a run has ended, and why."""

    state: str
    said: str = ""


class Execution:
    """Of the notebook of a run; `on_cell(number)` is told of each cell that begins."""

    def __init__(
        self,
        run: RunRecord,
        notebook: NotebookNode,
        transcript: Transcript,
        on_cell: Callable[[int], None],
    ) -> None:
        self._run = run
        self._notebook = notebook
        self._transcript = transcript
        self._on_cell = on_cell
        self._file = _GrowingFile(notebook, Path(run.output))
        self._manager = AsyncKernelManager(
            kernel_name=run.kernel,
            connection_file=str(run.connections / "kernel.json"),
            config=_ENCRYPTED,
        )
        self._client = _Client(notebook, self._manager, self._file, transcript)
        self._task: asyncio.Task[Any] | None = None
        self._cell: NotebookNode | None = None
        self._is_stopping = False
        self._interrupting: asyncio.Future[Any] | None = None  # else it could be collected

    async def outcome(self) -> Outcome:
        """Run all cells, on a kernel that is gone afterwards."""
        self._task = asyncio.current_task()
        writing = asyncio.create_task(self._file.keep_up())
        try:
            async with self._kernel():
                return await self._cells()
        except asyncio.CancelledError:
            return Outcome(STOPPED, "it was stopped before its first cell")
        except RuntimeError as error:  # it did not start
            return Outcome(FAILED, f"the kernel {self._run.kernel} does not start: {error}")
        finally:
            writing.cancel()
            self._client.set_widgets_metadata()

    def stop(self) -> None:
        """Stop the cell that runs, as the stop button does, and run no other."""
        assert self._task is not None
        if self._is_stopping:
            return
        self._is_stopping = True
        if self._cell is None:
            self._task.cancel()
            return
        self._interrupting = asyncio.ensure_future(self._manager.interrupt_kernel())
        self._task.get_loop().call_later(_STOP_S, self._task.cancel)

    @contextlib.asynccontextmanager
    async def _kernel(self) -> Any:
        try:
            await self._manager.start_kernel(cwd=str(Path(self._run.notebook).parent))
            await self._client.async_start_new_kernel_client()
            await self._client.note_language()
            yield
        finally:
            if self._client.kc is not None:
                self._client.kc.stop_channels()
            if self._manager.has_kernel:
                await self._manager.shutdown_kernel()

    async def _cells(self) -> Outcome:
        cells = [(n, cell) for n, cell in enumerate(self._notebook.cells) if is_code(cell)]
        for number, (index, cell) in enumerate(cells, 1):
            self._on_cell(number)
            self._transcript.begin(number, len(cells), title(cell))
            failure = await self._run_cell(cell, index)
            self._transcript.end_cell()
            self._file.write()
            which = f"cell {number} of {len(cells)} ({title(cell)})"
            if self._is_stopping:
                return Outcome(STOPPED, f"it was stopped at {which}")
            if failure is not None:
                return Outcome(FAILED, f"{which} failed: {failure}")
        return Outcome(PASSED)

    async def _run_cell(self, cell: NotebookNode, index: int) -> str | None:
        # why it failed, if it did
        self._cell = cell
        try:
            await self._client.async_execute_cell(cell, index)
        except CellExecutionError as error:
            return f"{error.ename}: {error.evalue}"
        except (DeadKernelError, CellControlSignal, asyncio.CancelledError):
            if self._is_stopping:
                return self._mark(cell, "Stopped", "the run was stopped, and this cell did not end")
            return self._mark(cell, "DeadKernelError", "the kernel has ended while this cell ran")
        finally:
            self._cell = None
        return None

    def _mark(self, cell: NotebookNode, name: str, said: str) -> str:
        error = v4.new_output("error", ename=name, evalue=said, traceback=[f"{name}: {said}"])
        cell.outputs.append(error)
        self._transcript.show(error)
        return f"{name}: {said}"


class _Client(NotebookClient):
    # Tells of each message, and says with each cell which one of the notebook's it is: by that the
    # kernel knows it, and so does a page that comes in

    def __init__(
        self,
        notebook: NotebookNode,
        manager: AsyncKernelManager,
        file: _GrowingFile,
        transcript: Transcript,
    ) -> None:
        super().__init__(
            notebook,
            manager,
            timeout=None,
            iopub_timeout=_OUTPUT_S,
            on_cell_execute=self._name_cell,
        )
        self._file = file
        self._transcript = transcript

    async def note_language(self) -> None:
        # for pages, which ask the kernel, and have no answer while a cell runs
        assert self.kc is not None
        reply = await self.async_wait_for_reply(self.kc.kernel_info())
        if reply is not None:
            self.nb.metadata["language_info"] = reply["content"]["language_info"]

    def _name_cell(self, cell: NotebookNode, cell_index: int) -> None:
        del cell_index
        assert self.kc is not None
        self.kc.session.metadata["cellId"] = cell.id

    def process_message(
        self, msg: dict[str, Any], cell: NotebookNode, cell_index: int
    ) -> NotebookNode | None:
        self._file.change()
        shown = super().process_message(msg, cell, cell_index)
        if shown is not None:
            self._transcript.show(shown)
        return shown


class _GrowingFile:
    # Written at the end of each cell, and at most every second while it changes

    def __init__(self, notebook: NotebookNode, path: Path) -> None:
        self._notebook = notebook
        self._path = path
        self._has_changed = False
        self._not_before = 0.0

    def change(self) -> None:
        self._has_changed = True

    def write(self) -> None:
        with self._timed():
            notebook_file.write(self._notebook, self._path)
        self._has_changed = False

    async def keep_up(self) -> None:
        while True:
            await asyncio.sleep(_WRITE_S)
            if self._has_changed and time.monotonic() >= self._not_before:
                self.write()

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        ended = time.monotonic()
        self._not_before = ended + _SHARE * (ended - began)
