"""Cells on a mesh, seen from the controller: code goes out once, an outcome comes back from each
rank.

A cell waits for all of its ranks, also when some have failed: what every rank ended with is the
result. What the ranks print while they run arrives by the client's output.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from monarch_nb.control.cells.results import Results
from monarch_nb.control.client import Client, client
from monarch_nb.control.output.failures import record_of_death
from monarch_nb.core.wire.frames import CONTROL, CONTROL_PORT, Message
from monarch_nb.core.wire.messages import codec
from monarch_nb.core.wire.messages.agents import Drain
from monarch_nb.core.wire.messages.cells import CellOutcome, InterruptCell, RunCell
from monarch_nb.errors import RemoteProtocolError, SupervisionError
from monarch_nb.meshes.proc_mesh import ProcMesh
from monarch_nb.process.exit import Exit
from monarch_nb.process.payloads import Payload
from monarch_nb.process.process import Proc, Wait, Waiter

if TYPE_CHECKING:
    from monarch_nb.core.shape.values import ValueMesh
    from monarch_nb.process.futures.future import Future


class CellRun(Waiter):
    """A cell that runs on the ranks of a mesh."""

    def __init__(self, owner: Client, mesh: ProcMesh, tag: int, *, keep: bool = False) -> None:
        self.mesh = mesh
        self.tag = tag
        self.started_s = time.monotonic()
        self.outcomes: dict[int, CellOutcome] = {}
        self._client = owner
        self._proc: Proc = owner.proc
        self._what = "cell"
        self._rank_of = dict(zip(mesh._processes(), mesh.ranks, strict=True))
        self._agent_of = dict(zip(mesh._processes(), mesh._agents(), strict=True))
        self._heard: set[int] = set()
        self._done = threading.Event()
        self._port = self._proc.new_port()
        self._proc.waiting[self._port] = self
        self._results = Results(self._proc, mesh, self._port) if keep else None

    @property
    def pending(self) -> tuple[int, ...]:
        """Ranks that have not ended the cell yet."""
        return tuple(rank for rank in self.mesh.ranks if rank not in self.outcomes)

    @property
    def unheard(self) -> tuple[int, ...]:
        """Of the pending ones, those that have not said that they were interrupted."""
        return tuple(rank for rank in self.pending if rank not in self._heard)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for all ranks. False after `timeout_s`. A KeyboardInterrupt passes through."""
        return self._done.wait(timeout_s)

    def done(self) -> bool:
        """Whether every rank has ended the cell."""
        return self._done.is_set()

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the cell on the ranks that still run it. Returns at once."""
        for process, rank in self._rank_of.items():
            if rank not in self.outcomes:
                self._proc.control(process, InterruptCell(self._port))

    cancel = interrupt

    def values(self) -> Future[ValueMesh[Any]]:
        """The values of the cell's last expression by rank, of a cell that was run to keep them."""
        return self._kept().fetch()

    def value(self, rank: int) -> Any:
        """As `values`, of one rank. Waits for it."""
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
    def state(self) -> Any:
        """The mesh's state, for supervision: a failure that a cell reports is known."""
        return self.mesh._state

    def send(self, cell: RunCell) -> None:
        """Send the cell to every rank."""
        self._what = cell.what
        payload = Payload(codec.encode(cell))
        for process, rank in self._rank_of.items():
            self._client.output.cell_of[process] = self.tag
            if process in self._proc.dead:
                self.lost(self._proc.dead[process])
                continue
            self._proc.send(
                process, CONTROL, CONTROL_PORT, payload, reply=self._port, rank=rank, tag=self.tag
            )
        for process in list(self._proc.dead):
            if self.waits_for(process):
                self.lost(self._proc.dead[process])

    def deliver(self, message: Message) -> None:
        """A rank has ended the cell, or heard that it is to stop. Inbox thread."""
        rank = self._rank_of.get(message.source)
        if rank is None or rank in self.outcomes:
            return
        outcome = codec.decode_answer(CellOutcome, message.payload)
        if isinstance(outcome, codec.Refused):
            raise RemoteProtocolError(outcome.error)
        if outcome.status == "stopping":
            self._heard.add(rank)
            return
        if outcome.error is not None and outcome.number is not None:
            failures = self._client.failures
            failures.cell_failed(message.source, outcome.number, outcome.error, self._what)
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

    def waits_for(self, process: int) -> bool:
        rank = self._rank_of.get(process)
        return rank is not None and rank not in self.outcomes

    def lost(self, ended: Exit) -> None:
        rank = self._rank_of[ended.process]
        self._end(rank, CellOutcome("lost", record_of_death(ended)))

    def abandon(self, ended: Exit) -> None:
        for process in self._rank_of:
            if self.waits_for(process):
                self.lost(Exit(process, reason=ended.reason))

    def _end(self, rank: int, outcome: CellOutcome) -> None:
        if rank in self.outcomes:  # it was lost while its output was awaited
            return
        self.outcomes[rank] = outcome
        if len(self.outcomes) == len(self._rank_of):
            self._proc.waiting.pop(self._port, None)
            self._done.set()

    def __repr__(self) -> str:
        running = f"ranks {list(self.pending)} running"
        return f"<CellRun on {self.mesh!r}: {len(self.outcomes)} done, {running}>"


def run_cell(
    mesh: ProcMesh,
    code: str,
    *,
    filename: str,
    first_line: int,
    tag: int,
    keep: bool = False,
    what: str = "cell",
) -> CellRun:
    """Start a cell on all ranks of a mesh or slice. Does not block.

    Args:
        code: the cell's body.
        filename, first_line: where its first line stands, for tracebacks and debuggers.
        tag: the notebook cell under which its output belongs.
        keep: ranks keep the value of the last expression, for `CellRun.values`.
        what: what views call it, while it runs and where it has failed.

    Raises:
        RuntimeError: the mesh has been stopped.
        SupervisionError: some of these ranks are lost already.
    """
    cell = RunCell(code, filename, first_line, what=what, keep=keep)
    return start(mesh, cell, tag)


def start(mesh: ProcMesh, cell: RunCell, tag: int) -> CellRun:
    """Send a cell, or what runs like one, to all ranks of a mesh or slice."""
    state = mesh._state
    if state.ended is not None:
        raise RuntimeError(f"mesh {state.name!r} has been stopped: {state.ended}")
    lost = [rank for rank in mesh.ranks if state.processes[rank] in client().proc.dead]
    if lost:
        raise _refusal(mesh, lost)
    run = CellRun(client(), mesh, tag, keep=cell.keep)
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
