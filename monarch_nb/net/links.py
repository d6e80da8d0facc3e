"""A process's inbox thread and its outboxes: frames in, frames out, nothing decided here.

Rule: the inbox thread reads headers and hands messages to one callable, which must return at once. Any thread
may send; an outbox is guarded by its lock and never blocks (no high-water mark).
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import sys
import threading
import time
import traceback
from collections import deque
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
BURST_NS: Final = 50_000  # messages to one process that are closer than this are a burst
HOLD_BYTES: Final = 4096
HOLD_MESSAGES: Final = 32
HOLD_S: Final = 0.001
_WAKE: Final = b""


class Outbox:
    """Delivers to one process, from any thread, in the order of the calls.

    Messages that follow each other within microseconds are held and sent as one, because on the way each message
    costs a switch of threads on both ends. What is held leaves when it is enough, when the sender is about to
    wait (`Links.flush`), or after a millisecond.
    """

    __slots__ = ("_held", "_last_ns", "_lock", "_on_held", "_send", "_socket")

    def __init__(
        self, socket: zmq.Socket[bytes], on_held: Callable[[Outbox], None] | None = None
    ) -> None:
        self._socket = socket
        self._send = socket.send
        self._lock = threading.Lock()
        self._on_held = on_held  # without it nothing is ever held
        self._held: list[bytes] = []
        self._last_ns = 0

    def send(self, frame: bytes) -> None:
        """Send a message of one frame."""
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
                    self._let_go()
                self._transmit(frame)
            self._last_ns = now_ns

    def send_frames(self, parts: Sequence[Any]) -> None:
        """Send a message of several frames; all but the first go without a copy where large."""
        with self._lock:
            if self._held:
                self._let_go()
            self._transmit_frames(parts)

    def flush(self) -> None:
        """Send what is held."""
        with self._lock:
            if self._held and not self._socket.closed:
                self._let_go()

    def close(self, linger_s: float | None = None) -> None:
        """Close; what was sent is still delivered within `linger_s` (default: the socket's own)."""
        with self._lock:
            if self._held and linger_s != 0:
                self._let_go()
            self._socket.close(None if linger_s is None else int(linger_s * 1000))

    def _hold(self, frame: bytes) -> None:
        self._held.append(frame)
        if len(self._held) == 1 and self._on_held is not None:
            self._on_held(self)
        elif len(self._held) >= HOLD_MESSAGES:
            self._let_go()

    def _let_go(self) -> None:
        held, self._held = self._held, []
        self._transmit(held[0] if len(held) == 1 else frames.pack_batch(held))

    def _transmit(self, frame: bytes) -> None:
        self._send(frame)

    def _transmit_frames(self, parts: Sequence[Any]) -> None:
        self._socket.send_multipart(parts, copy=False)


class RelayOutbox(Outbox):
    """Delivers to a process of another host, through this host's gateway."""

    __slots__ = ("_relay",)

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        process: int,
        on_held: Callable[[Outbox], None] | None = None,
    ) -> None:
        super().__init__(socket, on_held)
        self._relay = frames.HEADER.pack(frames.RELAY, 0, 0, 0, 0, process, 0, 0)

    def _transmit(self, frame: bytes) -> None:
        super()._transmit_frames([self._relay, frame])

    def _transmit_frames(self, parts: Sequence[Any]) -> None:
        super()._transmit_frames([self._relay, *parts])


def open_outbox(
    context: zmq.Context[zmq.Socket[bytes]],
    run_dir: Path,
    own: int,
    process: int,
    on_held: Callable[[Outbox], None] | None = None,
) -> Outbox:
    """The way from the process `own` to another: direct on one host, else through the gateway."""
    host = own >> frames.HOST_SHIFT
    if process >> frames.HOST_SHIFT == host:
        return Outbox(wire.connect_outbox(context, run_dir, process), on_held)
    gateway = wire.connect_outbox(context, run_dir, wire.gateway_id(host))
    return RelayOutbox(gateway, process, on_held)


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
        self.held: deque[Outbox] = deque()  # outboxes that hold something
        self._held_news: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._flusher: threading.Thread | None = None
        self._thread = threading.Thread(target=self._receive, name="monarch-inbox", daemon=True)
        _untraced(self._thread)

    def start(self) -> None:
        """Begin to receive."""
        self._thread.start()
        self._flusher = threading.Thread(target=self._flush_late, name="monarch-flush", daemon=True)
        _untraced(self._flusher)
        self._flusher.start()

    def outbox(self, process: int) -> Outbox:
        """The outbox to a process, made at first use."""
        found = self._outboxes.get(process)
        return self._connect(process) if found is None else found

    def _connect(self, process: int) -> Outbox:
        with self._lock:
            found = self._outboxes.get(process)
            if found is None:
                found = open_outbox(
                    self._context, self.run_dir, self.process, process, self._on_held
                )
                self._outboxes[process] = found
            return found

    def flush(self) -> None:
        """Send everything that is held. Whoever is about to wait calls this (if `held`)."""
        while self.held:
            try:
                outbox = self.held.popleft()
            except IndexError:
                return  # another thread was faster
            outbox.flush()

    def _on_held(self, outbox: Outbox) -> None:
        self.held.append(outbox)
        self._held_news.put(True)

    def _flush_late(self) -> None:
        while self._held_news.get():
            time.sleep(HOLD_S)
            self.flush()

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
        self._held_news.put(False)
        if self._flusher is not None and self._flusher is not threading.current_thread():
            self._flusher.join()
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
                if header[0] == frames.BATCH:
                    for message in frames.unpack_batch(header, frame):
                        deliver(message)
                elif header[2]:
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


def _untraced(thread: threading.Thread) -> None:
    """A debugger must not stop this thread, or the rank stops answering."""
    vars(thread).update(pydev_do_not_trace=True, is_pydev_daemon_thread=True)
