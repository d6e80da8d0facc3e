"""Messages between widgets of ranks and whoever shows them: passed on, not understood.

A rank's message is given to the listener in the inbox thread, the browser's is sent to the rank. A
process that is gone is told to the listener once, after its last message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from monarch_nb.core.wire.frames import CONTROL, CONTROL_PORT
from monarch_nb.core.wire.messages.cells import WidgetMessage
from monarch_nb.core.wire.messages.codec import encode, json_of
from monarch_nb.errors import RemoteProtocolError
from monarch_nb.process.payloads import Payload
from monarch_nb.process.process import Proc

if TYPE_CHECKING:
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.process.supervision.supervision import Supervision

KINDS: Final = ("comm_open", "comm_msg", "comm_close")
_FIELDS: Final = {"comm_id": str, "data": dict, "metadata": dict, "parent": str}


@dataclass(frozen=True)
class CommEvent:
    """A comm message of a rank.

    `kind` is comm_open, comm_msg or comm_close, `content` what Jupyter's message of that name
    carries, `parent` the id of the browser's message that it answers, or "".
    """

    process: int
    tag: int
    kind: str
    content: Mapping[str, Any]
    metadata: Mapping[str, object]
    buffers: Sequence[bytes]
    parent: str

    @property
    def comm_id(self) -> str:
        return str(self.content["comm_id"])


class Listener(Protocol):
    def receive(self, event: CommEvent) -> None: ...
    def lost(self, process: int) -> None: ...


class CommService:
    """`called(tag)` is what a cell is called here which ranks call so."""

    def __init__(self, proc: Proc, supervision: Supervision, called: Callable[[int], int]) -> None:
        self._proc = proc
        self._called = called
        self._listener: Listener | None = None
        self._seen: set[int] = set()
        supervision.on_exit.append(lambda ended: self._lost(ended.process))

    def listen(self, listener: Listener) -> None:
        self._listener = listener

    def on_message(self, message: Message) -> None:
        """Pass on what a rank's widget says. Inbox thread."""
        body = json_of(message.payload)
        if body.get("type") not in KINDS:
            raise RemoteProtocolError(f"a comm message of type {body.get('type')!r:.80}")
        if not all(isinstance(body.get(name), kind) for name, kind in _FIELDS.items()):
            raise RemoteProtocolError("a comm message without its fields")
        if self._listener is None:
            return
        self._seen.add(message.source)
        kind, metadata, parent = (body.pop(name) for name in ("type", "metadata", "parent"))
        buffers = [bytes(each) for each in message.buffers]
        tag = self._called(message.tag)
        event = CommEvent(message.source, tag, kind, body, metadata, buffers, parent)
        self._listener.receive(event)

    def send(self, process: int, message: WidgetMessage, buffers: Sequence[bytes]) -> None:
        """Send the browser's message to the rank. Any thread."""
        payload = Payload(encode(message), list(buffers))
        self._proc.send(process, CONTROL, CONTROL_PORT, payload)

    def close(self) -> None:
        """Tell that all ranks are gone: the client ends."""
        for process in list(self._seen):
            self._lost(process)

    def _lost(self, process: int) -> None:
        if process in self._seen and self._listener is not None:
            self._seen.discard(process)
            self._listener.lost(process)
