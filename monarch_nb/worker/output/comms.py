"""Comms of a rank: the wire between a widget here and its picture in the browser.

Rules: what comes from the browser waits in the queue of the main thread, like a cell; it is handled
between two cells or while a cell waits for an answer, never in the inbox thread. A slider that is
moved while the rank is busy leaves its last value only. What a callback prints and shows belongs to
the cell that made the widget. Buffers travel as they are.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import comm
from comm.base_comm import BaseComm, CommManager

from monarch_nb.core.wire.frames import COMM_PORT, Buffer
from monarch_nb.core.wire.jsonable import as_json
from monarch_nb.core.wire.messages.cells import WidgetMessage

if TYPE_CHECKING:
    from monarch_nb.actors.sync_driver import WorkQueue
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.services.runtime import Runtime
    from monarch_nb.worker.cells.queue import CellQueue
    from monarch_nb.worker.controller import Controller

Buffers = Sequence[Buffer]

EVERY_S: Final = 0.1
MAX_CHARS: Final = 100_000  # of one piece of text; the end is kept
MAX_OUTPUTS: Final = 200  # of one widget; the last are kept
_MODULE: Final = "ipywidgets.widgets.widget_output"
MAX_BYTES: Final = 32 << 20
"""Of one message; a browser that is sent more stops answering."""


class Comms:
    """The comms of this rank. `install` gives them to the `comm` package, and so to ipywidgets."""

    def __init__(
        self, runtime: Runtime, work: WorkQueue, cells: CellQueue, controller: Controller
    ) -> None:
        self._controller = controller
        self._runtime = runtime
        self._work = work
        self._cells = cells
        self._manager: Any = CommManager()
        self._lock = threading.Lock()
        self._last: _Incoming | None = None
        self._parent = ""

    def install(self) -> None:
        comm.create_comm = lambda *args, **options: RankComm(self, *args, **options)
        comm.get_comm_manager = lambda: self._manager

    # any thread

    def current_tag(self) -> int:
        return self._runtime.root_tag()

    def send(self, tag: int, content: dict[str, Any], buffers: Buffers | None) -> None:
        # copies: arrays may change before they leave
        raws = [bytes(memoryview(buffer)) for buffer in buffers or ()]
        text = as_json({**content, "parent": self._parent})
        size = len(text) + sum(map(len, raws))
        if size > MAX_BYTES:
            raise ValueError(
                f"a widget message of {size >> 20} MB is over the limit of {MAX_BYTES >> 20} MB: "
                "send the browser less, e.g. a smaller image"
            )
        with self._cells.shell.shield():
            self._cells.flush()
            payload = self._runtime.proc.encode_bytes(text, raws)
            self._controller.send_output(COMM_PORT, payload, tag)

    # the inbox thread

    def on_message(self, said: WidgetMessage, message: Message) -> None:
        incoming = _Incoming(self._handle, said, list(message.buffers))
        with self._lock:
            if self._last is not None and self._last.absorb(incoming):
                return
            self._last = incoming
        self._work.put((incoming, None))
        self._cells.shell.while_awaiting(lambda: incoming.step(None))

    # the main thread

    def _handle(self, incoming: _Incoming) -> None:
        with self._lock:
            if not incoming.begin():
                return  # a cell that awaited something has let it in
        asked = incoming.message
        target = self._manager.comms.get(asked.comm_id)
        if target is None:
            return
        handle = self._manager.comm_close if asked.type == "comm_close" else self._manager.comm_msg
        content = {"comm_id": asked.comm_id, "data": asked.data}
        said = {"content": content, "metadata": asked.metadata, "buffers": incoming.buffers}
        outer, self._parent = self._parent, asked.parent
        try:
            self._cells.run_callback(target.tag, lambda: handle(None, "", said))
        finally:
            self._parent = outer


class RankComm(BaseComm):
    def __init__(self, comms: Comms, *args: Any, **options: Any) -> None:
        self._comms = comms
        self.tag = comms.current_tag()
        super().__init__(*args, **options)

    def publish_msg(
        self,
        msg_type: str,
        data: dict[str, object] | None = None,
        metadata: dict[str, object] | None = None,
        buffers: Buffers | None = None,
        **keys: object,
    ) -> None:
        teach_output()
        content = {"type": msg_type, "comm_id": self.comm_id, **keys}
        tag = self._comms.current_tag() or self.tag  # a thread has none
        self._comms.send(tag, {**content, "data": data or {}, "metadata": metadata or {}}, buffers)

    def __del__(self) -> None:
        """Nothing: one that is open is in the manager; and a finalizer must not send."""


class _Incoming:
    def __init__(
        self, handle: Callable[[_Incoming], None], message: WidgetMessage, buffers: Buffers
    ) -> None:
        self._handle = handle
        self.message = message
        self.buffers = buffers
        self.has_begun = False

    def step(self, _: Message | None) -> None:
        self._handle(self)

    def begin(self) -> bool:
        before, self.has_begun = self.has_begun, True
        return not before

    def absorb(self, later: _Incoming) -> bool:
        # Take the values of the message that comes next, if both are updates of one widget
        if self.has_begun or self.message.comm_id != later.message.comm_id:
            return False
        if not (self._is_plain_update() and later._is_plain_update()):
            return False
        state = {**self.message.data["state"], **later.message.data["state"]}
        self.message = later.message._replace(data={**later.message.data, "state": state})
        return True

    def _is_plain_update(self) -> bool:
        data = self.message.data
        is_update = self.message.type == "comm_msg" and data.get("method") == "update"
        return is_update and isinstance(data.get("state"), dict) and not self.buffers


# ------------------------------------------------------------------ `with ipywidgets.Output():`

# In a kernel the front end sorts messages by the request that caused them. A rank has no request of
# its own, so what is printed and shown inside the block is put into `outputs` of the widget here,
# which the front end draws. Text is added a few times a second, the rest at the block's end.


Output = dict[str, Any]
"""As Jupyter writes it in a notebook."""


class OutputWidget(Protocol):
    outputs: tuple[Output, ...]


def teach_output() -> None:
    """Let `Output` capture here, if the user has imported it."""
    output: type | None = getattr(sys.modules.get(_MODULE), "Output", None)
    if output is not None and vars(output).get("__enter__") is not _enter:
        for name, method in (("__enter__", _enter), ("__exit__", _exit)):
            setattr(output, name, method)


def _enter(widget: OutputWidget) -> OutputWidget:
    captured = vars(widget).setdefault("_monarch_captured", _Captured(widget))
    captured.enter()
    return widget


def _exit(widget: OutputWidget, kind: object, error: BaseException | None, _: object) -> bool:
    shown = error is not None and isinstance(error, Exception)
    if shown:
        _shell().showtraceback((kind, error, error.__traceback__ if error else None))
    vars(widget)["_monarch_captured"].leave()
    return shown  # as in a kernel: it was shown inside the widget


def _shell() -> Any:
    # That of the cells, also while a script has a `__main__` of its own
    return vars(builtins)["get_ipython"]()


class _Captured:
    def __init__(self, widget: OutputWidget) -> None:
        self._widget = widget
        self._undo = contextlib.ExitStack()
        self._outputs: list[Output] = []
        self._depth = 0
        self._sent_s = 0.0
        self._clears_next = False

    def enter(self) -> None:
        self._depth += 1
        if self._depth > 1:
            return
        self._outputs = list(self._widget.outputs)
        for stream in ("stdout", "stderr"):
            self._undo.enter_context(_replaced(stream, _Stream(self, stream)))
        self._undo.enter_context(_shell().cells.captured(self.show))

    def leave(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._undo.close()
            self._send()

    def write(self, stream: str, text: str) -> None:
        last = self._begin()
        if last is not None and last.get("name") == stream:
            last = self._outputs.pop()
            text = last["text"] + text
        said = {"output_type": "stream", "name": stream, "text": text[-MAX_CHARS:]}
        self._outputs.append(said)
        if time.monotonic() - self._sent_s > EVERY_S:
            self._send()

    def show(self, message: Output) -> None:
        if message["type"] == "clear_output":
            self._clears_next = bool(message["wait"])
            if not self._clears_next:
                self._outputs.clear()
        elif message["type"] != "update_display_data":
            self._begin()
            shown = {key: message[key] for key in ("data", "metadata")}
            self._outputs.append({"output_type": "display_data", **shown})
        self._send()

    def _begin(self) -> Output | None:
        if self._clears_next:
            self._outputs.clear()
        self._clears_next = False
        return self._outputs[-1] if self._outputs else None

    def _send(self) -> None:
        self._sent_s = time.monotonic()
        self._widget.outputs = tuple(self._outputs[-MAX_OUTPUTS:])


class _Stream(io.TextIOBase):
    def __init__(self, captured: _Captured, stream: str) -> None:
        self._captured = captured
        self._stream = stream

    def write(self, text: str) -> int:
        self._captured.write(self._stream, text)
        return len(text)

    def writable(self) -> bool:
        return True


@contextlib.contextmanager
def _replaced(name: str, stream: object) -> Iterator[None]:
    before = getattr(sys, name)
    setattr(sys, name, stream)
    try:
        yield
    finally:
        setattr(sys, name, before)
