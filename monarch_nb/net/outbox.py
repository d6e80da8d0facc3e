"""How messages leave a process: an outbox per peer, whatever carries it.

Rules: any thread may send; the order of an outbox is the order of its calls; sending never blocks
(no high-water mark). Messages that follow each other within microseconds are held and sent as one,
because on the way each message costs a switch of threads on both ends. What is held leaves when it
is enough, when the sender is about to wait (`Links.flush`), or after a millisecond.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import zmq

from monarch_nb.core.casting import Cast
from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import Buffer
from monarch_nb.errors import BrokenError
from monarch_nb.net import wire
from monarch_nb.net.loop import Loop
from monarch_nb.net.streams import Stream, split

BURST_NS: Final = 25_000  # messages to one process that are closer than this are a burst
HOLD_BYTES: Final = 4096
HOLD_MESSAGES: Final = 32
OnHeld = Callable[["Outbox"], None]


class _Severed:
    """In place of a lock; it may have been held by a thread that the fork has not."""

    def __enter__(self) -> None:
        raise BrokenError("this process was forked from a member of a mesh and cannot send for it")

    def __exit__(self, *_: object) -> None:
        return


SEVERED: Final = _Severed()


class Outbox(ABC):
    """Delivers to one process. Without `on_held` nothing is ever held."""

    __slots__ = ("_held", "_last_ns", "_lock", "_on_held")

    def __init__(self, on_held: OnHeld | None = None) -> None:
        self._lock: threading.Lock | _Severed = threading.Lock()
        self._on_held = on_held
        self._held: list[bytes] = []
        self._last_ns = 0

    def send(self, frame: bytes) -> None:
        now_ns = time.perf_counter_ns()
        with self._lock:
            if (
                now_ns - self._last_ns < BURST_NS
                and self._on_held is not None
                and len(frame) < HOLD_BYTES
            ):
                self._hold(frame)
            else:
                if self._held:
                    self._send_held()
                self._transmit(frame)
            self._last_ns = now_ns

    def send_frames(self, parts: Sequence[Buffer], *, is_constant: bool = False) -> None:
        """Send a message of several frames; large ones go without a copy where possible, which it
        is when nobody changes them any more."""
        with self._lock:
            if self._held:
                self._send_held()
            self._transmit_frames(parts, is_constant=is_constant)

    def flush(self) -> None:
        with self._lock:
            if self._held:
                self._send_held()

    def sever(self) -> None:
        """Tell whoever sends that this process is a fork, and the way its parent's."""
        self._lock = SEVERED

    def close(self, linger_s: float) -> None:
        """Close; what was sent is still delivered within `linger_s`."""
        with self._lock:
            if self._held and linger_s > 0:
                self._send_held()
            self._held = []
            self._on_held = None
            self._close(linger_s)

    def _hold(self, frame: bytes) -> None:
        self._held.append(frame)
        if len(self._held) == 1 and self._on_held is not None:
            self._on_held(self)
        elif len(self._held) >= HOLD_MESSAGES:
            self._send_held()

    def _send_held(self) -> None:
        held, self._held = self._held, []
        self._transmit(held[0] if len(held) == 1 else frames.pack_batch(held))

    @abstractmethod
    def _transmit(self, frame: bytes) -> None: ...

    @abstractmethod
    def _transmit_frames(self, parts: Sequence[Buffer], *, is_constant: bool) -> None: ...

    @abstractmethod
    def _close(self, linger_s: float) -> None: ...


class StreamOutbox(Outbox):
    """To a rank or the controller on this host, over a unix stream."""

    __slots__ = ("_stream",)

    def __init__(self, stream: Stream, on_held: OnHeld | None = None) -> None:
        super().__init__(on_held)
        self._stream = stream

    def _transmit(self, frame: bytes) -> None:
        self._stream.send(len(frame).to_bytes(4, "little") + frame)

    def _transmit_frames(self, parts: Sequence[Buffer], *, is_constant: bool) -> None:
        self._stream.send_pieces(split(parts), is_constant=is_constant)

    def _close(self, linger_s: float) -> None:
        self._stream.close(linger_s)

    def sever(self) -> None:
        super().sever()
        self._stream.sever()


class QueueOutbox(Outbox):
    """To the agent of this host, over ZeroMQ."""

    __slots__ = ("_socket",)

    def __init__(self, socket: zmq.Socket[bytes], on_held: OnHeld | None = None) -> None:
        super().__init__(on_held)
        self._socket = socket

    def _transmit(self, frame: bytes) -> None:
        if not self._socket.closed:
            self._socket.send(frame)

    def _transmit_frames(self, parts: Sequence[Buffer], *, is_constant: bool) -> None:  # noqa: ARG002
        if not self._socket.closed:
            self._socket.send_multipart(parts)  # copied: the sender may change them at once

    def _close(self, linger_s: float) -> None:
        self._socket.close(int(linger_s * 1000))


class Relay(Protocol):
    """The way to processes of other hosts, which all outboxes to them share."""

    def send(self, process: int, parts: Sequence[Buffer]) -> None:
        """Send a message of these frames to a process of another host."""

    def cast(self, cast: Cast) -> None:
        """Send a message to processes of other hosts, which crosses each link once."""

    def sever(self) -> None:
        """Be of no use any more: this process is a fork."""

    def close(self, linger_s: float) -> None:
        """Close; what was sent is still delivered within `linger_s`."""


class StreamRelay:
    """The stream to this host's gateway, which runs in another process."""

    def __init__(self, run_dir: Path, own: int, loop: Loop) -> None:
        self._gateway = wire.gateway_id(own >> frames.HOST_SHIFT)
        self._own = own
        self._stream = Stream(run_dir, self._gateway, loop)
        self._lock: threading.Lock | _Severed = threading.Lock()

    def send(self, process: int, parts: Sequence[Buffer]) -> None:
        first, *buffers = parts
        relay = frames.HEADER.pack(frames.RELAY, 0, len(buffers), 0, 0, process, self._own, 0)
        with self._lock:
            self._stream.send_pieces(split([relay + bytes(first), *buffers]))

    def cast(self, cast: Cast) -> None:
        self.send(self._gateway, cast.pack(self._own))

    def sever(self) -> None:
        self._lock = SEVERED
        self._stream.sever()

    def close(self, linger_s: float) -> None:
        with self._lock:
            self._stream.close(linger_s)


class RelayOutbox(Outbox):
    """To a process of another host, through this host's gateway."""

    __slots__ = ("_process", "_relay")

    def __init__(self, relay: Relay, process: int, on_held: OnHeld | None = None) -> None:
        super().__init__(on_held)
        self._relay = relay
        self._process = process

    def _transmit(self, frame: bytes) -> None:
        self._relay.send(self._process, [frame])

    def _transmit_frames(self, parts: Sequence[Buffer], *, is_constant: bool) -> None:  # noqa: ARG002
        self._relay.send(self._process, parts)

    def _close(self, linger_s: float) -> None:
        """The relay is that of others too, and closed by whom it belongs to."""


def open_queue(
    context: wire.Context, run_dir: Path, process: int, on_held: OnHeld | None = None
) -> Outbox:
    """Return the way to a process of this host over ZeroMQ."""
    return QueueOutbox(wire.connect_outbox(context, run_dir, process), on_held)
