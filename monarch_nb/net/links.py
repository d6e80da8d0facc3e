"""A process's inbox thread and its outboxes: frames in, frames out, nothing decided here.

Rule: the inbox thread reads headers and hands messages to one callable, which must return at once.
It waits on everything that can come: streams of the processes of this host, the queue of its agent
and gateway, and its own outboxes that wait to be written.
"""

from __future__ import annotations

import functools
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import zmq

from monarch_nb.core.casting import Cast
from monarch_nb.core.wire import frames
from monarch_nb.errors import ProtocolError
from monarch_nb.net import wire
from monarch_nb.net.loop import Loop
from monarch_nb.net.outbox import (
    Outbox,
    Relay,
    RelayOutbox,
    StreamOutbox,
    StreamRelay,
    open_queue,
)
from monarch_nb.net.private import check_private
from monarch_nb.net.pulse import Pulse, PulseWatch
from monarch_nb.net.stream_inbox import StreamInbox
from monarch_nb.net.streams import Stream
from monarch_nb.net.threads import helper_thread

DETACH_BYTES: Final = 1 << 16  # a payload of this size travels as a buffer, without a copy
HOLD_S: Final = 0.001
TURN_S: Final = 0.002  # of the queue, while streams have something too


class Links:
    """The sockets of one process on one host: one inbox, an outbox for each peer it has talked to.

    `deliver` is called in the inbox thread with each message.
    """

    def __init__(
        self, run_dir: Path, process: int, deliver: Callable[[frames.Message], None]
    ) -> None:
        check_private(run_dir)  # before anything is opened
        self.run_dir = run_dir
        self.process = process
        self.held: deque[Outbox] = deque()  # outboxes that hold something
        self.forked = False  # this process is a fork: it has no part in the mesh
        self._context = wire.new_context()
        self._loop = Loop(self._read_queue)
        self._streams = StreamInbox(run_dir, process, self._loop, deliver)
        self._inbox = wire.bind_inbox(self._context, run_dir, process)
        self._relay: Relay | None = None
        self._outboxes: dict[int, Outbox] = {}
        self._lock = threading.Lock()
        self._flushing = threading.RLock()  # an interrupt may send while its thread flushes
        self._closing = False
        self._malformed = 0  # of the queue
        self._watches: list[PulseWatch] = []
        self._held_queue: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._is_flush_due = False
        _all.add(self)
        self._loop.when_readable(int(self._inbox.fd), self._read_queue)
        self._threads = [
            helper_thread(self._receive, "monarch-inbox"),
            helper_thread(self._flush_late, "monarch-flush"),
        ]

    @property
    def malformed(self) -> int:
        """How many messages made no sense."""
        return self._malformed + self._streams.malformed

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def is_receiving(self) -> bool:
        """Tell whether this is the thread that receives, which must not wait for an answer."""
        return threading.current_thread() is self._threads[0]

    def outbox(self, process: int) -> Outbox:
        """Return the outbox to a process, made at first use."""
        found = self._outboxes.get(process)
        return self._connect(process) if found is None else found

    def _connect(self, process: int) -> Outbox:
        with self._lock:
            found = self._outboxes.get(process)
            if found is None:
                found = self._outboxes[process] = self._open(process)
            return found

    def _open(self, process: int) -> Outbox:
        is_here = process >> frames.HOST_SHIFT == self.process >> frames.HOST_SHIFT
        if not is_here or frames.is_gateway(process):
            return RelayOutbox(self._way_out(), process, self._on_held)
        if process & frames.SERVICE_BIT:
            return open_queue(self._context, self.run_dir, process, self._on_held)
        return StreamOutbox(Stream(self.run_dir, process, self._loop), self._on_held)

    def _way_out(self) -> Relay:
        # under the lock
        if self._relay is None:
            self._relay = StreamRelay(self.run_dir, self.process, self._loop)
        return self._relay

    @property
    def loop(self) -> Loop:
        """The loop of the inbox thread."""
        return self._loop

    def relay_through(self, relay: Relay) -> None:
        """Reach other hosts this way from now on, which no process of theirs was before."""
        with self._lock:
            self._relay = relay

    def take(self, parts: Sequence[frames.Buffer]) -> None:
        """Receive a message that has come another way than by a socket of this process. The inbox
        thread. Raises `RemoteProtocolError`."""
        for message in frames.open_frames(parts):
            self._streams.deliver(message)

    def flush(self) -> None:
        """Send everything that is held. Whoever is about to wait calls this (if `held`)."""
        with self._flushing:
            while self.held:
                self.held.popleft().flush()

    def cast(self, cast: Cast) -> None:
        """Send a message to many processes of other hosts, behind all that was sent to them."""
        self.flush()
        with self._lock:
            relay = self._way_out()
        relay.cast(cast)

    def _on_held(self, outbox: Outbox) -> None:
        self.held.append(outbox)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._held_queue.put(True)

    def _flush_late(self) -> None:
        while self._held_queue.get() and not self._closing:
            time.sleep(HOLD_S)
            self._is_flush_due = False
            self.flush()

    @property
    def closed(self) -> bool:
        return self._closing

    def knows(self, process: int) -> bool:
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
        make = functools.partial(Pulse, self._context, self.run_dir, process, interval_s, timeout_s)
        watch = PulseWatch(make, judge)
        self._watches.append(watch)
        return watch

    def close(self, linger_s: float = 0.5) -> None:
        """Stop receiving, deliver what was sent (at most `linger_s`), close every socket.

        Does nothing in a forked child: the sockets are the parent's.
        """
        if self._closing or self.forked:
            return
        self._closing = True
        self._loop.wake()
        self._held_queue.put(False)
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join()
        for watch in self._watches:
            watch.close()
        with self._lock:
            for outbox in self._outboxes.values():
                outbox.close(linger_s)
            self._outboxes.clear()
            if self._relay is not None:
                self._relay.close(linger_s)
        self._inbox.close(0)
        wire.end_context(self._context)
        self._streams.close()
        self._loop.close()
        for path in wire.socket_paths(self.run_dir, self.process):
            path.unlink(missing_ok=True)

    def sever(self) -> None:
        """Let go of the parent's sockets in a forked child, which has none of the threads."""
        self.forked = True
        for outbox in list(self._outboxes.values()):
            outbox.sever()
        if self._relay is not None:
            self._relay.sever()
        self._streams.close()
        self._loop.close()

    # the inbox thread

    def _receive(self) -> None:
        turn = self._loop.turn
        self._read_queue()
        while not self._closing:
            turn()

    def _read_queue(self) -> None:
        # what the agent and the gateway have sent, a turn of it: a flood of a rank's output, which
        # goes on as fast as it is taken, must not keep out what the ranks themselves send
        until = time.monotonic() + TURN_S
        while int(self._inbox.events) & zmq.POLLIN:
            try:
                for message in frames.open_parts(self._inbox.recv_multipart(copy=False)):
                    self._streams.deliver(message)
            except ProtocolError:
                self._malformed += 1
            if time.monotonic() > until:
                self._loop.wake()  # the queue's descriptor tells of news only once
                return


_all: weakref.WeakSet[Links] = weakref.WeakSet()


def _sever_all() -> None:
    for links in list(_all):
        if not links.closed:
            links.sever()


os.register_at_fork(after_in_child=_sever_all)
