"""Cells on their way through a rank: from the control message to the outcome that is sent back.

A cell waits for its turn on the main thread. While a cell waits for an answer, the main-thread
actor goes on being served, so a cell may call the actor of its own rank.
"""

from __future__ import annotations

import dataclasses
import json
import queue
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from monarch_nb.actors.context import Here, here
from monarch_nb.actors.future import waiting
from monarch_nb.actors.parcels import Parcel
from monarch_nb.actors.runtime_access import end_fork
from monarch_nb.core.frames import CONTROL, OUTPUT, OUTPUT_PORT
from monarch_nb.worker.cells import CellShell, Publish
from monarch_nb.worker.code import keep
from monarch_nb.worker.outcomes import CellOutcome
from monarch_nb.worker.scripts import ScriptRun

if TYPE_CHECKING:
    from monarch_nb.actors.runtime import Runtime
    from monarch_nb.actors.sync_driver import WorkQueue
    from monarch_nb.core.frames import Message


MAX_RESULTS: Final = 32
"""Results that are kept for handles of cells; the oldest goes."""


class CellQueue:
    """Runs the cells of a rank, one at a time."""

    def __init__(self, runtime: Runtime, work: WorkQueue, names: dict[str, Any]) -> None:
        self.runtime = runtime
        self.proc = runtime.proc
        self.work = work
        self.shell = CellShell(names, lambda shown: self._display(runtime.root_tag(), shown))
        self.results: dict[tuple[int, int], Any] = {}
        """Values of last expressions, by who has asked for that and the reply port of the cell."""
        self._dropped: set[int] = set()
        self._running: int | None = None
        self._attending = 0

    # the inbox thread

    def on_cell(self, body: dict[str, Any], message: Message) -> None:
        """A cell has come: queue it for the main thread."""
        self.work.put((Turn(lambda asked: self.run(body, asked)), message))

    def on_interrupt(self, body: dict[str, Any], message: Message) -> None:
        """Stop the cell that answers to this port: interrupt it, or drop it from the queue."""
        port = body["reply"]
        if self._running == port or self._attending:  # it waits for a widget's callback to end
            self.runtime.hosting.interrupt_main()
        if self._running != port:
            self._dropped.add(port)
        # in either case: who has not heard gets a SIGINT, which would hit the cell that runs
        heard = Parcel(json.dumps({"status": "stopping"}).encode())
        self.proc.send(message.source, CONTROL, port, heard)

    @property
    def is_running(self) -> bool:
        """Whether a cell runs."""
        return self._running is not None

    def interrupt(self) -> None:
        """Stop whatever cell runs."""
        if self._running is not None or self._attending:
            self.runtime.hosting.interrupt_main()

    # the main thread

    def run(self, body: dict[str, Any], message: Message) -> None:
        """Run a cell and send its outcome."""
        if message.reply in self._dropped:
            self._dropped.discard(message.reply)
            self._answer(message, {"status": "cancelled"})
            return
        self.enter(body.get("what") or "cell", message.tag)
        data: list[dict[str, Any]] = []
        waiting.pump = self._pump
        self._running = message.reply
        try:
            outcome = self._outcome(
                body, message, lambda shown: self._publish(shown, message, data)
            )
        finally:
            if self.proc.links.forked:
                end_fork(None)
            self._running = None
            waiting.pump = None
        self.leave()
        if body.get("keep") and outcome.error is None:
            keep(self.results, (message.source, message.reply), outcome.value, MAX_RESULTS)
        self._answer(
            message,
            {
                "status": outcome.status,
                "error": None if outcome.error is None else outcome.error.to_json(),
                "text": outcome.result_text,
                "data": data[-1] if data else None,
                "elapsed_s": outcome.elapsed_s,
            },
        )

    def enter(self, what: str, tag: int) -> None:
        """The main thread works for a notebook cell now: what is called and printed is of that."""
        root = self.runtime.root
        extent = root.rank.extent
        here.set(Here(root, tuple(extent), tuple(extent.values()), root.rank.rank, tag))
        if (board := self.runtime.hosting.board) is not None:
            board.busy(what)

    def leave(self) -> None:
        """It has no work."""
        if (board := self.runtime.hosting.board) is not None:
            board.idle()

    def _outcome(self, body: dict[str, Any], message: Message, publish: Publish) -> CellOutcome:
        if "script" not in body:
            where = {"filename": body["filename"], "first_line": body["first_line"]}
            return self.shell.run(body["code"], **where, publish=publish)
        with ScriptRun(body["script"], message.rank) as script:
            return self.shell.perform(script.run, publish)

    def _publish(self, shown: dict[str, Any], message: Message, data: list[dict[str, Any]]) -> None:
        """The last expression's display travels with the outcome; the rest at once, in order."""
        if shown["type"] == "execute_result":
            data.append(shown)
            return
        caller = here.get()  # none in a thread of the cell; an actor may be called by another cell
        self._display(message.tag if caller is None else caller.tag, shown)

    def _display(self, tag: int, shown: dict[str, Any]) -> None:
        self.flush()
        boot = {
            "mesh": 0,
            "rank": self.runtime.root.rank.rank,
            "stream": "display",
            "content": shown,
        }
        payload = json.dumps(boot).encode()
        self.proc.send(self.proc.controller, OUTPUT, OUTPUT_PORT, Parcel(payload), tag=tag)

    def attend(self, tag: int, action: Callable[[], object]) -> None:
        """Run a callback of a widget for the cell that made it; also while a cell waits."""
        outer = here.get()
        self.enter("widget", tag)
        self._attending += 1
        try:
            self.shell.attend(action, partial(self._display, tag))
        finally:
            self._attending -= 1
            here.set(outer)
            if self.proc.links.forked:
                end_fork(None)
        self.flush()
        if self._running is None:
            self.leave()

    def _answer(self, message: Message, body: dict[str, Any]) -> None:
        self.flush()
        payload = json.dumps(body).encode()
        self.proc.send(
            message.source,
            CONTROL,
            message.reply,
            Parcel(payload),
            rank=message.rank,
            tag=message.tag,
        )

    def flush(self) -> None:
        """Send what was printed, ahead of what is sent next."""
        flush = self.runtime.hosting.flush_output
        if flush is not None:
            flush()

    def _pump(
        self,
        done: Callable[[], bool],
        wake_on: Callable[[Callable[[], None]], None],
        timeout: float | None,
    ) -> bool:
        """Wait for an answer and serve the main-thread actor meanwhile; cells keep waiting."""
        deadline = None if timeout is None else time.monotonic() + timeout
        wake_on(lambda: self.work.put((_WAKE, None)))
        kept = []
        while not done():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            try:
                item = self.work.get(timeout=left)
            except queue.Empty:
                break
            if item is None or isinstance(item[0], Turn):
                kept.append(item)
                if item is None:
                    break
            else:
                item[0].step(item[1])
        for item in kept:
            self.work.put(item)
        return done()


@dataclasses.dataclass
class Turn:
    """Something that is done between two cells, in the order in which it was asked for."""

    action: Callable[[Message], None]

    def step(self, message: Message | None) -> None:
        assert message is not None
        self.action(message)


class _Wake:
    def step(self, _: Message | None) -> None:
        """Only wakes the wait."""


_WAKE = _Wake()
