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
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from monarch_nb.core.wire.messages.codec import Done, Refused
from monarch_nb.core.wire.messages.debug import (
    CloseDap,
    DapEnded,
    DapEvent,
    DapRequest,
    DapResponse,
    OpenDap,
)
from monarch_nb.worker.debug import inspecting
from monarch_nb.worker.debug.pydevd import Tracer, untrace_child

if TYPE_CHECKING:
    from monarch_nb.actors.hosting import Hosting
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.core.wire.messages.cells import CellOutcome
    from monarch_nb.worker.cells.queue import CellQueue
    from monarch_nb.worker.cells.shell import CellShell, Publish

MAX_TEXT: Final = 100_000
"""Characters of a value that travel to the browser."""
TORN_S: Final = (0.002, 0.05)
"""An exception that ends the tracing of a thread has come out of it by then; on a busy machine, by
the second time."""
NOT_OPEN: Final = "the visual debugger is not attached to this rank"
_ATTACH: Final = {
    "justMyCode": False,
    "debugOptions": ["DebugStdLib"],
    "stopAllThreadsOnSuspend": False,
    "subProcess": False,
    "rules": [{"path": f"{Path(__file__).parents[2]}/**", "include": False}],
}
"""Breakpoints everywhere but in the runtime, which goes on when a thread is stopped."""

Arguments = dict[str, Any]
Order = Callable[[], None]


class Dap:
    """One session at a time; asked for and ended by the controller."""

    def __init__(self, hosting: Hosting, cells: CellQueue) -> None:
        self._looks = inspecting.Looks(cells)
        self._written = inspecting.CellFiles()
        self._commands: dict[str, Callable[[Arguments], dict[str, Any]]] = {
            "dumpCell": lambda asked: self._written.write(asked["sourcePath"], asked["code"]),
            "source": lambda asked: inspecting.source(asked["source"]["path"]),
            "modules": lambda _: inspecting.modules(),
            "inspectVariables": lambda _: self._looks.variables(),
            "richInspectVariables": lambda asked: self._looks.rich(asked["variableName"]),
            "pause": lambda _: self._pause(),
        }  # what is answered without pydevd
        self._hosting = hosting
        self._proc = hosting.proc
        self._cells = cells
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._tracer: Tracer | None = None
        self._opener: Message | None = None
        self._asked: dict[int, Message] = {}
        self._undo: Callable[[], None] = lambda: None
        self.refuses: Callable[[], str] = str
        """Why nobody may attach now; "" if somebody may."""

    def install(self) -> None:
        """From now on."""
        _slot.dap = self

    @property
    def is_attached(self) -> bool:
        """Whether somebody debugs this rank."""
        return self._tracer is not None

    def stop_at(self, frame: FrameType) -> None:
        """Stop the calling thread in this frame; it goes on when the person says so."""
        if self._tracer is not None:
            self._tracer.stop_at(frame)

    def interrupted(self) -> None:
        """SIGINT has come up in the main thread: an exception that ends its tracing."""
        if self._tracer is not None:
            self._torn(threading.main_thread().ident or 0)

    def gives_up(self) -> None:
        """Somebody stops the calls that this rank works at; one that has failed already, and is
        looked at, ends too. The inbox thread."""
        if (tracer := self._tracer) is not None:
            self._orders.put(tracer.leave_post_mortem)

    def close(self) -> None:
        """The rank ends: no thread of it may be held. Any thread."""
        if self._thread is not None:
            self._orders.put(lambda: self._end("the rank ends"))

    # the inbox thread

    def on_open(self, _: OpenDap, message: Message) -> None:
        """Attach."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="monarch-dap", daemon=True)
            vars(self._thread).update(pydev_do_not_trace=True, is_pydev_daemon_thread=True)
            self._thread.start()
        self._orders.put(lambda: self._open(message))

    def on_request(self, request: DapRequest, message: Message) -> None:
        """Pass a request on to the debugger."""
        if self._thread is None:
            self._proc.answer(message, Refused(NOT_OPEN))
        else:
            self._orders.put(lambda: self._perform(request.message, message))

    def on_close(self, _: CloseDap, message: Message) -> None:
        """Detach."""

        def close() -> None:
            self._end("closed")
            self._reply(message, Done())

        if self._thread is None:
            self._proc.answer(message, Done())
        else:
            self._orders.put(close)

    # the thread of this file

    def _serve(self) -> None:
        while True:
            order = self._orders.get()
            try:
                order()
            except Exception:  # noqa: BLE001  the next request may fare better
                self._hosting.log_exception("the visual debugger failed on this rank")

    def _open(self, message: Message) -> None:
        if self._tracer is not None:
            self._reply(message, Refused("the visual debugger is attached to this rank already"))
            return
        if why := self.refuses():
            self._reply(message, Refused(why))
            return
        board = self._hosting.board
        assert board is not None
        try:
            self._tracer = Tracer(self._heard, board, self._torn)  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001  debugpy may be missing or broken
            told = f"debugpy does not start: {type(error).__name__}: {error}"
            self._reply(message, Refused(told))
            return
        self._opener = message
        self._hosting.on_raised = self._tracer.uncaught
        self._undo = _around_work(self._cells.shell, self._tracer)
        self._say({"event": "opened"})

    def _perform(self, request: dict[str, Any], message: Message) -> None:
        if self._tracer is None:
            self._reply(message, Refused(NOT_OPEN))
        elif (perform := self._commands.get(request["command"])) is None:
            self._asked[request["seq"]] = message
            if request["command"] == "attach":
                request = {**request, "arguments": _ATTACH}
            self._tracer.send(request)
        else:
            self._reply(message, DapResponse(_done(perform, request)))

    def _pause(self) -> dict[str, Any]:
        """Stop what runs here. Raises `RuntimeError` if nothing does."""
        drivers = list(self._hosting.drivers.values())
        threads = {each.interrupts.thread for each in drivers if each.running is not None}
        if self._cells.is_running:
            threads.add(threading.main_thread().ident or 0)
        if not threads or self._tracer is None:
            raise RuntimeError("nothing runs on this rank")
        self._tracer.pause(threads)
        return {}

    def _end(self, why: str) -> None:
        tracer, self._tracer = self._tracer, None
        opener, self._opener = self._opener, None
        if tracer is not None:
            self._undo()
            self._hosting.on_raised = lambda _: None
            tracer.end()
        for message in list(self._asked.values()):
            self._reply(message, Refused(NOT_OPEN))
        self._asked.clear()
        self._written.remove()
        if opener is not None:
            self._reply(opener, DapEnded(why))

    def _torn(self, thread: int) -> None:
        """Any thread, also inside of a signal handler."""

        def again() -> None:
            for pause_s in TORN_S:
                time.sleep(pause_s)
                if self._tracer is not None:
                    self._tracer.trace_again(thread)

        self._orders.put(again)

    # threads of pydevd

    def _heard(self, said: dict[str, Any]) -> None:
        if said["type"] == "event":
            self._say(said)
            return
        message = self._asked.pop(said["request_seq"], None)
        if message is not None:
            self._reply(message, DapResponse(inspecting.shortened(said, MAX_TEXT)))

    # to the controller

    def _say(self, event: dict[str, Any]) -> None:
        self._proc.control(self._proc.controller, DapEvent(event))
        self._proc.links.flush()

    def _reply(self, message: Message, answer: object) -> None:
        self._proc.answer(message, answer)
        self._proc.links.flush()


def _done(
    perform: Callable[[Arguments], dict[str, Any]], request: dict[str, Any]
) -> dict[str, Any]:
    """A response of the protocol."""
    response = {"type": "response", "request_seq": request["seq"], "command": request["command"]}
    try:
        body = perform(request.get("arguments") or {})
    except Exception as error:  # noqa: BLE001  told to who asks; objects may raise anything
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return {**response, "success": False, "message": text[:MAX_TEXT], "body": {}}
    return {**response, "success": True, "body": body}


def _around_work(shell: CellShell, tracer: Tracer) -> Callable[[], None]:
    """Trace every cell, and tell of one that fails while it can still be looked at. Returns what
    undoes it."""
    perform = shell.perform

    def watched(work: Callable[[], BaseException | None], publish: Publish) -> CellOutcome:
        def attempt() -> BaseException | None:
            tracer.trace_here()
            try:
                error = work()
            except BaseException as raised:  # noqa: BLE001  the cell's, whatever it is
                error = raised
            if error is not None:
                tracer.uncaught(error)
            return error

        return perform(attempt, publish)

    vars(shell)["perform"] = watched
    return lambda: vars(shell).pop("perform", None)


class _Slot:
    """The session of this process; in a fork of it there is none."""

    def __init__(self) -> None:
        self.dap: Dap | None = None


_slot: Final = _Slot()


def is_attached() -> bool:
    """Whether the visual debugger is attached to this process."""
    return _slot.dap is not None and _slot.dap.is_attached


def stop_here(frame: FrameType) -> None:
    """`breakpoint()` while it is attached: stop the calling thread in this frame of it."""
    if _slot.dap is not None:
        _slot.dap.stop_at(frame)


def _forget_after_fork() -> None:
    if is_attached():
        untrace_child()
    _slot.dap = None


os.register_at_fork(after_in_child=_forget_after_fork)
