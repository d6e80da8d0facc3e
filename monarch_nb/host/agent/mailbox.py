"""The agent's sockets: control messages in, control messages out. Nothing is decided here.

Only CONTROL frames with a JSON object are taken; anything else is counted and dropped. User data in
the buffers is passed on as bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from monarch_nb.core.wire import frames
from monarch_nb.core.wire.messages import codec
from monarch_nb.errors import RemoteProtocolError
from monarch_nb.host.agent.events import Asker
from monarch_nb.net import wire
from monarch_nb.net.loop import Loop
from monarch_nb.net.outbox import Outbox, RelayOutbox, StreamRelay, open_queue
from monarch_nb.net.private import check_private
from monarch_nb.net.pulse import Pulse

_AT_ONCE: Final = 200  # messages taken in one go, so that exits are noticed under any load
_LINGER_S: Final = 0.5


class Request(NamedTuple):
    """A control message as received: its JSON, for the handler that knows its type."""

    asker: Asker
    body: codec.Body
    buffers: list[bytes]


class Mailbox:
    """One inbox, an outbox for each process that was ever written to and has not ended."""

    def __init__(self, run_dir: Path, process: int) -> None:
        check_private(run_dir)  # before anything is opened
        self.malformed = 0
        self._run_dir = run_dir
        self._process = process
        self._context = wire.new_context()
        self._inbox = wire.bind_inbox(self._context, run_dir, process)
        self._outboxes: dict[int, Outbox] = {}
        self._relay_loop = Loop()
        self._relay: StreamRelay | None = None

    def fileno(self) -> int:
        """Return the inbox's descriptor; edge-triggered."""
        return int(self._inbox.fd)

    def relay_fileno(self) -> int:
        """Return the descriptor that says when `write` has something to do."""
        return self._relay_loop.fileno()

    def write(self) -> None:
        """Write on what waits for the gateway, without waiting."""
        self._relay_loop.turn(0)

    def pause_s(self) -> float | None:
        """Return after how long `write` is due even if nothing tells of it; or None."""
        return self._relay_loop.pause_s()

    def ready(self) -> bool:
        return bool(self._inbox.poll(0))

    def receive(self) -> Iterator[Request]:
        """Return what has come, up to a limit; then `ready` says whether there is more."""
        for _ in range(_AT_ONCE):
            if not self.ready():
                return
            for message in self._parse(self._inbox.recv_multipart()):
                try:
                    yield _open(message)
                except RemoteProtocolError:
                    self.malformed += 1

    def send(self, process: int, message: object) -> None:
        self._post(Asker(process, frames.CONTROL_PORT), codec.encode(message))

    def answer(self, asker: Asker, answer: object) -> None:
        """Answer whoever asked, if they wait for it."""
        if asker.port:
            self._post(asker, codec.encode_answer(answer))

    def drop(self, process: int) -> None:
        """Forget a process that is gone: its outbox would try to reconnect for ever."""
        if (outbox := self._outboxes.pop(process, None)) is not None:
            outbox.close(0)
        for path in wire.socket_paths(self._run_dir, process):
            path.unlink(missing_ok=True)

    def pulse(self, process: int, interval_s: float, timeout_s: float) -> Pulse:
        return Pulse(self._context, self._run_dir, process, interval_s, timeout_s)

    def close(self, *, deliver: bool = True) -> None:
        """Close; what was sent is delivered before, unless that takes half a second."""
        self._inbox.close(0)
        for outbox in self._outboxes.values():
            outbox.close(_LINGER_S if deliver else 0)
        self._outboxes.clear()
        if self._relay is not None:
            self._relay.close(_LINGER_S if deliver else 0)
        self._relay_loop.close()
        wire.end_context(self._context)
        self.drop(self._process)

    def _parse(self, parts: list[bytes]) -> list[frames.Message]:
        try:
            header = frames.parse_header(parts[0])
            if header[0] == frames.BATCH:
                return frames.unpack_batch(header, parts[0])
            return [frames.parse(parts)]
        except RemoteProtocolError:
            self.malformed += 1
            return []

    def _post(self, to: Asker, text: bytes) -> None:
        header = frames.HEADER.pack(
            frames.CONTROL, 0, 0, to.rank, to.tag, to.port, self._process, 0
        )
        self._outbox(to.process).send(header + text)

    def _outbox(self, process: int) -> Outbox:
        found = self._outboxes.get(process)
        if found is None:
            found = self._outboxes[process] = self._connect(process)
        return found

    def _connect(self, process: int) -> Outbox:
        is_here = process >> frames.HOST_SHIFT == self._process >> frames.HOST_SHIFT
        if is_here and not frames.is_gateway(process):
            return open_queue(self._context, self._run_dir, process)
        if self._relay is None:
            self._relay = StreamRelay(self._run_dir, self._process, self._relay_loop)
        return RelayOutbox(self._relay, process)


def _open(message: frames.Message) -> Request:
    if message.kind != frames.CONTROL:
        raise RemoteProtocolError("an agent takes control messages only")
    asker = Asker(message.source, message.reply, message.rank, message.tag)
    return Request(asker, codec.json_of(message.payload), [bytes(part) for part in message.buffers])
