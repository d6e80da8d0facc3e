"""The kernel class: what a controller of a mesh needs beyond ipykernel.

Rules of the file: an interrupt waits for nothing (no lock, no other control message, no rank);
nothing here may take longer than Jupyter's shutdown window; the mesh is reached through
`monarch_nb.notebook` only.
"""

import asyncio
import contextlib
import gc
import importlib.metadata
import sys
import threading
from collections.abc import Iterator
from typing import Any

from ipykernel.ipkernel import IPythonKernel
from traitlets import Float, Type

from monarch_kernel import latency, stops
from monarch_kernel.cell_names import CellCompiler
from monarch_kernel.debug import breakpoints
from monarch_nb.notebook import session as notebook
from monarch_nb.notebook.shells import kept_outputs_of

_IPythonKernel: Any = IPythonKernel  # its types are incomplete

Message = dict[str, object]
Frames = list[object]  # of ZeroMQ

TEARDOWN_S = 2.0
"""jupyter_client sends SIGTERM 2.5 s after the shutdown request (half of `shutdown_wait_time`)."""

SWITCH_S = 0.001
"""A thread that reads a flood of output gives way to a cell after this time. A cell changes threads
so often that Python's 5 ms add up to half a second."""

_HELP = ("complete_request", "inspect_request")
_COMMS = ("comm_open", "comm_msg", "comm_close")
_AT_ONCE = {"interrupt_request": "_interrupt_now", "shutdown_request": "process_control"}


def _version() -> str:
    try:
        return importlib.metadata.version("monarch_nb")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        return "0"


class MonarchKernel(_IPythonKernel):  # type: ignore[misc]  # untyped base
    """An IPythonKernel that loads monarch_nb, shows its mesh, interrupts and ends it promptly."""

    implementation = "monarch"
    implementation_version = _version()
    compiler_class = Type(CellCompiler)
    debugger_class = Type("monarch_kernel.debug.rank_debugger.RankDebugger")
    _execute_sleep = Float(0.0).tag(config=True)  # ipykernel's 0.5 ms before each reply

    def __init__(self, **kwargs: object) -> None:
        self._status_lock = threading.Lock()
        self._busy_with: Message | None = None
        super().__init__(**kwargs)
        callbacks = (self.shell_handlers[kind] for kind in _COMMS)
        self._stop_button = stops.StopButton(self.shell, callbacks)
        latency.delay_history(self.shell)
        self.shell.extension_manager.load_extension("monarch_nb")

    def start(self) -> None:
        """Begin to serve, and meanwhile start what the first mesh will need."""
        sys.setswitchinterval(SWITCH_S)
        super().start()
        self._stop_button.listen()
        gc.freeze()  # what is there by now stays; to look at it would halt a cell for 0.1 s
        latency.prepare_errors(self.shell)
        notebook.prewarm(self.shell)
        controller = None
        if self.debugger is not None:
            loop = self.control_thread.io_loop.asyncio_loop
            self.debugger.serve(self.shell, lambda: self._busy_with is not None, loop)
            controller = self.debugger.controller
        breakpoints.install(lambda: bool(self._allow_stdin), controller)

    @property
    def banner(self) -> str:
        """Shown by consoles: what this is and how the mesh is."""
        status = notebook.status_line(self.shell)
        return f"Monarch {self.implementation_version}: {status}\n{self.shell.banner}"

    # ------------------------------------------------------------------------- interrupts

    async def dispatch_control(self, msg: Frames) -> None:
        """Let interrupts and shutdowns overtake; others go one at a time, as in the base class.

        ipykernel holds `_control_lock` while a handler awaits, so one slow `debug_request` would
        delay the stop button.
        """
        handler = _AT_ONCE.get(str(self._header(msg).get("msg_type")))
        if handler is None:
            await super().dispatch_control(msg)
        else:
            await getattr(self, handler)(msg)

    def _header(self, msg: Frames) -> Message:
        try:
            _, frames = self.session.feed_identities(msg, copy=False)
            return dict(self.session.deserialize(frames, content=False, copy=False)["header"])
        except Exception:  # noqa: BLE001  the base class reports bad messages
            return {}

    async def _interrupt_now(self, msg: Frames) -> None:
        # Not by process_control: it would take the parent header of the control message under way.
        idents, frames = self.session.feed_identities(msg, copy=False)
        request = self.session.deserialize(frames, content=True, copy=False)
        self._publish_status("busy", "control", parent=request)
        await self.interrupt_request(self.control_stream, idents, request)
        self._publish_status("idle", "control", parent=request)

    async def interrupt_request(self, stream: object, ident: Frames, parent: Message) -> None:
        """Stop this process and its ranks; not its process group, where others may live."""
        notebook.interrupt(self.shell, stops.press)
        if self.debugger is not None:
            self.debugger.controller.interrupted()
        self.session.send(stream, "interrupt_reply", {"status": "ok"}, parent, ident=ident)

    async def execute_request(self, stream: object, ident: Frames, parent: Message) -> None:
        """Run a cell; however often it is stopped, its reply is sent."""
        kept = kept_outputs_of(self.shell)
        if kept is not None:
            kept.begin(parent)
        with self._stop_button.one_cell():
            await super().execute_request(stream, ident, parent)
        if kept is not None:
            kept.end(parent)

    def _cancel_on_sigint(
        self, future: asyncio.Future[object]
    ) -> contextlib.AbstractContextManager[None]:
        """While an `await` cell runs: wake its loop and cancel it.

        ipykernel's own does not wake the loop, so the cell went on until the next event (ipykernel
        #881). Synchronous code of such a cell gets its KeyboardInterrupt as in any cell; `run_code`
        stands below it and catches that.
        """
        return self._stop_button.cancels(future)

    def pre_handler_hook(self) -> None:
        """Leave the handler of SIGINT as it is: it is the stop button's (see `stops`)."""

    def post_handler_hook(self) -> None:
        """Leave it here, too: a press between two handlers of ipykernel's would end the kernel."""

    # --------------------------------------------------------------------- help while typing

    async def shell_channel_thread_main(self, msg: Frames) -> None:
        """Completions and help do not wait for the cell that runs.

        ipykernel answers them on the main thread, which a cell keeps for as long as it runs. Each
        has a thread of its own here, because a first completion in code of the controller's may
        take seconds. Requests for a subshell have a thread already.
        """
        header = self._header(msg)
        if header.get("msg_type") in _HELP and header.get("subshell_id") is None:
            run = threading.Thread(
                target=self._answer_help, args=(msg,), name="monarch-help", daemon=True
            )
            run.pydev_do_not_trace = True  # type: ignore[attr-defined]  # read by pydevd
            run.start()
        else:
            await super().shell_channel_thread_main(msg)

    def _answer_help(self, msg: Frames) -> None:
        idents, frames = self.session.feed_identities(msg, copy=False)
        request = self.session.deserialize(frames, content=True, copy=False)
        handler = self.shell_handlers[request["msg_type"]]
        with self._busy_beside_the_cell(request):
            try:
                asyncio.run(handler(_ReplyStream(self), idents, request))
            except Exception:
                self.log.exception("Exception in message handler:")  # ipykernel's words

    def _publish_status(self, status: str, channel: str, parent: Message | None = None) -> None:
        # Also remember what the main thread is busy with, and say it again behind the statuses of
        # subshells: front ends show the last one that came.
        with self._status_lock:
            super()._publish_status(status, channel, parent)
            if channel != "shell":
                return
            if threading.current_thread() is threading.main_thread():
                busy = status == "busy"
                self._busy_with = (parent or self.get_parent(channel)) if busy else None
            elif status == "idle" and self._busy_with is not None:
                super()._publish_status("busy", channel, self._busy_with)

    @contextlib.contextmanager
    def _busy_beside_the_cell(self, request: Message) -> Iterator[None]:
        # Busy with a request on another thread: the status of a cell that goes on is said again
        # behind it.
        publish = super()._publish_status
        with self._status_lock:
            publish("busy", "shell", request)
        try:
            yield
        finally:
            with self._status_lock:
                publish("idle", "shell", request)
                if self._busy_with is not None:
                    publish("busy", "shell", self._busy_with)

    async def do_shutdown(self, restart: bool) -> Message:
        """End the mesh, then the kernel."""
        await asyncio.to_thread(notebook.shut_down, self.shell, TEARDOWN_S)
        return dict(super().do_shutdown(restart))


class _ReplyStream:
    # For `session.send`; only the thread of the shell channel may use its socket
    def __init__(self, kernel: MonarchKernel) -> None:
        self._kernel = kernel

    def send_multipart(self, frames: Frames, **options: object) -> None:
        stream = self._kernel.shell_stream
        loop = self._kernel.shell_channel_thread.io_loop
        loop.add_callback(stream.send_multipart, frames, **options)
