"""What is asked of ranks: the body of a cell or a script, on the parts of a mesh; and how it is
sent.

Rule of the file: no rank runs what nobody knows of, whenever the stop button is pressed.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from monarch_nb.notebook.cells.registry import Cell
from monarch_nb.notebook.layouts.layout import FOLD, Layout
from monarch_nb.notebook.session import Session
from monarch_nb.notebook.source import tracebacks

if TYPE_CHECKING:
    from monarch_nb.control.api import CellRun, ProcMesh


@dataclass(frozen=True)
class Script:
    """A file or a `module` to run, and its arguments."""

    name: str
    args: Sequence[str]
    module: bool = False


@dataclass(frozen=True)
class Request:
    """What is to run where: the body or a script, on the parts of a mesh, each a slice of it."""

    mesh: ProcMesh
    parts: Sequence[ProcMesh]
    work: str | Script
    timeout_s: float | None = None
    layout: Layout = FOLD
    keep: bool = False  # the value of the last expression, for `MeshCell.result`

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of all parts, in order."""
        return tuple(sorted(rank for part in self.parts for rank in part.ranks))


def submit(
    request: Request, session: Session, cell: Cell, began: Callable[[CellRun], object]
) -> None:
    """Send the work to every part of the mesh; `began` gets to know of each run."""
    send = _sender(request, session, cell)
    for part in request.parts:
        with _undivided():
            began(send(part))


def _sender(request: Request, session: Session, cell: Cell) -> Callable[[ProcMesh], CellRun]:
    control, work, tag, keep = session.control, request.work, cell.tag, request.keep
    if isinstance(work, Script):
        script = control.script(request.parts, work.name, work.args, work.module)
        return partial(control.run_script, script=script, tag=tag, keep=keep)
    name, line = tracebacks.place_of_body(session.shell, cell.source, cell.tag, work)
    what = f"cell In[{cell.number}]"
    return partial(
        control.run_cell, code=work, filename=name, first_line=line, tag=tag, keep=keep, what=what
    )


@contextlib.contextmanager
def _undivided() -> Iterator[None]:
    # The stop button waits for the end of the block: no rank shall run what nobody knows of
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda signum, _: pressed.append(signum))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt
