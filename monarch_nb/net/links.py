"""A process's inbox thread and its outboxes: frames in, frames out, nothing decided here.

Rule: the inbox thread reads headers and hands messages to one callable, which must return at once. Any thread
may send; an outbox is guarded by its lock and never blocks (no high-water mark).
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import zmq

from monarch_nb.core import frames
from monarch_nb.errors import ProtocolError
from monarch_nb.net import wire
from monarch_nb.net.pulse import Pulse, PulseWatch

DETACH_BYTES: Final = (
    1 << 16
)  # a payload of this size is sent as a frame of its own, without a copy
_WAKE: Final = b""


class Outbox:
    """Delivers to one process, from any thread, in the order of the calls."""

    __slots__ = ("_lock", "_send", "_socket")

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._send = socket.send
        self._lock = threading.Lock()

    def send(self, frame: bytes) -> None:
        """Send a message of one frame."""
        with self._lock:
            self._send(frame)

    def send_frames(self, parts: Sequence[Any]) -> None:
        """Send a message of several frames; all but the first go without a copy where large."""
        with self._lock:
            self._socket.send_multipart(parts, copy=False)

    def close(self, linger_s: float | None = None) -> None:
        """Close; what was sent is still delivered within `linger_s` (default: the socket's own)."""
        with self._lock:
            self._socket.close(None if linger_s is None else int(linger_s * 1000))


class RelayOutbox(Outbox):
    """Delivers to a process of another host, through this host's gateway."""

    __slots__ = ("_relay",)

    def __init__(self, socket: zmq.Socket[bytes], process: int) -> None:
        super().__init__(socket)
        self._relay = frames.HEADER.pack(frames.RELAY, 0, 0, 0, 0, process, 0, 0)

    def send(self, frame: bytes) -> None:
        super().send_frames([self._relay, frame])

    def send_frames(self, parts: Sequence[Any]) -> None:
        super().send_frames([self._relay, *parts])


def open_outbox(
    context: zmq.Context[zmq.Socket[bytes]], run_dir: Path, own: int, process: int
) -> Outbox:
    """The way from the process `own` to another: direct on one host, else through the gateway."""
    host = own >> frames.HOST_SHIFT
    if process >> frames.HOST_SHIFT == host:
        return Outbox(wire.connect_outbox(context, run_dir, process))
    return RelayOutbox(wire.connect_outbox(context, run_dir, wire.gateway_id(host)), process)


class Links:
    """The sockets of one process on one host: one inbox, an outbox for each peer it has talked to.

    `deliver` is called in the inbox thread with each message.
    """

    def __init__(
        self, run_dir: Path, process: int, deliver: Callable[[frames.Message], None]
    ) -> None:
        self.run_dir = run_dir
        self.process = process
        self.malformed = 0
        self._deliver = deliver
        self._pid = os.getpid()
        self._context = wire.new_context()
        self._inbox = wire.bind_inbox(self._context, run_dir, process)
        self._outboxes: dict[int, Outbox] = {}
        self._lock = threading.Lock()
        self._closing = False
        self._watches: list[PulseWatch] = []
        self._thread = threading.Thread(target=self._receive, name="monarch-inbox", daemon=True)
        # a debugger must not stop this thread, or the rank stops answering (issue of every remote debugger)
        self._thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
        self._thread.is_pydev_daemon_thread = True  # type: ignore[attr-defined]

    def start(self) -> None:
        """Begin to receive."""
        self._thread.start()

    def outbox(self, process: int) -> Outbox:
        """The outbox to a process, made at first use."""
        found = self._outboxes.get(process)
        return self._connect(process) if found is None else found

    def _connect(self, process: int) -> Outbox:
        with self._lock:
            found = self._outboxes.get(process)
            if found is None:
                found = open_outbox(self._context, self.run_dir, self.process, process)
                self._outboxes[process] = found
            return found

    def knows(self, process: int) -> bool:
        """Whether this process has an outbox to that one."""
        return process in self._outboxes

    def drop(self, process: int) -> None:
        """Forget a peer that is gone, with all that was not delivered."""
        with self._lock:
            outbox = self._outboxes.pop(process, None)
        if outbox is not None:
            outbox.close(0)

    def watch_pulse(
        self,
        process: int,
        interval_s: float,
        timeout_s: float,
        judge: Callable[[bool | None], float | None],
    ) -> PulseWatch:
        """Watch the pulse of a process of this host; `judge` as in `PulseWatch`."""
        make = functools.partial(
            Pulse, self._context, self.run_dir, process, interval_s, timeout_s
        )
        watch = PulseWatch(make, judge)
        self._watches.append(watch)
        return watch

    def close(self, linger_s: float = 0.5) -> None:
        """Stop receiving, deliver what was sent (at most `linger_s`), close every socket.

        In a forked child this does nothing: the sockets are the parent's.
        """
        if self._closing or os.getpid() != self._pid:
            return
        self._closing = True
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            waker = wire.connect_inner(self._context)
            waker.send(_WAKE)
            self._thread.join()
            waker.close(0)
        for watch in self._watches:
            watch.close()
        self._inbox.close(0)
        with self._lock:
            for outbox in self._outboxes.values():
                outbox.close(linger_s)
            self._outboxes.clear()
        self._context.term()
        with contextlib.suppress(OSError):
            os.unlink(wire.inbox_path(self.run_dir, self.process).removeprefix("ipc://"))

    def _receive(self) -> None:
        receive = self._inbox.recv
        deliver = self._deliver
        unpack = frames.HEADER.unpack_from
        size = frames.HEADER.size
        while not self._closing:
            frame = receive()
            try:
                if len(frame) < size:
                    self._odd(frame)
                    continue
                header = unpack(frame)
                if header[2]:
                    deliver(self._with_buffers(header, frame))
                else:
                    deliver(frames.Message(header, memoryview(frame)[size:]))
            except ProtocolError:
                self.malformed += 1
                self._discard_rest()
            except Exception:  # noqa: BLE001  one bad message must not end the thread that all depend on
                traceback.print_exc(file=sys.__stderr__)

    def _with_buffers(self, header: tuple[int, ...], frame: bytes) -> frames.Message:
        buffers: list[Any] = []
        while self._inbox.rcvmore:
            buffers.append(self._inbox.recv(copy=False).buffer)
        if len(buffers) != header[2]:
            raise ProtocolError(f"{header[2]} buffers announced, {len(buffers)} came")
        return frames.build(header, memoryview(frame)[frames.HEADER.size :], buffers)

    def _odd(self, frame: bytes) -> None:
        if frame != _WAKE:
            raise ProtocolError(f"a frame of {len(frame)} bytes is too short for a header")

    def _discard_rest(self) -> None:
        while self._inbox.rcvmore:
            self._inbox.recv(copy=False)
