"""A `%%mesh` cell or a script on its ranks: sent, watched, ended. What `%%mesh --noblock` gives.

Rules of the file: no rank runs what nobody knows of, whenever the stop button is pressed; whoever
waits (the main thread, or a thread of the cell's own when nobody does) waits in slices, so that a
KeyboardInterrupt ends the wait at once whatever ranks do; a cell ends once, with its output shown;
a rank that has not ended by then is remembered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from monarch_nb.core.errors.folding import rank_label, rank_words
from monarch_nb.core.errors.records import ErrorRecord
from monarch_nb.core.shape import selection
from monarch_nb.core.shape.extent import Extent
from monarch_nb.core.shape.values import ValueMesh
from monarch_nb.core.text.units import duration
from monarch_nb.errors import SupervisionError
from monarch_nb.notebook import hangs, options, tracebacks
from monarch_nb.notebook.cells import wording
from monarch_nb.notebook.cells.registry import Cell
from monarch_nb.notebook.cells.unfinished import UnfinishedRun
from monarch_nb.notebook.cells.waiting import pause
from monarch_nb.notebook.errors import CellError, CellInterrupted, MagicError
from monarch_nb.notebook.layouts.layout import FOLD, Layout
from monarch_nb.notebook.options import RunOptions
from monarch_nb.notebook.output.mime import Content, note_html, results, text_content
from monarch_nb.notebook.session import Session

if TYPE_CHECKING:
    from monarch_nb.control.api import CellOutcome, CellRun, LeftCell, ProcMesh, Stack

WATCH_S: Final = 0.25
LATE_S: Final = 2.0
"""After a rank has failed, how long others may run on before the user is told who they are."""
FREE_S: Final = 1.0
"""After a rank has failed, how often those that wait for it are looked for."""
INTERRUPT_S: Final = 0.12
"""After an interrupt, how long the prompt waits for the ranks' tracebacks; 0.3 s are promised."""
SIGNAL_S: Final = 0.05
"""The same, after a signal to those that had not read the message by then."""


@dataclass(frozen=True)
class Script:
    """A file or a `module` to run, and its arguments."""

    name: str
    args: Sequence[str]
    module: bool = False


@dataclass(frozen=True)
class Again:
    """A cell that other ranks have run, or earlier processes of the same: its text and where its
    first line stands; `what` is what views call it."""

    code: str
    filename: str
    first_line: int
    what: str


@dataclass(frozen=True)
class Request:
    """A cell to run: the body or a script, and the parts of a mesh to run it on, each a slice; or
    one that has run before; or one that another kernel has begun there."""

    mesh: ProcMesh
    parts: Sequence[ProcMesh]
    work: str | Script | Again | LeftCell
    timeout_s: float | None = None
    layout: Layout = FOLD
    keep: bool = False  # the value of the last expression, for `MeshCell.result`
    fail_fast: bool = True

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of all parts, in order."""
        if not isinstance(self.work, str | Script | Again):
            return self.work.ranks
        return tuple(sorted(rank for part in self.parts for rank in part.ranks))


class Standing(NamedTuple):
    """How ranks have ended a cell, and lines on where those are that have not, at one time;
    `unseen`: those of them that have not answered."""

    errors: dict[int, ErrorRecord]
    pending: tuple[int, ...]
    where: list[str]
    unseen: tuple[int, ...]


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
    if isinstance(work, Again):
        return partial(control.run_cell, **asdict(work), tag=tag, keep=keep)
    if not isinstance(work, str | Script):
        left = {id(part.mesh): part for part in work.parts}
        return lambda mesh: control.resume(left[id(mesh)], tag=tag)
    if isinstance(work, Script):
        script = control.script(request.parts, work.name, work.args, work.module)
        return partial(control.run_script, script=script, tag=tag, keep=keep)
    name, line = tracebacks.place_of_body(session.shell, cell.source, cell.tag, work)
    what = f"cell In[{cell.number}]"
    return partial(
        control.run_cell, code=work, filename=name, first_line=line, tag=tag, keep=keep, what=what,
        fail_fast=request.fail_fast,
    )  # fmt: skip


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


class MeshCell:
    """A cell that runs on ranks, or has run there.

    Example:
        In a notebook, `%%mesh --noblock -o epoch` returns at once; later:

        >>> epoch.done, epoch.pending                   # doctest: +SKIP
        (False, (2, 3))
        >>> epoch.wait(timeout=60)                      # doctest: +SKIP
        True
        >>> epoch.result().values(), epoch[3]           # doctest: +SKIP
        ([0.9, 0.7, 0.8, 0.7], 0.7)
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
        self._free_s = 0.0
        self._overdue: tuple[int, ...] = ()
        self._given_up = False  # some ranks go on after its time was over
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
        """Wait until it has ended, return whether it has. The stop button ends the wait, and the
        cell.
        """
        try:
            return self._ended.wait(timeout)
        except KeyboardInterrupt:
            raise self._interrupted() from None

    def cancel(self) -> None:
        """Raise KeyboardInterrupt on the ranks that still run it. Returns at once."""
        for run in self._runs:
            run.interrupt()

    def check(self, timeout: float | None = None) -> None:
        """Wait until it has ended. Raises `CellError` if ranks failed, `TimeoutError` if it has
        not.
        """
        if not self.wait(timeout):
            raise TimeoutError(f"{self!r}: not ended within {timeout:g} s")
        if self.error is not None:
            raise self.error

    def result(self, timeout: float | None = None) -> Any:
        """Wait as `check` does; the values of the last expression by rank, a `ValueMesh`."""
        limit_s = None if timeout is None else time.monotonic() + timeout
        self.check(timeout)
        left_s = None if limit_s is None else max(limit_s - time.monotonic(), 0.0)
        return self._joined([run.values().get(left_s) for run in self._runs])

    def __getitem__(self, rank: int) -> Any:
        """Wait until it has ended; the value of the last expression on one rank."""
        run = next((run for run in self._runs if rank in run.ranks), None)
        if run is None:
            raise IndexError(f"{self!r} has no rank {rank}; it has {rank_words(self.ranks)}")
        self.wait()
        if self.error is not None and rank in self.error.errors:
            raise self.error
        return run.value(rank)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._when_ended_well().__await__()

    async def _when_ended_well(self) -> Any:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def end() -> None:
            if not ended.done():
                ended.set_result(None)

        self._call_when_ended(lambda: loop.call_soon_threadsafe(end))
        try:
            await ended
        except asyncio.CancelledError:  # the stop button, as in `wait`
            self.cancel()
            raise
        self.check()
        return self._joined([await run.values() for run in self._runs])

    def _joined(self, found: Sequence[ValueMesh[Any]]) -> ValueMesh[Any]:
        if len(found) == 1:
            return found[0]
        pairs = zip(self._runs, found, strict=True)
        values = {
            rank: value
            for run, part in pairs
            for rank, value in zip(run.mesh.ranks, part.values(), strict=True)
        }
        row = Extent(["rank"], [len(values)]).region.as_shape()
        return ValueMesh(row, [values[rank] for rank in self.ranks])

    def __repr__(self) -> str:
        where = rank_label(self.ranks, self._total) or "[0]"
        return f"<cell In[{self._cell.number}] on {self.mesh} {where}: {self._state()}>"

    def _ipython_display_(self) -> None:
        self._view = self._view or uuid.uuid4().hex
        self._session.cells.here().output.show(self._line(), display_id=self._view)

    def _line(self) -> Content:
        return text_content(repr(self))

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
        self._session.unfinished.begin(self)
        name = f"monarch-cell-{self._cell.tag}"
        threading.Thread(target=self._follow, args=(tells,), name=name, daemon=True).start()

    def _follow(self, tells: bool) -> None:
        drawn_s, pending = time.monotonic(), self.pending
        while not self._is_over(WATCH_S):
            self._watch()
            if self.pending != pending or time.monotonic() - drawn_s > pause(self.elapsed_s):
                drawn_s, pending = time.monotonic(), self.pending
                self._redraw()
        self._end()
        self._session.unfinished.end(self)
        if self.error is not None and tells:
            self._session.output.say(self._cell, f"{self.error.traceback}\n")
        self._redraw()

    def _redraw(self) -> None:
        if self._view:
            self._cell.output.redraw(self._line(), display_id=self._view)

    def _submit(self) -> None:
        submit(self._request, self._session, self._cell, self._runs.append)

    def _is_over(self, timeout_s: float) -> bool:
        # Whether all ranks have ended, or those that have not are given up; within that time
        deadline = time.monotonic() + timeout_s
        limit_s = self._request.timeout_s
        if limit_s is not None and not self._overdue:
            deadline = min(deadline, self._cell.started_s + limit_s)
        ended = all(run.wait(max(deadline - time.monotonic(), 0)) for run in self._runs)
        return ended or self._given_up

    def _watch(self) -> None:
        # Now and then: free the lines that wait for ranks which have ended, name who is late
        now = time.monotonic()
        self._cell.output.finish(self.mesh, self._outcomes())
        if self._failed_s is None and self._errors():
            self._failed_s = now
        if self._failed_s and now - self._failed_s > LATE_S and not self._late_ranks_told:
            self._late_ranks_told = True
            self._see_to_late_ranks()
        if self._failed_s and now - self._failed_s > FREE_S and now > self._free_s:
            self._free_s = now + FREE_S
            for run in self._runs:
                run.free_waiting()
        limit_s = self._request.timeout_s
        if limit_s is not None and now >= self._cell.started_s + limit_s:
            self._overdue = self.pending
            self.cancel()
            self._give_time()
            self._given_up = True

    def recalled(self) -> None:
        """Let it end: what it has printed for another kernel is shown."""
        for run in self._runs:
            run.recalled()

    def stop(self) -> None:
        """Interrupt it: the stop button was pressed while nobody waits for it."""
        self.cancel()
        self._give_time()
        if self.pending and (now := self._now()).pending:
            told = wording.after_interrupt(now.pending, now.where)
            self._session.output.say(self._cell, f"{told}\n")

    def _see_to_late_ranks(self) -> None:
        # A script ends everywhere when it has failed somewhere; the ranks of a cell go on
        is_script = isinstance(self._request.work, Script)
        late = wording.who_is_late(self._errors(), self.pending, is_script=is_script)
        if is_script:
            self.cancel()
        self._session.output.say(self._cell, late)

    # --------------------------------------------------------------------------------- ending

    def _interrupted(self) -> CellInterrupted:
        # The stop button: tell the ranks once, give them a moment, then give the prompt back
        if not self._cell.claim_interrupt():
            self.cancel()
        with contextlib.suppress(KeyboardInterrupt):  # pressed again: do not even give the moment
            self._give_time()
        self._end()
        now = self._now()
        if now.unseen:
            look = partial(self._look_again, now.unseen)
            threading.Thread(target=look, name="monarch-look", daemon=True).start()
        told = wording.after_interrupt(now.pending, now.where)
        return CellInterrupted(told, self._traceback(now.errors))

    def _look_again(self, ranks: Sequence[int]) -> None:
        # The prompt does not wait for what a busy machine is slow to tell; it comes below
        found = self._session.control.stacks(self._request.mesh, ranks)
        for line in self._where(found, self.pending):
            self._session.output.say(self._cell, f"{line}\n")

    def _give_time(self) -> None:
        # Ranks have been interrupted: let them end; those that have not heard of it get a signal
        if self._is_over(INTERRUPT_S):
            return
        for run in self._runs:
            if run.unheard:
                self._session.control.signal(run.mesh, run.unheard)
        self._is_over(SIGNAL_S)

    def _end(self) -> None:
        # Show what is left, say how it went; once
        with self._ending:
            if self.done:
                return
            self._took_s = self.elapsed_s
            for run in self._runs:
                left = UnfinishedRun(self.mesh, run, self._cell.number, self._cell.started_s)
                self._session.unfinished.add(left)
            try:
                self._show()
            except Exception:  # a display that is no JSON, a front end that left
                logging.getLogger("monarch_nb").exception("output of a cell could not be shown")
            finally:
                self.error = self._failure()
                if self.error is not None:
                    self._session.cells.failed_on_ranks(self.error)
                self._ended.set()
        for callback in self._when_ended:
            callback()

    def _failure(self) -> CellError | None:
        if self._overdue:
            now, limit_s = self._now(), self._request.timeout_s or 0.0
            told = wording.after_timeout(limit_s, self._overdue, now.pending, now.where)
            text = "\n\n".join(filter(None, [self._traceback(now.errors), f"TimeoutError: {told}"]))
            return CellError(told, now.errors, text, self._total)
        if errors := self._errors():
            return CellError(wording.summary(errors), errors, self._traceback(errors), self._total)
        return None

    def _call_when_ended(self, callback: Callable[[], object]) -> None:
        with self._ending:
            if not self.done:
                self._when_ended.append(callback)
                return
        callback()

    # ------------------------------------------------------------------------------- outcomes

    def _outcomes(self) -> dict[int, CellOutcome]:
        return {rank: one for run in self._runs for rank, one in dict(run.outcomes).items()}

    def _errors(self) -> dict[int, ErrorRecord]:
        return {rank: one.error for rank, one in self._outcomes().items() if one.error}

    def _show(self) -> None:
        results_of = {rank: one.data for rank, one in self._outcomes().items() if one.data}
        self._cell.waiting.rest()
        shown = self._cell.output.conclude(self.mesh, results_of)
        self._cell.output.end()
        for content in results(shown, self._total):
            self._cell.output.show(content)

    def _now(self) -> Standing:
        found: Mapping[int, Sequence[Stack]] = {}
        if pending := self.pending:
            found = self._session.control.stacks(self._request.mesh, pending, brief=True)
        outcomes = self._outcomes()  # afterwards: ranks end while others are looked at
        errors = {rank: one.error for rank, one in outcomes.items() if one.error}
        sent = sorted(rank for run in self._runs for rank in run.ranks)
        left = tuple(rank for rank in sent if rank not in outcomes)
        unseen = tuple(rank for rank in left if rank not in found)
        return Standing(errors, left, self._where(found, left), unseen)

    def _where(self, found: Mapping[int, Sequence[Stack]], pending: Sequence[int]) -> list[str]:
        at_work = {rank: stacks for rank, stacks in found.items() if rank in pending}
        return hangs.where_and_why(self._session.shell, at_work)

    def _traceback(self, errors: dict[int, ErrorRecord]) -> str:
        clean = {rank: hangs.without_noise(record) for rank, record in errors.items()}
        text = wording.traceback(self._session.shell, clean, self._total)
        if left := hangs.who_left(errors):
            text = f"{text}\n\n{left}"
        lost = [rank for rank, one in self._outcomes().items() if one.status == "lost"]
        return f"{text}\n\n{wording.advice(lost, self.ranks)}" if lost else text


def run(session: Session, line: str, body: str) -> MeshCell | None:
    """Run the body on the selected ranks; return the cell if it goes on in the background."""
    session.seen.learn(body)
    return start(session, options.parse_cell(line), body)


def start(session: Session, chosen: RunOptions, work: str | Script) -> MeshCell | None:
    """Do as `run` does, with options that have been read, for the body of a cell or a script."""
    mesh = session.meshes.pick(chosen.name)
    parts = selection.parts(mesh, chosen.selection)
    keep = bool(chosen.out) or not chosen.block
    request = Request(
        mesh, parts, work, chosen.timeout, chosen.layout, keep, fail_fast=chosen.fail_fast
    )
    if chosen.layout.only not in (None, *request.ranks):
        raise MagicError(
            f"--layout rank={chosen.layout.only}: the cell does not run on that rank, "
            f"but on {rank_words(request.ranks)}"
        )
    check_living(session, mesh, request.ranks)
    session.unfinished.wait_for(mesh.name, request.ranks)
    session.link.attach()
    if not isinstance(work, Script):  # its groups are its own
        session.control.settle_groups(mesh)
    if chosen.progress_after is not None:
        session.cells.tell_waits_after(chosen.progress_after)
    cell = MeshCell(session, session.cells.here(), request)
    if session.auto.has_sent(session.cells.here().source):
        label = f"on {cell.mesh} {rank_label(cell.ranks, len(mesh))}".rstrip()
        session.cells.here().output.show(text_content(label, note_html(label)))
    if chosen.out:
        session.shell.user_ns[chosen.out] = cell
    try:
        return _begun(session, cell, chosen, work)
    except SupervisionError as error:  # lost a moment ago
        lost_now = wording.which_are_lost(mesh.name, error.ranks, request.ranks)
        raise MagicError(lost_now) from None


def check_living(session: Session, mesh: ProcMesh, ranks: Sequence[int]) -> None:
    """Raise `MagicError` if some of these ranks are lost."""
    if lost := set(session.control.lost(mesh)).intersection(ranks):
        raise MagicError(wording.which_are_lost(mesh.name, sorted(lost), ranks))


def _begun(
    session: Session, cell: MeshCell, chosen: RunOptions, work: str | Script
) -> MeshCell | None:
    if chosen.block and not chosen.local:
        cell.conduct()
        return None
    cell.follow(tells=not chosen.block)
    if chosen.local:
        _run_here(session, str(work))
    if not chosen.block:
        return cell
    cell.check()
    return None


def _run_here(session: Session, body: str) -> None:
    if not session.shell.run_cell(body, store_history=False).success:
        said = "the cell failed in the controller, see above"
        raise CellError(said, {}, said)
