"""A process that is debugged: the Debug Adapter Protocol as calls, whoever carries the messages.

Rules of the file: nothing of the debugger is loaded before somebody first opens it. Any thread may
ask, and waits for nothing; a thread of this file's own starts, asks and ends the debugger, and
answers what needs no debugger. One session at a time; its end is told to whoever has opened it.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, Final

from monarch_nb.debugger import inspecting
from monarch_nb.debugger.cell_files import CellFiles
from monarch_nb.debugger.pydevd import PauseListener, Tracer, untrace_child
from monarch_nb.net.threads import helper_thread

MAX_TEXT: Final = 100_000
"""Characters of a value that travel to the browser."""
LOOK_S: Final = 0.002
"""How often a thread is looked at whose tracing an exception ends: it is traced again once that is
out of the debugger."""
MAX_LOOKS: Final = 500
INTERRUPTED_S: Final = 0.05
"""An interrupt has come up in the main thread by then, on a busy machine too."""
NOT_OPEN: Final = "the visual debugger is not attached here"
_RUNTIME: Final = Path(__file__).parents[1]

_log: Final = logging.getLogger("monarch_nb")

Json = dict[str, Any]
"""Of the Debug Adapter Protocol."""
Command = Callable[[Json], dict[str, object]]
OnEvent = Callable[[Json], None]
OnEnd = Callable[[str], None]
Job = Callable[[], None]


class Debuggee(ABC):
    """This process. `listener` is told of threads that are held; `commands` are answered without
    pydevd. `runtime` are folders of code that runs the user's, besides our own, and `libraries`
    what that is made of: none of it is stepped into.
    """

    def __init__(
        self,
        listener: PauseListener,
        commands: dict[str, Command] | None = None,
        runtime: Iterable[Path] = (),
        libraries: Iterable[Path] = (),
    ) -> None:
        self._runtime = (_RUNTIME, *runtime)
        self._written = CellFiles()
        self._listener = listener
        self._commands: dict[str, Command] = {
            "dumpCell": lambda asked: self._written.write(asked["sourcePath"], asked["code"]),
            "source": lambda asked: inspecting.source(asked["source"]["path"]),
            "modules": lambda _: inspecting.modules(),
            "pause": lambda _: self._pause(),
            **(commands or {}),
        }
        self._attach: Json = {
            "justMyCode": False,  # breakpoints everywhere but in the runtime, which goes on
            "debugOptions": ["DebugStdLib"],
            "stopAllThreadsOnSuspend": False,
            "subProcess": False,
            "rules": [_hide(path) for path in (*self._runtime, *libraries)],
        }
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._tracer: Tracer | None = None
        self._on_event: OnEvent = _nobody
        self._on_end: OnEnd = _nobody
        self._asked: dict[int, OnEvent] = {}

    # what a rank and a controller do differently

    def obstacle(self) -> str | None:
        """Return why it cannot be debugged now."""
        return None

    @abstractmethod
    def watch(self, tracer: Tracer | None) -> None:
        """Have cells traced from now on, and tell of those that fail; with None no more."""

    @abstractmethod
    def running(self) -> set[int]:
        """Return the threads that run the user's code, by their idents."""

    def is_between_statements(self, frame: FrameType) -> bool:
        """Return whether this is called by what runs a cell a statement at a time."""
        del frame
        return False

    # any thread

    def install(self) -> None:
        """Trace no forked child."""
        os.register_at_fork(after_in_child=self._forget_after_fork)

    @property
    def is_attached(self) -> bool:
        return self._tracer is not None

    def open(self, on_event: OnEvent, on_end: OnEnd) -> None:
        """Start the debugger. `on_event` gets its events, first `opened`; `on_end(why)` comes once,
        also if it cannot be had."""
        if self._thread is None:
            self._thread = helper_thread(self._serve, "monarch-dap")
            self._thread.start()
        self._jobs.put(lambda: self._open(on_event, on_end))

    def request(self, request: Json, then: OnEvent) -> None:
        """Ask the debugger; `then` gets its response, with `success` false if it has none."""
        if self._thread is None:
            then(refusal(request, NOT_OPEN))
        else:
            self._jobs.put(lambda: self._perform(request, then))

    def close(self, why: str = "closed", then: Job | None = None) -> None:
        """Let every thread go on and trace nothing any more; then call `then`."""

        def close() -> None:
            self._end(why)
            if then is not None:
                then()

        if self._thread is not None:
            self._jobs.put(close)
        elif then is not None:
            then()

    def stop_at(self, frame: FrameType) -> None:
        """Stop the calling thread in this frame; it goes on when the person says so."""
        if self._tracer is not None:
            self._tracer.stop_at(frame)

    def interrupted(self) -> None:
        """Trace again: SIGINT has come up in the main thread, an exception that ends its
        tracing."""
        if self._tracer is not None:
            main = threading.main_thread().ident or 0
            self._on_trace_lost(main, lambda: None)
            self._jobs.put(lambda: self._trace_raised(main))

    def uncaught(self, error: BaseException) -> None:
        """Stop where this arose, which a call has raised in its thread, if somebody wants that."""
        if (tracer := self._tracer) is not None:
            tracer.uncaught(error)

    def leave_post_mortem(self) -> None:
        """End a call that has failed already and is looked at: somebody stops what runs."""
        if (tracer := self._tracer) is not None:
            self._jobs.put(tracer.leave_post_mortem)

    def _forget_after_fork(self) -> None:
        if self._tracer is not None:
            self._tracer = None
            untrace_child()

    # the thread of this file

    def _serve(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                job()
            except Exception:  # noqa: BLE001  the next request may fare better
                _log.warning("the visual debugger failed:\n%s", traceback.format_exc())

    def _open(self, on_event: OnEvent, on_end: OnEnd) -> None:
        is_open = "the visual debugger is attached already" if self._tracer is not None else None
        if (why := is_open or self.obstacle()) is not None:
            on_end(why)
            return
        try:
            tracer = Tracer(
                self._on_message,
                self._listener,
                self._on_trace_lost,
                self._runtime,
                self.is_between_statements,
            )
        except Exception as error:  # noqa: BLE001  debugpy may be missing or broken
            on_end(f"debugpy does not start: {type(error).__name__}: {error}")
            return
        self._tracer, self._on_event, self._on_end = tracer, on_event, on_end
        self.watch(tracer)
        on_event({"type": "event", "event": "opened"})

    def _perform(self, request: Json, then: OnEvent) -> None:
        if self._tracer is None:
            then(refusal(request, NOT_OPEN))
        elif (perform := self._commands.get(request["command"])) is not None:
            then(_done(perform, request))
        else:
            self._asked[request["seq"]] = then
            if request["command"] == "attach":
                request = {**request, "arguments": self._attach}
            self._tracer.send(request)

    def _pause(self) -> dict[str, object]:
        threads = self.running()
        if not threads or self._tracer is None:
            raise RuntimeError("nothing runs here")
        self._tracer.pause(threads)
        return {}

    def _end(self, why: str) -> None:
        tracer, self._tracer = self._tracer, None
        on_end, self._on_end, self._on_event = self._on_end, _nobody, _nobody
        if tracer is not None:
            self.watch(None)
            tracer.end()
        for seq, then in list(self._asked.items()):
            then(refusal({"seq": seq, "command": ""}, NOT_OPEN))
        self._asked.clear()
        self._written.remove()
        on_end(why)

    def _on_trace_lost(self, thread: int, then: Job) -> None:
        # Any thread, also inside of a signal handler
        self._jobs.put(lambda: self._trace_again(thread, then, MAX_LOOKS))

    def _trace_again(self, thread: int, then: Job, looks: int) -> None:
        # Not before the exception is out: it would end that too. Python tells nobody when it is,
        # so this looks; requests are served in between.
        time.sleep(LOOK_S)
        if (tracer := self._tracer) is None:
            return
        if looks and tracer.holds(thread):
            self._jobs.put(lambda: self._trace_again(thread, then, looks - 1))
            return
        tracer.trace_again(thread)
        then()

    def _trace_raised(self, thread: int) -> None:
        # The handler that raises the interrupt may still have been running the first time
        time.sleep(INTERRUPTED_S)
        if self._tracer is not None:
            self._tracer.trace_again(thread)

    # threads of pydevd

    def _on_message(self, said: Json) -> None:
        if said["type"] == "event":
            self._on_event(said)
        elif (then := self._asked.pop(said["request_seq"], None)) is not None:
            then(inspecting.shortened(said, MAX_TEXT))


def _hide(path: Path) -> Json:
    return {"path": str(path) if path.suffix else f"{path}/**", "include": False}


def refusal(request: Json, why: str) -> Json:
    """Return the response to a request that cannot be done."""
    response = {"type": "response", "request_seq": request["seq"], "command": request["command"]}
    return {**response, "success": False, "message": why[:MAX_TEXT], "body": {}}


def _done(perform: Command, request: Json) -> Json:
    try:
        body = perform(request.get("arguments") or {})
    except Exception as error:  # noqa: BLE001  told to who asks; objects may raise anything
        name = type(error).__name__
        return refusal(request, f"{name}: {error}" if str(error) else name)
    response = {"type": "response", "request_seq": request["seq"], "command": request["command"]}
    return {**response, "success": True, "body": body}


def _nobody(_: object) -> None:
    """Nobody listens."""
