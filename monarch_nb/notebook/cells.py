"""The life of a `%%mesh` cell on the controller: submit, wait, show, raise.

Rules of the file: the main thread waits here, in slices, so that a KeyboardInterrupt ends the wait
at once whatever ranks do; every way out leaves the ranks' output shown and the cell's status right;
a rank that has not ended is remembered.
"""

from __future__ import annotations

import contextlib
import linecache
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from monarch_nb.core.folding import ErrorGroup, fold_errors, rank_runs, rank_words
from monarch_nb.core.records import ErrorRecord
from monarch_nb.errors import SupervisionError
from monarch_nb.notebook import options, selection, tracebacks
from monarch_nb.notebook.bundles import results
from monarch_nb.notebook.problems import CellError, CellInterrupted, MagicError
from monarch_nb.notebook.runtime import CellRun, Outcome
from monarch_nb.notebook.session import Cell, Session
from monarch_nb.notebook.stragglers import Straggler

WATCH_S = 0.25
PATIENCE_S = 2.0
"""After a rank has failed, how long others may run on before the user is told who they are."""
GRACE_S = 0.15
"""After an interrupt, how long the prompt waits for the ranks' tracebacks; 0.3 s are promised."""


def run(session: Session, line: str, body: str) -> None:
    """Run the body on the selected ranks and show what they say.

    Raises `CellError` if one fails.
    """
    chosen = options.parse(options.CELL, line)
    mesh = session.meshes.pick(chosen.name)
    parts = selection.parts(mesh, chosen.selection)
    ranks = sorted(rank for part in parts for rank in part.ranks)
    if lost := set(session.runtime.lost(mesh)).intersection(ranks):
        raise MagicError(_which_are_lost(mesh.name, sorted(lost), ranks))
    session.stragglers.wait_for(mesh.name, ranks)
    session.attach()
    cell = session.cell()
    try:
        Waiting(session, cell, mesh.name, len(mesh), ranks).run(parts, body)
    except SupervisionError as error:  # lost a moment ago
        raise MagicError(_which_are_lost(mesh.name, error.ranks, ranks)) from None


@dataclass
class Source:
    """Where the body stands, for tracebacks on both sides."""

    filename: str
    first_line: int


class Waiting:
    """One `%%mesh` cell under way."""

    def __init__(
        self, session: Session, cell: Cell, mesh: str, total: int, ranks: Sequence[int]
    ) -> None:
        self._session = session
        self._cell = cell
        self._mesh = mesh
        self._ranks = ranks
        self._total = total
        self._runs: list[CellRun] = []
        self._told = False
        self._failed_s: float | None = None
        cell.output.expect(mesh, ranks, total)

    def run(self, parts: Sequence[Any], body: str) -> None:
        """Submit, wait, show, raise."""
        try:
            self._submit(parts, body)
            while not self._wait(WATCH_S):
                self._watch()
        except KeyboardInterrupt:
            self._interrupted()
        self._cell.output.end()
        self._show()
        if errors := self._errors():
            raise CellError(_summary(errors), errors, self._traceback(errors))

    def _submit(self, parts: Sequence[Any], body: str) -> None:
        """Send the body to every part of the mesh."""
        source = _source(self._session.shell, self._cell, body)
        run_cell = partial(
            self._session.runtime.run_cell,
            code=body,
            filename=source.filename,
            first_line=source.first_line,
            tag=self._cell.tag,
        )
        for part in parts:
            with _undivided():
                self._runs.append(run_cell(part))

    # ----------------------------------------------------------------------------- waiting

    def _wait(self, timeout_s: float) -> bool:
        """Whether all ranks have ended, within that time."""
        deadline = time.monotonic() + timeout_s
        return all(run.wait(max(deadline - time.monotonic(), 0)) for run in self._runs)

    def _watch(self) -> None:
        """Now and then: free the lines that wait for ranks which have ended, name who is late."""
        self._cell.output.finish(self._mesh, self._outcomes())
        if self._failed_s is None and self._errors():
            self._failed_s = time.monotonic()
        patience_is_over = self._failed_s and time.monotonic() - self._failed_s > PATIENCE_S
        if patience_is_over and not self._told:
            self._told = True
            self._session.say(self._cell, _who_is_late(self._errors(), self._pending()))

    def _interrupted(self) -> None:
        """The stop button: tell the ranks once, give them a moment, then give the prompt back."""
        if not self._cell.claim_interrupt():
            for run in self._runs:
                run.interrupt()
        with contextlib.suppress(KeyboardInterrupt):  # pressed again: do not even give the moment
            self._wait(GRACE_S)
        for run in self._runs:
            straggler = Straggler(self._mesh, run, self._cell.number, self._cell.started_s)
            self._session.stragglers.add(straggler)
        self._cell.output.end()
        traceback = self._traceback(self._errors())
        raise CellInterrupted(_after_interrupt(self._pending()), traceback) from None

    # ----------------------------------------------------------------------------- outcomes

    def _outcomes(self) -> dict[int, Outcome]:
        return {rank: one for run in self._runs for rank, one in dict(run.outcomes).items()}

    def _errors(self) -> dict[int, ErrorRecord]:
        return {rank: one.error for rank, one in self._outcomes().items() if one.error}

    def _pending(self) -> tuple[int, ...]:
        return tuple(sorted(rank for run in self._runs for rank in run.pending))

    def _show(self) -> None:
        shown = {rank: one.data for rank, one in self._outcomes().items() if one.data}
        for content in results(shown, self._total):
            self._cell.output.show(content)

    def _traceback(self, errors: Mapping[int, ErrorRecord]) -> str:
        shell = self._session.shell
        lookup = partial(_line_of_cell, shell)
        label = partial(tracebacks.name_of_cell, shell)
        parts = [
            _lost(group) if _is_loss(group) else "\n".join(group.format(lookup, label, self._total))
            for group in fold_errors(errors)
        ]
        if lost := [rank for rank, one in self._outcomes().items() if one.status == "lost"]:
            parts.append(_advice(lost, self._ranks))
        return "\n\n".join(parts)


def _is_loss(group: ErrorGroup) -> bool:
    """Nothing was raised on the rank: it is gone, and the text says how."""
    record = group.record
    return not (record.frames or record.place or record.cause or record.context)


def _lost(group: ErrorGroup) -> str:
    return "\n".join(f"{rank_words(ranks)}: {text}" for ranks, text in group.messages)


@contextlib.contextmanager
def _undivided() -> Iterator[None]:
    """The stop button waits for the end of the block: no rank shall run what nobody knows of."""
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


def _source(shell: Any, cell: Cell, body: str) -> Source:
    """The cell's own file and lines when the body is the rest of it; else a file of its own."""
    filename = tracebacks.file_of_cell(shell)
    if filename is not None and _is_cell_magic(cell.source):
        tracebacks.remember(filename, cell.source)
        return Source(filename, tracebacks.first_line(cell.source, body))
    filename = f"<mesh cell {cell.tag}>"
    tracebacks.remember(filename, body)
    return Source(filename, 1)


def _is_cell_magic(source: str) -> bool:
    return source.lstrip().startswith("%%")


def _line_of_cell(shell: Any, filename: str, lineno: int) -> str | None:
    if tracebacks.name_of_cell(shell, filename) is None:
        return None
    return linecache.getline(filename, lineno) or None


def _summary(errors: Mapping[int, ErrorRecord]) -> str:
    return "; ".join(group.headline for group in fold_errors(errors))


def _who_is_late(errors: Mapping[int, ErrorRecord], pending: Sequence[int]) -> str:
    verb = "is" if len(pending) == 1 else "are"
    failed = fold_errors(errors)[0].headline
    return (
        f"{rank_words(pending)} {verb} still running after {failed}. "
        "They may wait for a rank that failed; the stop button interrupts them.\n"
    )


def _which_are_lost(mesh: str, lost: Sequence[int], wanted: Sequence[int]) -> str:
    verb = "is" if len(lost) == 1 else "are"
    return (
        f"{rank_words(lost)} of {mesh} {verb} lost; %mesh status shows how. {_advice(lost, wanted)}"
    )


def _advice(lost: Sequence[int], wanted: Sequence[int]) -> str:
    living = sorted(set(wanted).difference(lost))
    others = f", or %%mesh {rank_runs(living)} for the others" if living else ""
    return f"Type: %mesh heal{others}"


def _after_interrupt(pending: Sequence[int]) -> str:
    if not pending:
        return "all ranks have stopped"
    return (
        f"interrupted; {rank_words(pending)} still at work. The next %%mesh waits for them; "
        f"%mesh interrupt --kill {rank_runs(pending)} ends them"
    )
