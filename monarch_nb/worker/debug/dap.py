"""The visual debugger in a rank: the Debug Adapter Protocol in control messages of the controller.

Rules of the file: nothing of the debugger is loaded before the controller first asks for it. The
inbox thread only passes requests on; a thread of this file's own starts, asks and ends the
debugger, and answers what needs no debugger. One session at a time; its end is told to whoever has
opened it.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from monarch_nb.core.wire.messages import debug
from monarch_nb.core.wire.messages.codec import Done, Refused
from monarch_nb.net.threads import helper_thread
from monarch_nb.worker.debug import inspecting
from monarch_nb.worker.debug.channel import DebugChannel
from monarch_nb.worker.debug.pydevd import Tracer, untrace_child

if TYPE_CHECKING:
    from monarch_nb.actors.hosting import Hosting
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.worker.cells.queue import CellQueue
    from monarch_nb.worker.cells.shell import Work
    from monarch_nb.worker.status.board_writer import BoardWriter

MAX_TEXT: Final = 100_000
"""Characters of a value that travel to the browser."""
TRACE_LOST_S: Final = (0.002, 0.05)
"""An exception that ends the tracing of a thread has come out of it by then; on a busy machine, by
the second time."""
AT_PROMPT: Final = "this rank is stopped at the prompt of pdb; let it go on there first"
NOT_OPEN: Final = "the visual debugger is not attached to this rank"
_ATTACH: Final = {
    "justMyCode": False,
    "debugOptions": ["DebugStdLib"],
    "stopAllThreadsOnSuspend": False,
    "subProcess": False,
    "rules": [{"path": f"{Path(__file__).parents[2]}/**", "include": False}],
}
"""Breakpoints everywhere but in the runtime, which goes on when a thread is stopped."""

Json = dict[str, Any]
"""Of the Debug Adapter Protocol, or of a message."""
Job = Callable[[], None]


class Dap:
    """One session at a time; asked for and ended by the controller."""

    def __init__(
        self,
        hosting: Hosting,
        board: BoardWriter,
        cells: CellQueue,
        prompts: Mapping[int, DebugChannel],
    ) -> None:
        self._inspector = inspecting.VariableInspector(cells)
        self._written = inspecting.CellFiles()
        self._commands: dict[str, Callable[[Json], dict[str, object]]] = {
            "dumpCell": lambda asked: self._written.write(asked["sourcePath"], asked["code"]),
            "source": lambda asked: inspecting.source(asked["source"]["path"]),
            "modules": lambda _: inspecting.modules(),
            "inspectVariables": lambda _: self._inspector.variables(),
            "richInspectVariables": lambda asked: self._inspector.rich(asked["variableName"]),
            "pause": lambda _: self._pause(),
        }  # what is answered without pydevd
        self._hosting = hosting
        self._proc = hosting.proc
        self._board = board
        self._cells = cells
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._tracer: Tracer | None = None
        self._opener: Message | None = None
        self._asked: dict[int, Message] = {}
        self._prompts = prompts  # of pdb: who waits at one has the rank

    def install(self) -> None:
        os.register_at_fork(after_in_child=self._forget_after_fork)

    @property
    def is_attached(self) -> bool:
        return self._tracer is not None

    def stop_at(self, frame: FrameType) -> None:
        """Stop the calling thread in this frame; it goes on when the person says so."""
        if self._tracer is not None:
            self._tracer.stop_at(frame)

    def interrupted(self) -> None:
        """Trace again: SIGINT has come up in the main thread, an exception that ends its
        tracing."""
        if self._tracer is not None:
            self._on_trace_lost(threading.main_thread().ident or 0)

    def uncaught(self, error: BaseException) -> None:
        """Stop where this arose, which a call has raised in its thread, if somebody wants that."""
        if (tracer := self._tracer) is not None:
            tracer.uncaught(error)

    def leave_post_mortem(self) -> None:
        """End a call that has failed already and is looked at: somebody stops this rank's calls.
        The inbox thread."""
        if (tracer := self._tracer) is not None:
            self._jobs.put(tracer.leave_post_mortem)

    def close(self) -> None:
        """Hold no thread any more: the rank ends. Any thread."""
        if self._thread is not None:
            self._jobs.put(lambda: self._end("the rank ends"))

    def _forget_after_fork(self) -> None:
        if self._tracer is not None:
            self._tracer = None
            untrace_child()

    # the inbox thread

    def on_open(self, _: debug.OpenDap, message: Message) -> None:
        if self._thread is None:
            self._thread = helper_thread(self._serve, "monarch-dap")
            self._thread.start()
        self._jobs.put(lambda: self._open(message))

    def on_request(self, request: debug.DapRequest, message: Message) -> None:
        """Pass a request on to the debugger."""
        if self._thread is None:
            self._proc.answer(message, Refused(NOT_OPEN))
        else:
            self._jobs.put(lambda: self._perform(request.message, message))

    def on_close(self, _: debug.CloseDap, message: Message) -> None:
        def close() -> None:
            self._end("closed")
            self._reply(message, Done())

        if self._thread is None:
            self._proc.answer(message, Done())
        else:
            self._jobs.put(close)

    # the thread of this file

    def _serve(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                job()
            except Exception:  # noqa: BLE001  the next request may fare better
                self._hosting.log_exception("the visual debugger failed on this rank")

    def _open(self, message: Message) -> None:
        if self._tracer is not None:
            self._reply(message, Refused("the visual debugger is attached to this rank already"))
            return
        if self._prompts:
            self._reply(message, Refused(AT_PROMPT))
            return
        try:
            self._tracer = Tracer(self._on_message, self._board, self._on_trace_lost)
        except Exception as error:  # noqa: BLE001  debugpy may be missing or broken
            told = f"debugpy does not start: {type(error).__name__}: {error}"
            self._reply(message, Refused(told))
            return
        self._opener = message
        self._cells.shell.watch(partial(_watched, self._tracer))
        self._say({"event": "opened"})

    def _perform(self, request: Json, message: Message) -> None:
        if self._tracer is None:
            self._reply(message, Refused(NOT_OPEN))
        elif (perform := self._commands.get(request["command"])) is None:
            self._asked[request["seq"]] = message
            if request["command"] == "attach":
                request = {**request, "arguments": _ATTACH}
            self._tracer.send(request)
        else:
            self._reply(message, debug.DapResponse(_done(perform, request)))

    def _pause(self) -> dict[str, object]:
        drivers = list(self._hosting.drivers.values())
        threads = {each.interrupts.thread for each in drivers if each.running is not None}
        if self._cells.what:
            threads.add(threading.main_thread().ident or 0)
        if not threads or self._tracer is None:
            raise RuntimeError("nothing runs on this rank")
        self._tracer.pause(threads)
        return {}

    def _end(self, why: str) -> None:
        tracer, self._tracer = self._tracer, None
        opener, self._opener = self._opener, None
        if tracer is not None:
            self._cells.shell.watch(None)
            tracer.end()
        for message in list(self._asked.values()):
            self._reply(message, Refused(NOT_OPEN))
        self._asked.clear()
        self._written.remove()
        if opener is not None:
            self._reply(opener, debug.DapEnded(why))

    def _on_trace_lost(self, thread: int) -> None:
        # Any thread, also inside of a signal handler
        def again() -> None:
            for pause_s in TRACE_LOST_S:
                time.sleep(pause_s)
                if self._tracer is not None:
                    self._tracer.trace_again(thread)

        self._jobs.put(again)

    # threads of pydevd

    def _on_message(self, said: Json) -> None:
        if said["type"] == "event":
            self._say(said)
            return
        message = self._asked.pop(said["request_seq"], None)
        if message is not None:
            self._reply(message, debug.DapResponse(inspecting.shortened(said, MAX_TEXT)))

    # to the controller

    def _say(self, event: dict[str, object]) -> None:
        self._proc.control(self._proc.controller, debug.DapEvent(event))
        self._proc.links.flush()

    def _reply(self, message: Message, answer: object) -> None:
        self._proc.answer(message, answer)
        self._proc.links.flush()


def _done(perform: Callable[[Json], Json], request: Json) -> dict[str, object]:
    response = {"type": "response", "request_seq": request["seq"], "command": request["command"]}
    try:
        body = perform(request.get("arguments") or {})
    except Exception as error:  # noqa: BLE001  told to who asks; objects may raise anything
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return {**response, "success": False, "message": text[:MAX_TEXT], "body": {}}
    return {**response, "success": True, "body": body}


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
