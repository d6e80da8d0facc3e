"""Cells on their way through a rank: from the control message to the outcome that is sent back.

A cell waits for its turn on the main thread. While a cell waits for an answer, the main-thread
actor goes on being served, so a cell may call the actor of its own rank. Turns are taken in the
order in which they were asked for, whatever happens in between: ranks that disagreed about the
order of two cells with collectives would wait for each other for ever.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from monarch_nb.actors.post_mortem import CELLS
from monarch_nb.actors.sync_driver import Task
from monarch_nb.core.points import point
from monarch_nb.core.wire.frames import CONTROL, OUTPUT_PORT
from monarch_nb.core.wire.messages.cells import (
    PAST,
    CellOutcome,
    InterruptCell,
    Output,
    RunCell,
)
from monarch_nb.core.wire.messages.codec import Refused, encode_answer, encode_output
from monarch_nb.core.wire.messages.keeping import CellsTaken, ResumeCell
from monarch_nb.process.current import end_fork
from monarch_nb.process.futures.future import waiting
from monarch_nb.process.instance import CallContext, here
from monarch_nb.process.payloads import Payload
from monarch_nb.worker.cells.compiler import keep
from monarch_nb.worker.cells.shell import CellShell, Publish, forget_last_error
from monarch_nb.worker.cells.unseen import UnseenCells
from monarch_nb.worker.groups.process_groups import ProcessGroups
from monarch_nb.worker.groups.replaying import Replaying
from monarch_nb.worker.output.descriptors import Descriptors
from monarch_nb.worker.scripts.run import ScriptRun

if TYPE_CHECKING:
    from monarch_nb.actors.sync_driver import Work, WorkQueue
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.services.runtime import Runtime
    from monarch_nb.worker.controller import Controller

Turn = Callable[["Message"], None]

MAX_RESULTS: Final = 32
"""Results that are kept for handles of cells; the oldest goes."""


class CellQueue:
    """Runs the cells of a rank, one at a time."""

    def __init__(
        self,
        runtime: Runtime,
        work: WorkQueue,
        names: dict[str, object],
        controller: Controller,
        unseen: UnseenCells,
        descriptors: Descriptors,
        groups: ProcessGroups,
        again: Replaying,
        before_answer: Callable[[], None] = lambda: None,
    ) -> None:
        self.runtime = runtime
        self.proc = runtime.proc
        self.work = work
        self.shell = CellShell(
            names,
            lambda shown: self._display(runtime.root_tag(), shown),
            lambda error: runtime.hosting.failed.seen(CELLS, groups.explained(error)),
        )
        self.results: dict[tuple[int, int], object] = {}
        """Values of last expressions, by who has asked for that and the reply port of the cell."""
        self.before_answer = before_answer
        """Called when a cell has ended."""
        self.what = ""
        """What the main thread works at; empty: it runs nothing of the user's."""
        self.unseen = unseen
        self._controller = controller
        self._descriptors = descriptors
        self._groups = groups
        self._again = again
        self._turns: deque[tuple[Turn, Message]] = deque()
        self._next: Work = (Task(self._take_turn), None)
        self._wake: Work = (Task(lambda: None), None)
        self._running: tuple[int, int] | None = None
        self._attending = 0
        self._lock = threading.Lock()
        """Who is to stop a cell finds it either waiting or running."""

    # the inbox thread

    def on_cell(self, cell: RunCell, message: Message) -> None:
        if self._controller.keeps:
            self.unseen.add(cell, message)
        self.later(lambda asked: self.run(cell, asked), message)

    def later(self, turn: Turn, message: Message) -> None:
        """Do something between two cells, in the order in which it was asked for."""
        self._turns.append((turn, message))
        self.work.put(self._next)
        if (board := self.runtime.hosting.board) is not None and board.since_ns:
            board.arrived(self.work.qsize())

    def answer_later(
        self, do: Callable[[], object], failed: Callable[[str], object], message: Message
    ) -> None:
        """Do something between two cells, and answer with what it returns, or with what `failed`
        makes of an error in words."""

        def turn(asked: Message) -> None:
            try:
                answer = do()
            except BaseException as error:  # noqa: BLE001  PyTorch's, told to who has asked
                answer = failed(f"{type(error).__name__}: {error}")
            self.proc.answer(asked, answer)

        self.later(turn, message)

    def on_interrupt(self, interrupt: InterruptCell, message: Message) -> None:
        """Stop the cell that answers to this port: interrupt it, or drop it from the queue."""
        key = self.unseen.original((message.source, interrupt.reply))
        point("interrupt")
        with self._lock:
            if self._running == key or self._attending:  # it waits for a widget's callback to end
                self.runtime.hosting.interrupt_main()
            dropped = [turn for turn in self._turns if _key(turn[1]) == key]
            for turn in dropped:
                self._turns.remove(turn)
        # in either case: who has not heard gets a SIGINT, which would hit the cell that runs
        heard = Payload(encode_answer(CellOutcome("stopping")))
        self.proc.send(message.source, CONTROL, interrupt.reply, heard)
        for _, cell in dropped:
            self._say(cell, CellOutcome("cancelled"))

    def on_resume(self, wanted: ResumeCell, message: Message) -> None:
        """Answer the sender in place of the controller before, now if the cell is over."""
        old = wanted.source, wanted.reply
        with self._lock:
            resumed = self.unseen.resume(old, message)
            if old in self.results:
                self.results[_key(message)] = self.results.pop(old)
        if resumed is None:
            gone = "this rank does not know the cell any more: too many have run since"
            self.proc.answer(message, Refused(gone))
            return
        self._controller.rename(resumed.tag, message.tag)
        if resumed.outcome is not None:
            self._send(message, resumed.outcome)

    def on_taken(self, taken: CellsTaken, message: Message) -> None:
        """Forget outcomes that the controller has seen."""
        self.unseen.forget((message.source, reply) for reply in taken.replies)

    def interrupt(self) -> None:
        if self._running is not None or self._attending:
            self.runtime.hosting.interrupt_main()

    # the main thread

    def run(self, cell: RunCell, message: Message) -> None:
        self.enter(cell.what, message.tag)
        if cell.again:
            self._again.begin(is_of_the_past=cell.again == PAST)
        data: list[dict[str, object]] = []
        waiting.begin(self._pump)
        outcome = self._outcome(cell, message, lambda shown: self._publish(shown, message, data))
        if self.proc.links.forked:
            end_fork(None if outcome.error is None else sys.last_value)
        waiting.end()
        point("cell.end")
        self._again.end()
        if outcome.error is None and self.runtime.hosting.failed.kept:
            self._forget_failed()
        self.leave(failed=outcome.status == "error")
        if cell.keep and outcome.error is None:
            keep(self.results, _key(self.unseen.asker(message)), self.shell.value, MAX_RESULTS)
        self.before_answer()
        self.flush()
        self._say(
            message,
            outcome._replace(
                number=self._note(cell, message, outcome),
                data=data[-1] if data else None,
                raw=self._descriptors.is_on_its_way(),
            ),
        )

    def _take_turn(self) -> None:
        with self._lock:
            if not self._turns:
                return
            turn, message = self._turns.popleft()
            self._running = _key(message)
            self.shell.expect()
        turn(message)
        with self._lock:
            self._running = None
            self.shell.rest()

    def enter(self, what: str, tag: int) -> None:
        """Say what the main thread works at; what is called and printed is of that notebook
        cell."""
        self._work_for(tag)
        self.what = what
        if (board := self.runtime.hosting.board) is not None:
            board.turn(what)

    def leave(self, *, failed: bool = False) -> None:
        self.what = ""
        if (board := self.runtime.hosting.board) is not None:
            board.turned(failed)

    def _work_for(self, tag: int) -> None:
        root = self.runtime.root
        extent = root.rank.extent
        here.set(CallContext(root, tuple(extent), tuple(extent.values()), root.rank.rank, tag))

    def _outcome(self, cell: RunCell, message: Message, publish: Publish) -> CellOutcome:
        if cell.script is None:
            return self.shell.run(
                cell.code, filename=cell.filename, first_line=cell.first_line, publish=publish
            )
        with ScriptRun(cell.script, message.rank, self._groups) as script:
            return self.shell.perform(script.run, publish)

    def _publish(
        self, shown: dict[str, object], message: Message, data: list[dict[str, object]]
    ) -> None:
        # The last expression's display travels with the outcome; the rest at once, in order
        if shown["type"] == "execute_result":
            data.append(shown)
            return
        caller = here.get()  # none in a thread of the cell; an actor may be called by another cell
        self._display(message.tag if caller is None else caller.tag, shown)

    def _display(self, tag: int, shown: dict[str, object]) -> None:
        self.flush()
        if self._groups.is_alone:
            return
        output = Output(0, self.runtime.root.rank.rank, "display", content=shown)
        payload = self.proc.encode_bytes(encode_output(output))
        self._controller.send_output(OUTPUT_PORT, payload, tag)

    def run_callback(self, tag: int, action: Callable[[], object]) -> None:
        """Run a callback of a widget for the cell that made it; also while a cell waits."""
        outer, board = here.get(), self.runtime.hosting.board
        self._work_for(tag)
        if board is not None:
            board.busy("widget")
        self._attending += 1
        try:
            self.shell.run_callback(action, partial(self._display, tag))
        finally:
            self._attending -= 1
            here.set(outer)
            if self.proc.links.forked:
                end_fork(None)
        self.flush()
        if board is not None:
            board.idle()

    def _forget_failed(self) -> None:
        self.runtime.hosting.failed.forget(CELLS)
        forget_last_error()

    def _note(self, cell: RunCell, message: Message, outcome: CellOutcome) -> int | None:
        if outcome.status != "error" or outcome.error is None:
            return None
        record = outcome.error.to_json()
        return self.runtime.hosting.recent_errors.note(cell.what, message.tag, record)

    @property
    def turn(self) -> tuple[int, int] | None:
        """Who is answered by what the main thread does: process and port; None: nobody is."""
        return self._running

    @property
    def waiting(self) -> int:
        return len(self._turns)

    def _say(self, cell: Message, outcome: CellOutcome) -> None:
        with self._lock:  # who resumes it meanwhile finds its end, or is told of it
            self.unseen.ended(_key(cell), outcome)
            asker = self.unseen.asker(cell)
        self._send(asker, outcome)

    def _send(self, cell: Message, outcome: CellOutcome) -> None:
        payload = self.proc.encode_bytes(encode_answer(outcome))
        self.proc.send(cell.source, CONTROL, cell.reply, payload, rank=cell.rank, tag=cell.tag)

    def flush(self) -> None:
        flush = self.runtime.hosting.flush_output
        if flush is not None:
            flush()

    def _pump(
        self,
        done: Callable[[], bool],
        wake_on: Callable[[Callable[[], None]], None],
        timeout: float | None,
    ) -> bool:
        # Wait for an answer and serve the main-thread actor meanwhile; cells keep waiting
        deadline = None if timeout is None else time.monotonic() + timeout
        wake_on(lambda: self.work.put(self._wake))
        is_leaving = False
        try:
            while not (done() or is_leaving):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                try:
                    item = self.work.get(timeout=left)
                except queue.Empty:
                    break
                is_leaving = item is None
                if item is not None and item is not self._next:
                    item[0].step(item[1])
        finally:  # an interrupt too must leave no turn without a summons; one too many does nothing
            for _ in range(len(self._turns)):
                self.work.put(self._next)
            if is_leaving:
                self.work.put(None)
        return done()


def _key(message: Message) -> tuple[int, int]:
    return message.source, message.reply
