"""The controller as a rank sees it: where its output goes, and who takes the place of one that has
gone.

A rank of a kept mesh logs all that it sends to the controller, so that the next one has it, whole
and in order, whatever became of the first. Such a rank waits for nobody: what it sends to a
controller that has gone is in the log alone. Messages are handled in the inbox thread.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from monarch_nb.core.wire.frames import OUTPUT
from monarch_nb.core.wire.messages.keeping import (
    ControllerGone,
    Inventory,
    LogOutput,
    TakeControl,
)
from monarch_nb.data.record_log import RecordLog
from monarch_nb.process.exit import Exit
from monarch_nb.worker.output.window import Window

if TYPE_CHECKING:
    from pathlib import Path

    from monarch_nb.core.wire.frames import Message
    from monarch_nb.process.payloads import Payload
    from monarch_nb.process.process import Proc
    from monarch_nb.process.supervision.recent_errors import RecentErrors
    from monarch_nb.process.supervision.supervision import Supervision
    from monarch_nb.worker.cells.unseen import UnseenCells

GONE = "the kernel that drove this mesh has ended"
TAKEN = "another kernel drives this mesh now"


class Controller:
    """What one rank sends to its controller. The next controller is told of `cells` and
    `errors`; `on_change(old, new)` are called when it has come. `window`: how much of what is
    printed it has still to take."""

    def __init__(
        self,
        proc: Proc,
        supervision: Supervision,
        log: Path,
        cells: UnseenCells,
        errors: RecentErrors,
    ) -> None:
        self._cells = cells
        self._errors = errors
        self.on_change: list[Callable[[int, int], None]] = []
        self._proc = proc
        self._supervision = supervision
        self.window = Window()
        self._path = log
        self._log: RecordLog | None = None
        self._tags: dict[int, int] = {}  # of cells that the next controller calls otherwise
        self._sending = threading.RLock()  # a record is logged and sent to the same controller

    @property
    def keeps(self) -> bool:
        """Tell whether all that is sent to it is logged, as the mesh is kept."""
        return self._log is not None

    # any thread

    def send_output(self, port: int, payload: Payload, tag: int) -> None:
        """Send what was printed, shown or measured for a notebook cell."""
        if self._log is None:
            self._proc.send(self._proc.controller, OUTPUT, port, payload, tag=tag)
            return
        with self._sending:
            if not payload.buffers:
                with contextlib.suppress(OSError):  # the disk is full: it is sent none the less
                    self._log.append(tag, port, time.time(), payload.payload)
            self._proc.send(self._proc.controller, OUTPUT, port, payload, tag=self.tag(tag))

    # the inbox thread

    def on_log_output(self, wanted: LogOutput, _: Message) -> None:
        """Log from now on."""
        if self._log is None:
            self._log = RecordLog(self._path, wanted.limit_bytes)

    def on_gone(self, gone: ControllerGone, _: Message) -> None:
        """Go on alone, if nobody has taken over before this is heard."""
        if gone.controller == self._proc.controller:
            self.window.leave()
            self._supervision.controller_left(Exit(gone.controller, reason=GONE))

    def on_take(self, taken: TakeControl, message: Message) -> None:
        """Be driven by the sender from now on, and tell it what is here."""
        # those of which the sender knows nothing, if several took over at once
        left = dict.fromkeys((taken.old, self._proc.controller))
        left.pop(message.source, None)
        for old in left:
            self._supervision.controller_left(Exit(old, reason=TAKEN))
            self._proc.cut_off(old)
        with self._sending:
            self._tags = {}  # until the sender says what it calls them
            self._proc.follow(message.source)
            self.window.begin_anew()
            logged = 0 if self._log is None else self._log.number
        for old in left:
            for listener in self.on_change:
                listener(old, message.source)
        cells, errors = self._cells, self._errors.since(0)
        self._proc.answer(message, Inventory(cells.listed(), logged, cells.files(), errors))

    def tag(self, of: int) -> int:
        """Return what the controller calls a cell that has this tag here, and in the log."""
        return self._tags.get(of, of)

    def rename(self, old: int, new: int) -> None:
        """Send what is printed for the cell with tag `old` here under `new` from now on."""
        with self._sending:
            self._tags = self._tags | {old: new}
