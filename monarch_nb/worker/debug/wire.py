"""What pydevd takes for a socket: messages of the Debug Adapter Protocol, in this process alone.

Nothing listens and nothing connects: what the controller says comes in control messages of the
mesh, which are authenticated, and is read here by pydevd's thread as from a peer. Framing is by
bytes.
"""

from __future__ import annotations

import json
import queue
from collections.abc import Callable
from typing import Any, Final

_END: Final = b"\r\n\r\n"


class Wire:
    """Two ends of a conversation: `send` and `on_message` are ours, the rest is pydevd's."""

    def __init__(self, on_message: Callable[[dict[str, Any]], None]) -> None:
        self._on_message = on_message
        self._to_debugger: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._said = bytearray()

    def send(self, message: dict[str, Any]) -> None:
        """Say something to the debugger. Any thread; returns at once."""
        body = json.dumps(message).encode()
        self._to_debugger.put(b"Content-Length: %d%b%b" % (len(body), _END, body))

    # what pydevd calls

    def recv(self, _size: int) -> bytes:
        """The next message, whole: pydevd keeps what is more than it has asked for."""
        return self._to_debugger.get()

    def sendall(self, data: bytes) -> None:
        """The debugger says something, a header and a body at a time or in any other parts."""
        self._said += data
        while (message := self._next()) is not None:
            self._on_message(json.loads(message))

    def settimeout(self, _seconds: float | None) -> None:
        """It never blocks for longer than there is nothing to say."""

    def shutdown(self, _how: int) -> None:
        """The debugger ends."""
        self.close()

    def close(self) -> None:
        """The end of the conversation, for the thread that reads."""
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
