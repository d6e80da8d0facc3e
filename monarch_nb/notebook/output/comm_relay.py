"""Widgets of ranks in the front end: every comm of a rank has a stand-in in the kernel.

Rules of the file: messages of ranks are sent to the front end by the inbox thread, under the cell
on whose behalf the rank speaks; the front end's are passed to the rank by whichever thread brings
them. The state of each widget is kept here, so that a page that is loaded again gets it at once,
however busy the rank is. A rank that is gone leaves its widgets as they were, switched off.
"""

from __future__ import annotations

import copy
import importlib
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from comm.base_comm import BaseComm
from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.core.wire.messages.cells import WidgetMessage
from monarch_nb.notebook.output.flusher import Flushed
from monarch_nb.notebook.output.sinks import CommMessage, Sink
from monarch_nb.notebook.shells import Header, Kernel, Message, kernel_of

if TYPE_CHECKING:
    from monarch_nb.control.api import CommEvent

WIDGET: Final = "jupyter.widget"
MAX_PARENTS: Final = 64
MANY: Final = 50
"""Messages in each `WINDOW_S` are sent at once; then updates wait, and only the last values are
sent. Jupyter's server drops everything of a kernel that sends more than 1000 in a second."""
WINDOW_S: Final = 0.1

Send = Callable[[int, WidgetMessage, Sequence[bytes]], None]

_UPDATES: Final = ("update", "echo_update")


class CommRelay:
    """The comms of all ranks. `sink_of(tag)` is where a cell shows things."""

    def __init__(
        self,
        shell: InteractiveShell,
        sink_of: Callable[[int], Sink | None],
        flush_at: Callable[[Flushed, float], None],
        send: Send,
    ) -> None:
        self._manager: Kernel = getattr(kernel_of(shell), "comm_manager", None)
        self._sink_of = sink_of
        self._flush_at = flush_at
        self._waiting: dict[RankEnd, set[str]] = {}  # and which values have changed
        self._window_s = 0.0
        self._sent = 0
        self._ends: dict[str, RankEnd] = {}
        self._lock = threading.Lock()
        self._widgets: dict[str, object] | None = None  # ipywidgets' own list, once it is imported
        self._importing: threading.Thread | None = None
        self.send = send

    def receive(self, event: CommEvent) -> None:
        if self._manager is None:
            return  # a terminal has no front end
        if event.kind == "comm_open":
            self._open(event)
            return
        end = self._ends.get(event.comm_id)
        if end is None or end.process != event.process:
            return
        end.sink = self._sink_of(event.tag) or end.sink  # the cell that runs there now
        changed = changes_of(event) if end.target_name == WIDGET else set()
        with self._lock:
            waits = changed and (end in self._waiting or not self._may_send())
            if waits:
                end.keep(event)
                self._waiting.setdefault(end, set()).update(changed)
        if waits:
            self._flush_at(self, time.monotonic() + WINDOW_S)
            return
        self._send_waiting(end)
        end.relay(event)
        if event.kind == "comm_close":
            self.forget(end)

    def flush(self) -> float | None:
        """Send updates that wait, if it is time. Returns when there will be more, or None."""
        for end in list(self._waiting):
            with self._lock:
                if not self._may_send():
                    return self._window_s + WINDOW_S
            self._send_waiting(end)
        return None

    def settle(self) -> None:
        """Send all updates that wait, as a cell ends."""
        for end in list(self._waiting):
            self._send_waiting(end)

    def _send_waiting(self, end: RankEnd) -> None:
        with self._lock:
            changed = self._waiting.pop(end, None)
        if changed:
            end.send_values(changed)

    def _may_send(self) -> bool:
        now = time.monotonic()
        if now >= self._window_s + WINDOW_S:
            self._window_s, self._sent = now, 0
        self._sent += 1
        return self._sent <= MANY

    def lost(self, process: int) -> None:
        """Switch off the widgets of a rank that is gone."""
        for end in [each for each in list(self._ends.values()) if each.process == process]:
            self._send_waiting(end)
            end.switch_off()
            self.forget(end)

    def forget(self, end: RankEnd) -> None:
        with self._lock:
            self._ends.pop(end.comm_id, None)
            self._waiting.pop(end, None)
            self._manager.comms.pop(end.comm_id, None)
            if self._widgets is not None:
                self._widgets.pop(end.comm_id, None)

    def _open(self, event: CommEvent) -> None:
        sink = self._sink_of(event.tag)
        if sink is None or event.comm_id in self._manager.comms:
            return
        end = RankEnd(self, sink, event)
        with self._lock:
            self._ends[end.comm_id] = end
            self._manager.comms[end.comm_id] = end
            self._list([end])
        end.relay(event)

    def _list(self, ends: Iterable[RankEnd]) -> None:
        # Let ipywidgets tell a page that asks about all widgets of these too
        if self._widgets is not None:
            self._widgets.update({end.comm_id: end for end in ends if end.target_name == WIDGET})
        elif self._importing is None:  # takes a while, and this is the inbox thread
            self._importing = threading.Thread(
                target=self._import, name="monarch-widgets", daemon=True
            )
            self._importing.start()

    def _import(self) -> None:
        widgets = importlib.import_module("ipywidgets.widgets.widget")
        with self._lock:
            self._widgets = widgets._instances
            self._list(self._ends.values())


class RankEnd(BaseComm):
    """Stands in the kernel for a comm of a rank."""

    def __init__(self, relay: CommRelay, sink: Sink, event: CommEvent) -> None:
        self._relay = relay
        self.sink = sink
        self.process: int = event.process
        self._parents: dict[str, Header] = {}
        self._state = WidgetState()
        target = str(event.content.get("target_name", ""))
        super().__init__(target_name=target, comm_id=event.comm_id, primary=False)

    # from the rank

    def keep(self, event: CommEvent) -> None:
        """Keep its message, which will be sent later, as values that have changed."""
        self._state.take(event.content["data"], event.buffers)

    def send_values(self, names: Collection[str]) -> None:
        self.sink.comm(self._state.message(self.comm_id, names))

    def relay(self, event: CommEvent) -> None:
        self.keep(event)
        parent = self._parents.get(event.parent)
        message = CommMessage(event.kind, event.content, event.metadata, event.buffers, parent)
        self.sink.comm(message)

    def switch_off(self) -> None:
        """Say that nobody answers. To close a widget's comm would take its picture away."""
        if self.target_name != WIDGET:
            self.sink.comm(CommMessage("comm_close", {"comm_id": self.comm_id, "data": {}}))
        elif "disabled" in self._state.values:
            data = {"method": "update", "state": {"disabled": True}, "buffer_paths": []}
            self.sink.comm(CommMessage("comm_msg", {"comm_id": self.comm_id, "data": data}))
        self._closed = True

    # from the front end, called by the kernel's comm manager

    def handle_msg(self, msg: Message) -> None:
        """Pass it to the rank; what asks for the state is answered here."""
        data = msg["content"]["data"]
        buffers = [bytes(buffer) for buffer in msg.get("buffers") or ()]
        if self.target_name == WIDGET and data.get("method") == "request_state":
            self.sink.comm(self._state.message(self.comm_id)._replace(parent=msg["header"]))
            return
        self._state.take(data, buffers)
        self._parents[msg["header"]["msg_id"]] = msg["header"]
        if len(self._parents) > MAX_PARENTS:
            del self._parents[next(iter(self._parents))]
        self._tell("comm_msg", msg, buffers)

    def handle_close(self, msg: Message) -> None:
        self._relay.forget(self)
        self._tell("comm_close", msg, [])

    def close(self, *_: object, **__: object) -> None:
        """Close it from the kernel, as `Widget.close_all()` does."""
        if self._closed:
            return
        self._closed = True
        self.sink.comm(CommMessage("comm_close", {"comm_id": self.comm_id, "data": {}}))
        self._relay.forget(self)
        self._tell("comm_close", {"content": {"data": {}}, "header": {"msg_id": ""}}, [])

    def __del__(self) -> None:
        """Nothing: it was closed, or the kernel ends."""

    def _tell(self, kind: str, msg: Message, buffers: Sequence[bytes]) -> None:
        data, metadata = msg["content"].get("data", {}), msg.get("metadata", {})
        message = WidgetMessage(kind, self.comm_id, data, metadata, msg["header"]["msg_id"])
        self._relay.send(self.process, message, buffers)

    # what ipywidgets asks its widgets for, when a page wants the state of all

    @property
    def model_id(self) -> str:
        return str(self.comm_id)

    def get_state(self, **_: object) -> dict[str, Any]:
        """Return the values, with their buffers in place."""
        return self._state.whole()

    def _get_embed_state(self, **_: object) -> dict[str, Any]:
        from ipywidgets.widgets.widget import Widget

        embedded: dict[str, Any] = Widget._get_embed_state(self)
        return embedded

    def __getattr__(self, name: str) -> Any:
        if name in {"_model_name", "_model_module", "_model_module_version"}:
            return self._state.values.get(name)
        raise AttributeError(name)


def changes_of(event: CommEvent) -> set[str]:
    """Return the names that an update of a rank changes; none for another message, or an answer."""
    data = event.content["data"]
    if event.kind != "comm_msg" or event.parent or data.get("method") != "update":
        return set()
    paths = data.get("buffer_paths") or []
    return {*(data.get("state") or ()), *(path[0] for path in paths if path)}


class WidgetState:
    """The last values of a widget, as they travel: JSON, and buffers by their paths in it."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._buffers: dict[tuple[str | int, ...], bytes] = {}

    def take(self, data: Mapping[str, Any], buffers: Sequence[bytes]) -> None:
        """Keep what a message says, if it says values."""
        state = data.get("state")
        if not isinstance(state, dict) or data.get("method", "update") not in _UPDATES:
            return
        paths = data.get("buffer_paths") or []
        new = {tuple(path): raw for path, raw in zip(paths, buffers, strict=False) if path}
        changed = {*state, *(path[0] for path in new)}
        kept = {path: raw for path, raw in self._buffers.items() if path[0] not in changed}
        self._buffers = {**kept, **new}
        self.values = {**self.values, **state}

    def message(self, comm_id: str, names: Collection[str] | None = None) -> CommMessage:
        """Return all of it, or the values of these names, as an update."""
        wanted = {*self.values, *(path[0] for path in self._buffers)} if names is None else names
        values = {name: value for name, value in self.values.items() if name in wanted}
        buffers = {path: raw for path, raw in self._buffers.items() if path[0] in wanted}
        paths = [list(path) for path in buffers]
        data = {"method": "update", "state": values, "buffer_paths": paths}
        content = {"comm_id": comm_id, "data": data}
        return CommMessage("comm_msg", content, buffers=list(buffers.values()))

    def whole(self) -> dict[str, object]:
        widgets: Any = sys.modules["ipywidgets.widgets.widget"]
        values = copy.deepcopy(self.values)
        widgets._put_buffers(values, list(self._buffers), list(self._buffers.values()))
        return values
