"""pydevd, the debugger below debugpy, driven in the process itself: the one module that knows it.

Rules of the file: it is imported and started at first use, without debugpy's adapter process and
without a port; only the thread that reached a breakpoint is held, never the runtime's; after `end`
and in forked children nothing is traced, so that code runs as fast as before and no child waits for
somebody who debugs its parent.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from traceback import walk_stack
from types import FrameType, ModuleType
from typing import Any, ClassVar, Final, Protocol

from monarch_nb.debugger.inspecting import is_library, place_of

LOOK_S: Final = 0.01
"""How often a held thread looks whether it may go on; a missed wake-up costs a step that much."""
_END: Final = b"\r\n\r\n"
_RUNS: Final = 1  # pydevd's STATE_RUN
_NO_STEP: Final = -1
_BREAKPOINT: Final = 111  # pydevd's CMD_SET_BREAK
_CALLERS: Final = ("_driver.py", "/interrupts.py", "/scripts/run.py", "/scripts/loader.py")


TraceFunction = Callable[[FrameType, str, Any], Any]
TracedThread = Any  # a thread, as pydevd has marked it


class PauseListener(Protocol):
    """Told of threads that the debugger holds."""

    def pause(self, who: object, where: str) -> None: ...
    def unpause(self, who: object) -> None: ...


class Wire:
    """What pydevd takes for a socket: `send` and `on_message` are ours, the rest is pydevd's.

    Nothing listens and nothing connects: what a front end says comes by Jupyter's channels, and to
    a rank in control messages of the mesh. They are authenticated, and pydevd's thread reads it
    here as from a peer.
    """

    def __init__(self, on_message: Callable[[dict[str, object]], None]) -> None:
        self._on_message = on_message
        self._to_debugger: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._said = bytearray()

    def send(self, message: dict[str, object]) -> None:
        """Say something to the debugger. Any thread; returns at once."""
        body = json.dumps(message).encode()
        self._to_debugger.put(b"Content-Length: %d%b%b" % (len(body), _END, body))

    # what pydevd calls

    def recv(self, _size: int) -> bytes:
        """Return the next message, whole: pydevd keeps what is more than it has asked for."""
        return self._to_debugger.get()

    def sendall(self, data: bytes) -> None:
        """Take what the debugger says, a header and a body at a time or in any other parts."""
        self._said += data
        while (message := self._next()) is not None:
            self._on_message(json.loads(message))

    def settimeout(self, _seconds: float | None) -> None:
        """Do nothing: reading waits until there is something to say."""

    def shutdown(self, _how: int) -> None:
        self.close()

    def close(self) -> None:
        self._to_debugger.put(b"")

    def _next(self) -> bytes | None:
        head, found, rest = self._said.partition(_END)
        if not found:
            return None
        size = int(head.rpartition(b":")[2])
        if len(rest) < size:
            return None
        self._said = rest[size:]
        return bytes(rest[:size])


class Tracer:
    """A debugger that is attached to this process. `say` gets its messages, in threads of its own;
    `on_trace_lost` is called in a thread whose tracing an exception ends, with what to do when it
    is traced again. `runtime` are the folders of code that runs the user's, and
    `is_between_statements(frame)` tells whether more of a cell comes after what it does there."""

    _changes: ClassVar[int] = 0  # of breakpoints, in all sessions of this process

    def __init__(
        self,
        say: Callable[[dict[str, Any]], None],
        listener: PauseListener,
        on_trace_lost: Callable[[int, Callable[[], None]], None],
        runtime: Iterable[Path],
        is_between_statements: Callable[[FrameType], bool],
    ) -> None:
        self._wire = Wire(say)
        self._is_between_statements = is_between_statements
        self._runtime = tuple(f"{folder}{os.sep}" for folder in runtime)
        self._listener = listener
        self._on_trace_lost = on_trace_lost
        self._post_mortem: set[int] = set()
        self._pydevd = _loaded()
        with _connecting_to(self._pydevd, self._wire):
            self._pydevd.settrace(
                host="localhost",
                port=0,
                suspend=False,
                patch_multiprocessing=False,
                wait_for_ready_to_run=False,
                block_until_connected=True,
                notify_stdin=False,
                protocol="dap",
            )
        _set_trace(None)  # this thread is none of the user's
        self._db: Any = self._pydevd.get_global_debugger()
        self._db.mtime += Tracer._changes  # what it knows of code outlives a session, with this
        self._wait: Callable[..., object] = self._db.do_wait_suspend
        self._db.do_wait_suspend = self._wait_suspended

    def send(self, request: dict[str, object]) -> None:
        self._wire.send(request)

    def stop_at(self, frame: FrameType) -> None:
        self._pydevd.settrace(
            suspend=True,
            trace_only_current_thread=True,
            patch_multiprocessing=False,
            stop_at_frame=frame,
            notify_stdin=False,
        )

    def pause(self, threads: Iterable[int]) -> None:
        """Stop these threads (their idents) at the next line of the user's that they run."""
        api = _part("_pydevd_bundle.pydevd_api").PyDevdAPI()
        wanted = _of_idents(threads)
        while any(_is_let_go(each) for each in wanted):  # it would be held on, with no event
            time.sleep(LOOK_S)
        with self._db._main_lock:
            for name in _names_of(wanted):
                api.request_suspend_thread(self._db, thread_id=name)

    def uncaught(self, error: BaseException) -> None:
        """Stop where this arose, which the user's code has not caught, if that is wanted."""
        stop = getattr(self._db, "trigger_exception_handler", None)
        if stop is None:  # an older debugpy
            return
        self._post_mortem.add(threading.get_ident())
        try:
            stop((type(error), error, error.__traceback__))
        finally:
            self._post_mortem.discard(threading.get_ident())

    def leave_post_mortem(self) -> None:
        """Let threads go on that are held after their work has failed: they were asked to stop
        it."""
        self._resume(self._post_mortem)

    def trace_here(self) -> None:
        """Have the calling thread traced, if it is not any more (see `trace_again`). A stop that it
        has still to make, since its last code has ended before, is none of the next."""
        thread: TracedThread = threading.current_thread()
        info = getattr(thread, "additional_info", None)
        if info is not None and info.pydev_state != _RUNS:
            _set_running(thread)
        if sys.gettrace() is None and _monitoring() is None:
            _set_trace(self._db.trace_dispatch)

    @contextlib.contextmanager
    def untraced(self) -> Iterator[None]:
        """Let the calling thread do something at full speed."""
        before: Any = sys.gettrace()
        _set_trace(None)
        try:
            yield
        finally:
            _set_trace(before)

    def trace_again(self, thread: int) -> None:
        """Trace a thread again: an interrupt that came up while it was traced has ended that."""
        if _monitoring() is None:
            tracing = _part("pydevd_tracing")
            tracing.set_trace_to_threads(self._db.trace_dispatch, [thread], False)

    def holds(self, thread: int) -> bool:
        """Tell whether a thread is in the debugger: held, or on its way in or out."""
        frame = sys._current_frames().get(thread)
        return frame is not None and (_is_debuggers(frame) or _is_waiting(frame))

    def end(self) -> None:
        """Let all threads go on, and leave nothing behind."""
        Tracer._changes = self._db.mtime + 1
        api = _part("_pydevd_bundle.pydevd_api").PyDevdAPI()
        with self._db._main_lock:
            api.request_disconnect(self._db, resume_threads=True)
        _stop_tracing()
        self._db.dispose_and_kill_all_pydevd_threads(wait=False)
        self._wire.close()

    def _resume(self, threads: Iterable[int]) -> None:
        api = _part("_pydevd_bundle.pydevd_api").PyDevdAPI()
        with self._db._main_lock:
            for name in _names_of(_of_idents(threads)):
                api.request_resume_thread(name)

    def _wait_suspended(
        self, thread: TracedThread, frame: FrameType, *rest: object, **named: object
    ) -> object:
        # In place of pydevd's: the thread waits in it
        if not frame.f_lineno:  # the start of a cell, before its first line, in Python 3.11
            return None
        if thread.stop_reason != _BREAKPOINT and self._is_runtimes(frame):
            if not (self._is_between_statements(frame) or self._is_called_by_user(frame)):
                _set_running(thread)
            return None  # else it is still to stop, at the next line of the user's
        interrupt: BaseException | None = None
        held: object = None
        try:
            self._listener.pause(thread.ident, place_of(frame))
            held = self._wait(thread, frame, *rest, **named)
        except BaseException as raised:  # noqa: BLE001  an interrupt: it goes on with that
            interrupt = raised
        while True:  # here, for Python looks for signals where a function begins: before its `try`
            try:
                if interrupt is not None:
                    self._let_go(thread)
                self._listener.unpause(thread.ident)
                break
            except KeyboardInterrupt as second:  # a stop reaches a call in more than one way
                interrupt = second
        try:
            if interrupt is not None:
                raise interrupt.with_traceback(None) from None
            return held
        finally:
            del interrupt  # it and this frame would hold one another

    def _is_runtimes(self, frame: FrameType) -> bool:
        # Whether it was the runtime that called this, for itself: a step out of the user's code
        # ends there. A library's function is the user's where code of the user's has called it, or
        # a driver, as an endpoint.
        at: FrameType | None = frame
        while at is not None and is_library(at.f_code.co_filename):
            caller = at.f_back
            if caller is not None and caller.f_code.co_filename.startswith(self._runtime):
                return not caller.f_code.co_filename.endswith(_CALLERS)
            at = caller
        return at is not None and at.f_code.co_filename.startswith(self._runtime)

    def _is_called_by_user(self, frame: FrameType) -> bool:
        return not all(self._is_hidden(at.f_code.co_filename) for at, _ in walk_stack(frame))

    def _is_hidden(self, path: str) -> bool:
        return path.startswith(self._runtime) or is_library(path)

    def _let_go(self, thread: TracedThread) -> None:
        # Who is told that it runs may call again at once, and wants to be stopped there
        _set_running(thread)
        self._on_trace_lost(thread.ident, lambda: self._say_running(thread))

    def _say_running(self, thread: TracedThread) -> None:
        name = _part("_pydevd_bundle.pydevd_constants").get_current_thread_id(thread)
        told = self._db.cmd_factory.make_thread_run_message(self._db, name, _NO_STEP)
        self._db.writer.add_command(told)


def _set_running(thread: TracedThread) -> None:
    info = thread.additional_info
    info.pydev_state = _RUNS
    info.pydev_step_cmd = info.pydev_original_step_cmd = _NO_STEP


def _of_idents(idents: Iterable[int]) -> list[TracedThread]:
    wanted = set(idents)
    return [each for each in threading.enumerate() if each.ident in wanted]


def _names_of(threads: Iterable[TracedThread]) -> list[str]:
    name_of = _part("_pydevd_bundle.pydevd_constants").get_thread_id
    return [name_of(each) for each in threads]


def end_at_users_frame(error: BaseException) -> None:
    """Leave the frames of pydevd, which held the thread, out of the traceback of an interrupt."""
    at, last = error.__traceback__, None
    while at is not None:
        if not _is_debuggers(at.tb_frame):
            last = at
        at = at.tb_next
    if last is not None:
        last.tb_next = None


def _is_debuggers(frame: FrameType) -> bool:
    code = frame.f_code
    return "pydevd" in code.co_filename or "pydevd" in code.co_qualname  # the latter of Cython's


def _is_waiting(frame: FrameType) -> bool:
    return any(at.f_code is Tracer._wait_suspended.__code__ for at, _ in walk_stack(frame))


def _is_let_go(thread: TracedThread) -> bool:
    # It may go on, and has not woken up yet
    frame = sys._current_frames().get(thread.ident)
    is_waiting = frame is not None and _is_waiting(frame)
    return is_waiting and thread.additional_info.pydev_state == _RUNS


def untrace_child() -> None:
    """Trace a forked child no longer: nobody answers there, a breakpoint would hold it for ever."""
    _stop_tracing()


def _part(name: str) -> ModuleType:
    return importlib.import_module(name)


def _loaded() -> ModuleType:
    hook = sys.breakpointhook
    with _setting("PYDEVD_DISABLE_FILE_VALIDATION", "1"):  # else it warns of frozen modules
        _part("debugpy._vendored.force_pydevd")
        pydevd = _part("pydevd")
    sys.breakpointhook = hook
    vars(pydevd)["TIMEOUT_SLOW"] = LOOK_S
    return pydevd


@contextlib.contextmanager
def _setting(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


@contextlib.contextmanager
def _connecting_to(pydevd: ModuleType, wire: Wire) -> Iterator[None]:
    before = pydevd.start_client
    vars(pydevd)["start_client"] = lambda _host, _port: wire
    try:
        yield
    finally:
        vars(pydevd)["start_client"] = before


def _monitoring() -> ModuleType | None:
    # pydevd's part for Pythons that have `sys.monitoring`; else None
    constants = _part("_pydevd_bundle.pydevd_constants")
    if not getattr(constants, "PYDEVD_USE_SYS_MONITORING", False):
        return None
    return _part("_pydevd_sys_monitoring.pydevd_sys_monitoring")


def _set_trace(function: TraceFunction | None) -> None:
    holder = _part("pydevd_tracing").TracingFunctionHolder
    (holder._original_tracing or sys.settrace)(function)


def _stop_tracing() -> None:
    # In every thread; those that run do it themselves, at the next call that they make
    monitoring = _monitoring()
    if monitoring is not None:
        monitoring.stop_monitoring(all_threads=True)
    else:
        future_threads: Any = threading.settrace  # None is allowed, whatever its types say
        future_threads(None)
        tracing = _part("pydevd_tracing")
        others = dict(sys._current_frames())
        others.pop(threading.get_ident(), None)
        for top in others.values():
            _forget_frames(top)
        if others:
            set_trace = tracing.TracingFunctionHolder._original_tracing or sys.settrace
            tracing.set_trace_to_threads(_once(set_trace), list(others), False)
        _set_trace(None)
        tracing.restore_sys_set_trace_func()
    _part("_pydev_bundle.pydev_monkey").undo_patch_thread_modules()


def _forget_frames(frame: FrameType | None) -> None:
    # Calls that are under way have a trace function each, which would begin to trace again
    while frame is not None:
        frame.f_trace = None
        frame = frame.f_back


def _once(set_trace: Callable[[None], None]) -> Callable[[FrameType, str, object], None]:
    def off(_frame: FrameType, _event: str, _arg: object) -> None:
        set_trace(None)

    return off
