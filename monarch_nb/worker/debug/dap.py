"""The visual debugger in a rank: the Debug Adapter Protocol in control messages of the controller.

Rule of the file: the inbox thread only passes requests on (see `debugger/debuggee.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from monarch_nb.core.wire.messages import debug
from monarch_nb.core.wire.messages.codec import Done
from monarch_nb.debugger.debuggee import Debuggee
from monarch_nb.debugger.inspecting import VariableInspector
from monarch_nb.worker.debug.channel import DebugChannel

if TYPE_CHECKING:
    from monarch_nb.actors.hosting import Hosting
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.debugger.pydevd import Tracer
    from monarch_nb.worker.cells.queue import CellQueue
    from monarch_nb.worker.cells.shell import Work
    from monarch_nb.worker.status.board_writer import BoardWriter

AT_PROMPT: Final = "this rank is stopped at the prompt of pdb; let it go on there first"


class Dap(Debuggee):
    """A rank; asked for and let go of by the controller."""

    def __init__(
        self,
        hosting: Hosting,
        board: BoardWriter,
        cells: CellQueue,
        prompts: Mapping[int, DebugChannel],
    ) -> None:
        variables = VariableInspector(lambda: cells.shell.namespace, lambda: bool(cells.what))
        commands = {
            "inspectVariables": lambda _: variables.variables(),
            "richInspectVariables": lambda asked: variables.rich(asked["variableName"]),
        }
        super().__init__(board, commands)
        self._hosting = hosting
        self._proc = hosting.proc
        self._cells = cells
        self._prompts = prompts  # of pdb: who waits at one has the rank

    def obstacle(self) -> str | None:
        """Return why it cannot be debugged now."""
        return AT_PROMPT if self._prompts else None

    def watch(self, tracer: Tracer | None) -> None:
        """Trace each cell."""
        self._cells.shell.watch(None if tracer is None else partial(_watched, tracer))

    def running(self) -> set[int]:
        """Return the threads of calls, and that of a cell."""
        drivers = list(self._hosting.drivers.values())
        threads = {each.interrupts.thread for each in drivers if each.running is not None}
        if self._cells.what:
            threads.add(threading.main_thread().ident or 0)
        return threads

    # the inbox thread

    def on_open(self, _: debug.OpenDap, message: Message) -> None:
        """Attach, and tell how it ends."""
        self.open(self._say, lambda why: self._reply(message, debug.DapEnded(why)))

    def on_request(self, request: debug.DapRequest, message: Message) -> None:
        """Pass a request on to the debugger."""
        self.request(request.message, lambda said: self._reply(message, debug.DapResponse(said)))

    def on_close(self, _: debug.CloseDap, message: Message) -> None:
        """Detach."""
        self.close(then=lambda: self._reply(message, Done()))

    # to the controller

    def _say(self, event: dict[str, Any]) -> None:
        self._proc.control(self._proc.controller, debug.DapEvent(event))
        self._proc.links.flush()

    def _reply(self, message: Message, answer: object) -> None:
        self._proc.answer(message, answer)
        self._proc.links.flush()


def _watched(tracer: Tracer, work: Work) -> Work:
    # Trace a cell, and tell if it fails while it can still be looked at
    def attempt() -> BaseException | None:
        tracer.trace_here()
        try:
            error = work()
        except BaseException as failed:  # noqa: BLE001  the cell's, whatever it is
            error = failed
        if error is not None:
            tracer.uncaught(error)
        return error

    return attempt
