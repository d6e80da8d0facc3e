"""Comms of a rank: the wire between a widget here and its picture in the browser.

Rules: what comes from the browser waits in the queue of the main thread, like a cell; it is handled
between two cells or while a cell waits for an answer, never in the inbox thread. A slider that is
moved while the rank is busy leaves its last value only. What a callback prints and shows belongs to
the cell that made the widget. Buffers travel as they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import comm
from comm.base_comm import BaseComm, CommManager

from monarch_nb.core.wire.frames import COMM_PORT, OUTPUT, Buffer
from monarch_nb.core.wire.messages.cells import WidgetMessage
from monarch_nb.worker.cells.jsonable import as_json
from monarch_nb.worker.output import output_widget

if TYPE_CHECKING:
    from monarch_nb.actors.sync_driver import WorkQueue
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.services.runtime import Runtime
    from monarch_nb.worker.cells.queue import CellQueue

Buffers = Sequence[Buffer]

MAX_BYTES: Final = 32 << 20
"""Of one message; a browser that is sent more stops answering."""


class Comms:
    """The comms of this rank. `install` gives them to the `comm` package, and so to ipywidgets."""

    def __init__(self, runtime: Runtime, work: WorkQueue, cells: CellQueue) -> None:
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
        raws = [
            bytes(memoryview(buffer)) for buffer in buffers or ()
        ]  # arrays may change before they leave
        text = as_json({**content, "parent": self._parent})
        size = len(text) + sum(map(len, raws))
        if size > MAX_BYTES:
            raise ValueError(
                f"a widget message of {size >> 20} MB is over the limit of {MAX_BYTES >> 20} MB: "
                "send the browser less, e.g. a smaller image"
            )
        with self._cells.shell.shield():
            self._cells.flush()
            proc = self._runtime.proc
            proc.send(proc.controller, OUTPUT, COMM_PORT, proc.encode_bytes(text, raws), tag=tag)

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
        output_widget.teach()
        content = {"type": msg_type, "comm_id": self.comm_id, **keys}
        tag = self._comms.current_tag() or self.tag  # a thread has none
        self._comms.send(tag, {**content, "data": data or {}, "metadata": metadata or {}}, buffers)

    def __del__(self) -> None:
        """Nothing: one that is open is in the manager; and a finalizer must not send."""


class _Incoming:
    def __init__(
        self,
        handle: Callable[[_Incoming], None],
        message: WidgetMessage,
        buffers: Buffers,
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
