"""Cells and scripts on a mesh, seen from the controller: code goes out once, an outcome comes back
from each rank.

A cell waits for all of its ranks, also when some have failed: what every rank ended with is the
result. What the ranks print while they run arrives by the client's output.
"""

from __future__ import annotations

import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from monarch_nb.control.client import Client, client
from monarch_nb.control.keeping.adoption import LeftPart
from monarch_nb.control.output.failures import record_of_death
from monarch_nb.core.shape.extent import Shape, Slice
from monarch_nb.core.wire.frames import CONTROL, CONTROL_PORT, HOST_SHIFT, Message
from monarch_nb.core.wire.messages import cells as messages
from monarch_nb.core.wire.messages import codec
from monarch_nb.core.wire.messages.agents import Drain
from monarch_nb.core.wire.messages.keeping import CellsTaken, KeptCell, ResumeCell
from monarch_nb.errors import RemoteProtocolError, SupervisionError
from monarch_nb.meshes import variables
from monarch_nb.meshes.proc_mesh import ProcMesh
from monarch_nb.net import wire
from monarch_nb.process.exit import Exit
from monarch_nb.process.payloads import Payload
from monarch_nb.process.process import Proc, Wait, Waiter

if TYPE_CHECKING:
    from monarch_nb.core.shape.values import ValueMesh
    from monarch_nb.core.wire.messages.codec import Refused, Request
    from monarch_nb.process.futures.future import Future

A = TypeVar("A")
_FAILED: Final = frozenset({"error", "interrupted", "cancelled"})


class CellRun(Waiter):
    """A cell that runs on the ranks of a mesh."""

    def __init__(
        self,
        owner: Client,
        mesh: ProcMesh,
        tag: int,
        *,
        keep: bool = False,
        fail_fast: bool = True,
        ranks: Sequence[int] | None = None,
    ) -> None:
        self.mesh = mesh
        self.tag = tag
        self.started_s = time.monotonic()
        self.outcomes: dict[int, messages.CellOutcome] = {}
        self._client = owner
        self._proc: Proc = owner.proc
        self._cell = messages.RunCell()
        self._fail_fast = fail_fast
        self._rank_of = dict(zip(mesh._processes(), mesh.ranks, strict=True))
        if ranks is not None:
            self._rank_of = {each: rank for each, rank in self._rank_of.items() if rank in ranks}
        self._agent_of = dict(zip(mesh._processes(), mesh._agents(), strict=True))
        self._heard: set[int] = set()
        self._early: list[tuple[int, messages.CellOutcome]] | None = None  # see `resume`
        self._ending = threading.Lock()
        self._ended: set[int] = set()  # ranks whose outcome is there, or about to be
        self._done = threading.Event()
        self._port = self._proc.new_port()
        self._proc.waiting[self._port] = self
        self._results = Results(self._proc, mesh, self._port) if keep else None

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks to which it was sent."""
        return tuple(self._rank_of.values())

    @property
    def pending(self) -> tuple[int, ...]:
        """Ranks that have not ended the cell yet."""
        return tuple(rank for rank in self.ranks if rank not in self.outcomes)

    @property
    def unheard(self) -> tuple[int, ...]:
        """Of the pending ones, those that have not said that they were interrupted."""
        return tuple(rank for rank in self.pending if rank not in self._heard)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for all ranks. False after `timeout_s`. A KeyboardInterrupt passes through."""
        return self._done.wait(timeout_s)

    def done(self) -> bool:
        """Return whether every rank has ended the cell."""
        return self._done.is_set()

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the cell on the ranks that still run it. Returns at once."""
        pending = [process for process, rank in self._rank_of.items() if rank not in self.outcomes]
        self._proc.control_all(pending, messages.InterruptCell(self._port))

    cancel = interrupt

    def values(self) -> Future[ValueMesh[Any]]:
        """Fetch the values of the cell's last expression by rank, if it was run to keep them."""
        return self._kept().fetch()

    def value(self, rank: int) -> Any:
        """Fetch the value of one rank, as `values`. Waits for it."""
        return self._kept().value(rank)

    def _kept(self) -> Results:
        if self._results is None:
            raise RuntimeError("this cell was run without keeping the value of its last expression")
        return self._results

    @property
    def target(self) -> CellRun:
        """Makes `client.interrupt(tag)` find it."""
        return self

    @property
    def cell(self) -> messages.RunCell:
        """What its ranks run."""
        return self._cell

    @property
    def state(self) -> Any:
        """The mesh's state, for supervision: a failure that a cell reports is known."""
        return self.mesh._state

    def send(self, cell: messages.RunCell) -> None:
        """Send the cell to every rank."""
        self._cell = cell
        self._client.elastic.cell_begins(self)
        payload = Payload(codec.encode(cell))
        for process in self._rank_of:
            self._client.output.cell_of[process] = self.tag
        receivers = self._proc.receivers(self._rank_of.items())
        self._proc.cast(receivers, CONTROL, CONTROL_PORT, payload, reply=self._port, tag=self.tag)
        self._proc.look_for_dead(self)

    def recalled(self) -> None:
        """Let it end: what was printed before is recalled."""
        with self._ending:
            early, self._early = self._early or [], None
        for rank, outcome in early:
            self._end(rank, outcome)

    def resume(self, cell: KeptCell) -> None:
        """Have one be answered here that an earlier controller has sent. It ends no sooner than
        `recalled`: what it has printed comes before its end."""
        self._early = []
        self._cell = messages.RunCell(cell.code, cell.filename, cell.first_line, what=cell.what)
        for process in self._rank_of:
            self._client.output.cell_of[process] = self.tag
        self._proc.control_all(
            self._rank_of, ResumeCell(cell.source, cell.reply), reply=self._port, tag=self.tag
        )
        self._proc.look_for_dead(self)

    def deliver(self, message: Message) -> None:
        """Take the word of a rank that has ended the cell, or heard that it is to stop. Inbox
        thread."""
        rank = self._rank_of.get(message.source)
        if rank is None or rank in self.outcomes:
            return
        outcome = codec.decode_answer(messages.CellOutcome, message.payload)
        if isinstance(outcome, codec.Refused):
            raise RemoteProtocolError(outcome.error)
        if outcome.status == "stopping":
            self._heard.add(rank)
            return
        if outcome.error is not None and outcome.number is not None:
            failures = self._client.failures
            failures.cell_failed(message.source, outcome.number, outcome.error, self._cell.what)
        if outcome.raw:  # what C code and children wrote comes by the agent: it is awaited
            self._proc.ask(
                self._agent_of[message.source],
                Drain([message.source]),
                lambda _: self._end(rank, outcome),
            )
        else:
            self._end(rank, outcome)

    def wait_for_people(self) -> Wait:
        state = self.mesh._state
        return Wait("cell", state.name, self.pending, len(state.processes), self.tag)

    def awaited(self) -> list[int]:
        return [each for each, rank in self._rank_of.items() if rank not in self.outcomes]

    def waits_for(self, process: int) -> bool:
        rank = self._rank_of.get(process)
        return rank is not None and rank not in self.outcomes

    def lost(self, ended: Exit) -> None:
        self._client.failures.died_in(ended.process, self._cell.what)
        if not self._client.elastic.holds(ended.process):
            self.lose(self._rank_of[ended.process], ended)

    def lose(self, rank: int, ended: Exit) -> None:
        """Have a rank end the cell by its death."""
        self._end(rank, messages.CellOutcome("lost", record_of_death(ended)))

    def replace(self, rank: int, process: int) -> None:
        """Be run by another process at the place of a rank that was lost."""
        self._rank_of = {each: of for each, of in self._rank_of.items() if of != rank}
        self._rank_of[process] = rank
        self._agent_of[process] = self.state.agents[rank]
        self._client.output.cell_of[process] = self.tag

    def send_again(self, rank: int, cells: Sequence[messages.RunCell]) -> None:
        """Have the process of a rank run these, the last one in place of this cell."""
        process = self.state.processes[rank]
        for each in cells:
            port = self._port if each is cells[-1] else self._proc.new_port()
            self._proc.control(process, each, reply=port, rank=rank, tag=self.tag)

    def abandon(self, ended: Exit) -> None:
        for process in self._rank_of:
            if self.waits_for(process):
                self.lost(Exit(process, reason=ended.reason))

    def free_waiting(self) -> None:
        """Let ranks that wait for those on which it has failed raise: these will not come. Nothing
        if it was run with `fail_fast=False`. Not for the inbox thread."""
        failed = [rank for rank, each in dict(self.outcomes).items() if each.status in _FAILED]
        if failed and self._fail_fast and self.pending:
            self._client.agreements.free(self.state, {self._port: failed})

    def _end(self, rank: int, outcome: messages.CellOutcome) -> None:
        with self._ending:
            if self._early is not None:
                self._early.append((rank, outcome))
                return
            if rank in self._ended:  # it was lost while its output was awaited, or twice
                return
            self._ended.add(rank)
        if outcome.status in _FAILED and self._fail_fast:
            self._proc.call_failed(self.state, self._port, [rank])
        with self._ending:
            self.outcomes[rank] = outcome
            is_last = len(self.outcomes) == len(self._rank_of)
        self._client.elastic.ended_on(self, rank, outcome)
        if is_last:
            self._proc.waiting.pop(self._port, None)
            self._client.elastic.cell_ended(self)
            self._remember()
            if self._client.keeper.keeps(self.state):
                self._proc.control_all(self._rank_of, CellsTaken([self._port]))
            self._done.set()

    def _remember(self) -> None:
        # what a new process may have to run
        if self._cell.script is None:
            well = {
                rank: process
                for process, rank in self._rank_of.items()
                if self.outcomes[rank].status == "ok"
            }
            self._client.history.add(self.state.number, self._cell, well)

    def __repr__(self) -> str:
        running = f"ranks {list(self.pending)} running"
        return f"<CellRun on {self.mesh!r}: {len(self.outcomes)} done, {running}>"


class Results:
    """The values of last expressions that ranks keep for the cell which answered to port `reply`:
    fetched once, when somebody looks; dropped with its handle."""

    def __init__(self, proc: Proc, mesh: ProcMesh, reply: int) -> None:
        self._proc = proc
        self._mesh = mesh
        self._reply = reply
        self._all: Future[ValueMesh[Any]] | None = None
        self._dropping = weakref.finalize(self, _drop_later, proc, tuple(mesh._processes()), reply)
        self._dropping.atexit = False

    def fetch(self) -> Future[ValueMesh[Any]]:
        """Fetch the values of all ranks, with the shape of the mesh; unpickled when looked at."""
        found = self._all
        if found is None or _has_failed(found):
            found = self._all = variables.fetch_result(self._mesh._part, self._reply)
            found.add_done_callback(self._fetched)
        return found

    def value(self, rank: int) -> Any:
        """Fetch the value of one rank of the mesh. Waits for it."""
        if self._all is not None and not _has_failed(self._all):
            return self._all.get()[self._mesh.ranks.index(rank)]
        alone = self._mesh._new_with_shape(Shape([], Slice(offset=rank, sizes=[], strides=[])))
        return variables.fetch_result(alone._part, self._reply).get().item()

    def _fetched(self, answered: Future[Any]) -> None:
        # All values are here: the ranks need not keep them. Inbox thread.
        if not _has_failed(answered) and self._dropping.detach():
            _drop(self._proc, self._mesh._processes(), self._reply)


def _has_failed(future: Future[Any]) -> bool:
    return future.done() and future.exception() is not None


def _drop_later(proc: Proc, processes: Iterable[int], reply: int) -> None:
    # runs inside a garbage collection: nothing here may take a lock that its victim holds
    if not proc.closed:
        threading.Thread(
            target=_drop, args=(proc, processes, reply), name="monarch-garbage", daemon=True
        ).start()


def _drop(proc: Proc, processes: Iterable[int], reply: int) -> None:
    proc.control_all(processes, messages.DropResult(reply))


def run_cell(
    mesh: ProcMesh,
    code: str,
    *,
    filename: str,
    first_line: int,
    tag: int,
    keep: bool = False,
    what: str = "cell",
    fail_fast: bool = True,
) -> CellRun:
    """Start a cell on all ranks of a mesh or slice. Does not block.

    Args:
        code: the cell's body.
        filename, first_line: where its first line stands, for tracebacks and debuggers.
        tag: the notebook cell under which its output belongs.
        keep: ranks keep the value of the last expression, for `CellRun.values`.
        what: what views call it, while it runs and where it has failed.
        fail_fast: ranks are freed where they wait for one on which the cell has failed.

    Raises:
        RuntimeError: the mesh has been stopped.
        SupervisionError: some of these ranks are lost already.
    """
    cell = messages.RunCell(code, filename, first_line, what=what, keep=keep)
    return start(mesh, cell, tag, fail_fast=fail_fast)


def resume(left: LeftPart, tag: int) -> CellRun:
    """Have a cell be answered here that an earlier controller has left on these ranks."""
    run = CellRun(client(), left.mesh, tag, keep=left.cell.keep, ranks=left.ranks)
    run.resume(left.cell)
    return run


def start(mesh: ProcMesh, cell: messages.RunCell, tag: int, *, fail_fast: bool = True) -> CellRun:
    """Send a cell, or what runs like one, to all ranks of a mesh or slice."""
    state = mesh._state
    if state.ended is not None:
        raise RuntimeError(f"mesh {state.name!r} has been stopped: {state.ended}")
    lost = [rank for rank in mesh.ranks if state.processes[rank] in client().proc.dead]
    if lost:
        raise _refusal(mesh, lost)
    run = CellRun(client(), mesh, tag, keep=cell.keep, fail_fast=fail_fast)
    run.send(cell)
    return run


def _refusal(mesh: ProcMesh, lost: list[int]) -> SupervisionError:
    state = mesh._state
    dead = client().proc.dead
    what = "; ".join(f"rank {rank} {dead[state.processes[rank]].plainly()}" for rank in lost)
    living = ",".join(str(rank) for rank in mesh.ranks if rank not in lost)
    others = f"Run on the others: %%mesh {living}. " if living else ""
    return SupervisionError(
        f"{what}. {others}Bring {'it' if len(lost) == 1 else 'them'} back: %mesh heal",
        ranks=tuple(lost),
    )


def script_of(
    parts: Sequence[ProcMesh], name: str, args: Sequence[str], *, module: bool
) -> messages.Script:
    """Describe what is to run on these parts of a mesh: a file, or a `module`.

    All parts are one world, whose ranks count from 0 in the order of the mesh."""
    process_of = {
        rank: process
        for part in parts
        for rank, process in zip(part.ranks, part._processes(), strict=True)
    }
    ranks = sorted(process_of)
    hosts = [process_of[rank] >> HOST_SHIFT for rank in ranks]
    run, port = uuid.uuid4().hex, wire.free_port()
    return messages.Script(name, list(args), module, ranks, hosts, run, port)


def run_script(part: ProcMesh, script: messages.Script, *, tag: int, keep: bool = False) -> CellRun:
    """Start a script on one of its parts, as a cell is. Does not block. Raises as `run_cell`."""
    what = PurePath(script.name).name
    cell = messages.RunCell(script=script, what=what, keep=keep)
    return start(part, cell, tag, fail_fast=False)


def ask(
    proc: Proc,
    mesh: ProcMesh,
    rank: int,
    request: Request[A],
    timeout_s: float,
    late: Callable[[A | Refused], None],
) -> A | Refused | None:
    """Ask a rank, and wait no longer than somebody who types would: None for no answer in time.

    `late` is called in the inbox thread with one that comes afterwards. Raises nothing for what the
    rank does: one that is lost or could not answer refuses."""
    asked = _Question(late)
    proc.ask(mesh._state.processes[rank], request, asked.answered)
    return asked.wait(timeout_s)


class _Question(Generic[A]):
    """One answer, which two threads may decide to be too late."""

    def __init__(self, late: Callable[[A | Refused], None]) -> None:
        self._late = late
        self._lock = threading.Lock()
        self._has_come = threading.Event()
        self._answer: A | Refused | None = None
        self._given_up = False

    def wait(self, timeout_s: float) -> A | Refused | None:
        self._has_come.wait(timeout_s)
        with self._lock:
            self._given_up = self._answer is None
            return self._answer

    def answered(self, answer: A | Refused) -> None:
        with self._lock:
            if not self._given_up:
                self._answer = answer
                self._has_come.set()
                return
        self._late(answer)
