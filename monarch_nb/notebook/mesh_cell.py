"""A `%%mesh` cell on its ranks: sent, watched, ended. What `%%mesh --noblock` gives to the user.

Rules of the file: whoever waits (the main thread, or a thread of the cell's own when nobody does)
waits in slices, so that a KeyboardInterrupt ends the wait at once whatever ranks do; a cell ends
once, with its output shown; a rank that has not ended by then is remembered.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from monarch_nb.core.folding import rank_label
from monarch_nb.core.records import ErrorRecord
from monarch_nb.notebook import sources, verdicts, whereabouts
from monarch_nb.notebook.bundles import results, text_content
from monarch_nb.notebook.layouts import FOLD, Layout
from monarch_nb.notebook.problems import CellError, CellInterrupted
from monarch_nb.notebook.runtime import CellRun, Outcome
from monarch_nb.notebook.session import Cell, Session
from monarch_nb.notebook.stragglers import Straggler
from monarch_nb.notebook.words import duration

WATCH_S: Final = 0.25
PATIENCE_S: Final = 2.0
"""After a rank has failed, how long others may run on before the user is told who they are."""
GRACE_S: Final = 0.15
"""After an interrupt, how long the prompt waits for the ranks' tracebacks; 0.3 s are promised."""


@dataclass(frozen=True)
class Request:
    """What is to run where: the body on the parts of a mesh, each a slice of it."""

    mesh: Any
    parts: Sequence[Any]
    body: str
    timeout_s: float | None = None
    layout: Layout = FOLD

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of all parts, in order."""
        return tuple(sorted(rank for part in self.parts for rank in part.ranks))


class MeshCell:
    """A cell that runs on ranks, or has run there.

    Example:
        In a notebook, `%%mesh --noblock -o epoch` returns at once; later:

        >>> epoch.done, epoch.pending                   # doctest: +SKIP
        (False, (2, 3))
        >>> epoch.wait(timeout=60)                      # doctest: +SKIP
        True
    """

    def __init__(self, session: Session, cell: Cell, request: Request) -> None:
        self.mesh: str = request.mesh.name
        self.ranks = request.ranks
        self.error: CellError | None = None
        self._session = session
        self._cell = cell
        self._request = request
        self._total = len(request.mesh)
        self._runs: list[CellRun] = []
        self._failed_s: float | None = None
        self._late_ranks_told = False
        self._overdue: tuple[int, ...] = ()
        self._over_s = float("inf")  # when it is given up, after its time was over
        self._took_s = 0.0
        self._ending = threading.Lock()
        self._ended = threading.Event()
        self._when_ended: list[Callable[[], object]] = []
        self._view = ""  # display id of what `_ipython_display_` has shown
        cell.output.expect(self.mesh, self.ranks, self._total, request.layout, cell.number)

    # --------------------------------------------------------------------------- for the user

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._ended.is_set()

    @property
    def pending(self) -> tuple[int, ...]:
        """Ranks that have not ended it yet."""
        return tuple(sorted(rank for run in self._runs for rank in run.pending))

    @property
    def elapsed_s(self) -> float:
        """Seconds since it was sent, or that it took."""
        return self._took_s if self.done else time.monotonic() - self._cell.started_s

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended, for `timeout` seconds at most. Returns whether it has.

        The stop button ends the wait, and the cell with it.
        """
        try:
            return self._ended.wait(timeout)
        except KeyboardInterrupt:
            raise self._interrupted() from None

    def cancel(self) -> None:
        """Raise KeyboardInterrupt on the ranks that still run it. Returns at once."""
        for run in self._runs:
            run.interrupt()

    def result(self, timeout: float | None = None) -> None:
        """Wait until it has ended. Raises `CellError` if ranks failed, `TimeoutError` if it has not
        ended in time."""
        if not self.wait(timeout):
            raise TimeoutError(f"{self!r}: not ended within {timeout:g} s")
        if self.error is not None:
            raise self.error

    def __await__(self) -> Generator[Any, None, None]:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        self._call_when_ended(lambda: loop.call_soon_threadsafe(_set, ended))
        yield from ended
        self.result()

    def __repr__(self) -> str:
        where = rank_label(self.ranks, self._total) or "[0]"
        return f"<cell In[{self._cell.number}] on {self.mesh} {where}: {self._state()}>"

    def _ipython_display_(self) -> None:
        """A line that changes when the cell ends."""
        self._view = self._view or uuid.uuid4().hex
        self._cell.output.show(self._line(), display_id=self._view)

    def _line(self) -> dict[str, Any]:
        return dict(text_content(repr(self)))

    def _state(self) -> str:
        took = duration(self.elapsed_s)
        if not self.done:
            return f"{len(self.ranks) - len(self.pending)} of {len(self.ranks)} ranks done, {took}"
        return f"failed after {took}, {self.error}" if self.error else f"done in {took}"

    # -------------------------------------------------------------------------------- running

    def conduct(self) -> None:
        """Send it, wait until it has ended, show, raise."""
        try:
            self._submit()
            while not self._is_over(WATCH_S):
                self._watch()
        except KeyboardInterrupt:
            raise self._interrupted() from None
        self._end()
        if self.error is not None:
            raise self.error

    def follow(self, *, tells: bool) -> None:
        """Send it and return; a thread sees to its end, and shows errors if it `tells`."""
        try:
            self._submit()
        except KeyboardInterrupt:
            raise self._interrupted() from None
        name = f"monarch-cell-{self._cell.tag}"
        threading.Thread(target=self._follow, args=(tells,), name=name, daemon=True).start()

    def _follow(self, tells: bool) -> None:
        while not self._is_over(WATCH_S):
            self._watch()
        self._end()
        if self.error is not None and tells:
            self._session.say(self._cell, f"{self.error.traceback}\n")
        if self._view:
            self._cell.output.redraw(self._line(), display_id=self._view)

    def _submit(self) -> None:
        """Send the body to every part of the mesh."""
        source = sources.of_body(self._session.shell, self._cell, self._request.body)
        run_cell = partial(
            self._session.runtime.run_cell,
            code=self._request.body,
            filename=source.filename,
            first_line=source.first_line,
            tag=self._cell.tag,
        )
        for part in self._request.parts:
            with _undivided():
                self._runs.append(run_cell(part))

    def _is_over(self, timeout_s: float) -> bool:
        """Whether all ranks have ended, or those that have not are given up; within that time."""
        deadline = time.monotonic() + timeout_s
        if self._request.timeout_s is not None:
            deadline = min(deadline, self._next_limit())
        ended = all(run.wait(max(deadline - time.monotonic(), 0)) for run in self._runs)
        return ended or time.monotonic() >= self._over_s

    def _next_limit(self) -> float:
        assert self._request.timeout_s is not None
        return min(self._over_s, self._cell.started_s + self._request.timeout_s)

    def _watch(self) -> None:
        """Now and then: free the lines that wait for ranks which have ended, name who is late."""
        now = time.monotonic()
        self._cell.output.finish(self.mesh, self._outcomes())
        if self._failed_s is None and self._errors():
            self._failed_s = now
        if self._failed_s and now - self._failed_s > PATIENCE_S and not self._late_ranks_told:
            self._late_ranks_told = True
            late = verdicts.who_is_late(self._errors(), self.pending)
            self._session.say(self._cell, late)
        limit_s = self._request.timeout_s
        if limit_s is not None and not self._overdue and now >= self._cell.started_s + limit_s:
            self._overdue = self.pending
            self._over_s = now + GRACE_S
            self.cancel()

    # --------------------------------------------------------------------------------- ending

    def _interrupted(self) -> CellInterrupted:
        """The stop button: tell the ranks once, give them a moment, then give the prompt back."""
        if not self._cell.claim_interrupt():
            self.cancel()
        with contextlib.suppress(KeyboardInterrupt):  # pressed again: do not even give the moment
            self._is_over(GRACE_S)
        self._end()
        told = verdicts.after_interrupt(self.pending, self._where())
        return CellInterrupted(told, self._traceback(self._errors()))

    def _end(self) -> None:
        """Show what is left, say how it went; once."""
        with self._ending:
            if self.done:
                return
            self._took_s = self.elapsed_s
            for run in self._runs:
                left = Straggler(self.mesh, run, self._cell.number, self._cell.started_s)
                self._session.stragglers.add(left)
            self._show()
            self.error = self._failure()
            if self.error is not None:
                self._session.last_error = self.error
            self._ended.set()
        for callback in self._when_ended:
            callback()

    def _failure(self) -> CellError | None:
        errors = self._errors()
        if self._overdue:
            limit_s = self._request.timeout_s or 0.0
            told = verdicts.after_timeout(limit_s, self._overdue, self.pending, self._where())
            text = "\n\n".join(filter(None, [self._traceback(errors), f"TimeoutError: {told}"]))
            return CellError(told, errors, text, self._total)
        if errors:
            return CellError(verdicts.summary(errors), errors, self._traceback(errors), self._total)
        return None

    def _call_when_ended(self, callback: Callable[[], object]) -> None:
        with self._ending:
            if not self.done:
                self._when_ended.append(callback)
                return
        callback()

    # ------------------------------------------------------------------------------- outcomes

    def _outcomes(self) -> dict[int, Outcome]:
        return {rank: one for run in self._runs for rank, one in dict(run.outcomes).items()}

    def _errors(self) -> dict[int, ErrorRecord]:
        return {rank: one.error for rank, one in self._outcomes().items() if one.error}

    def _show(self) -> None:
        shown = {rank: one.data for rank, one in self._outcomes().items() if one.data}
        shown = self._cell.output.conclude(self.mesh, shown)
        self._cell.output.end()
        for content in results(shown, self._total):
            self._cell.output.show(content)

    def _where(self) -> list[str]:
        """Lines on the ranks that go on."""
        if not (pending := self.pending):
            return []
        found = self._session.runtime.whereabouts(self._request.mesh, pending)
        return whereabouts.lines(self._session.shell, found)

    def _traceback(self, errors: dict[int, ErrorRecord]) -> str:
        text = verdicts.traceback(self._session.shell, errors, self._total)
        lost = [rank for rank, one in self._outcomes().items() if one.status == "lost"]
        return f"{text}\n\n{verdicts.advice(lost, self.ranks)}" if lost else text


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


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
