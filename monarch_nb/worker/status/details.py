"""What this rank knows of itself beyond the board: actors, errors, threads, pauses, stacks.

Answered in the inbox thread, so also while user code runs. Looks only, calls no user code.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from monarch_nb.core.hangs.stacks import UNNAMED, Frame, calls_of_user, file_name
from monarch_nb.core.wire.messages import status
from monarch_nb.process.futures.ask_all import Question

if TYPE_CHECKING:
    from types import FrameType

    from monarch_nb.actors.driver import Driver
    from monarch_nb.actors.hosting import Hosting
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.process.process import Proc
    from monarch_nb.worker.cells.queue import CellQueue
    from monarch_nb.worker.status.board_writer import BoardWriter

ANSWER_S: Final = 3.0
MAX_CALLS: Final = 100  # of a thread, the innermost; as many as faulthandler writes


class Details:
    def __init__(self, hosting: Hosting, cells: CellQueue) -> None:
        self._hosting = hosting
        self._cells = cells

    def on_details(self, wanted: status.GetDetails, message: Message) -> None:
        """Tell what this rank knows of itself. Inbox thread."""
        hosting, cells = self._hosting, self._cells
        actors = [_actor(each) for each in list(hosting.drivers.values())]
        errors = hosting.recent_errors.since(wanted.since)
        details = status.RankDetails(os.getpid(), actors, cells.what or None, cells.waiting, errors)
        hosting.proc.answer(message, details)

    def on_stacks(self, _: status.GetStacks, message: Message) -> None:
        """Tell where all threads are in code of the user's. Inbox thread.

        With Python's lock held, unlike a signal's handler: no frame is taken away under the reader.
        """
        names = self._thread_names()
        main = threading.main_thread().ident
        found = [
            (ident != main, names.get(ident, UNNAMED), list(calls_of_user(_calls(frame))))
            for ident, frame in sys._current_frames().items()
        ]
        stacks = [
            status.ThreadStack(name if is_beside else "", calls)
            for is_beside, name, calls in sorted(found, key=lambda each: each[:2])
            if calls
        ]
        self._hosting.proc.answer(message, status.RankStacks(stacks))

    def _thread_names(self) -> dict[int | None, str]:
        actors = {
            driver.thread.ident: f"actor {driver.spec.name}"
            for driver in list(self._hosting.drivers.values())
            if driver.thread is not None
        }
        return {each.ident: each.name for each in threading.enumerate()} | actors


def _calls(innermost: FrameType) -> list[Frame]:
    frames = islice(_outwards(innermost), MAX_CALLS)
    return [
        Frame(each.f_code.co_filename, each.f_lineno or 0, each.f_code.co_name) for each in frames
    ]


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _actor(driver: Driver) -> status.ActorDetails:
    spec = driver.spec
    return status.ActorDetails(
        spec.port, spec.name, spec.class_name, driver.calls, driver.failed, driver.queue,
        driver.current,
    )  # fmt: skip


def write_stacks_on_signal(run_dir: Path, process: int) -> None:
    """Have faulthandler write where all threads are on SIGRTMIN; the agent reads it.

    Nothing of Python runs for that: it works while C code holds the interpreter. And only then is
    it safe: the frames of a thread that runs may be gone while the handler reads them, and the rank
    crashes. So the signal is for a rank that does not answer. The file gets its name last: who
    finds it may send the signal.
    """
    path = run_dir / file_name(process)
    new = path.with_suffix(".new")
    file = new.open("ab", buffering=0)
    faulthandler.register(signal.SIGRTMIN, file, all_threads=True)
    new.rename(path)


class Pauses:
    """When debuggers have paused this rank, and its mesh: that by way of the controller, asked only
    by a collective whose time is over. Who cannot be asked was not paused."""

    def __init__(self, proc: Proc, board: BoardWriter) -> None:
        self._proc = proc
        self._board = board

    def on_paused(self, _: status.GetHeldSpans, message: Message) -> None:
        """Tell when a debugger paused a thread of this rank, as seconds ago. Inbox thread."""
        self._proc.answer(message, status.HeldSpans(self._board.paused_ago()))

    def of_mesh_s(self, within_s: float) -> float:
        """Ask for how long, in the last seconds, any rank of the mesh was paused. Not the inbox."""
        if self._proc.links.forked or self._proc.links.is_receiving():
            return 0.0
        controller = self._proc.controller
        question = Question(self._proc, {controller: status.GetHeldOfMesh(within_s)})
        self._proc.links.flush()
        told = question.wait(ANSWER_S).get(controller)
        return told.held_s if isinstance(told, status.HeldFor) else 0.0
