"""A process's inbox thread and its outboxes: frames in, frames out, nothing decided here.

Rule: the inbox thread reads headers and hands messages to one callable, which must return at once.
It waits on everything that can come: streams of the processes of this host, the queue of its agent
and gateway, and its own outboxes that wait to be written.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import select
import socket
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

import zmq

from monarch_nb.core.wire import frames
from monarch_nb.errors import ProtocolError
from monarch_nb.net import wire
from monarch_nb.net.keys import check_private
from monarch_nb.net.outbox import Outbox, open_outbox
from monarch_nb.net.pulse import Pulse, PulseWatch
from monarch_nb.net.streams import READ_BYTES, Stream, StreamReader
from monarch_nb.net.threads import helper_thread

DETACH_BYTES: Final = 1 << 16  # a payload of this size travels as a buffer, without a copy
HOLD_S: Final = 0.001
TURN_S: Final = 0.002  # of the queue, while streams have something too
RETRY_S: Final = 0.005  # a peer that is being forked listens within milliseconds
LATE_RETRY_S: Final = 0.05  # one that did not within `LATE_S` is being started
LATE_S: Final = 1.0


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
        self.malformed = 0
        self.held: deque[Outbox] = deque()  # outboxes that hold something
        self._deliver = deliver
        self.forked = False  # this process is a fork: it has no part in the mesh
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], object]] = {}
        self._writers: dict[int, Callable[[], None]] = {}
        self._retries: deque[Stream] = deque()
        self._retried_since = self._retry_at = 0.0
        self._context = wire.new_context()
        self._listener = wire.bind_stream(run_dir, process)
        self._inbox = wire.bind_inbox(self._context, run_dir, process)
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._peers: dict[int, socket.socket] = {}
        self._outboxes: dict[int, Outbox] = {}
        self._lock = threading.Lock()
        self._closing = False
        self._watches: list[PulseWatch] = []
        self._held_queue: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._is_flush_due = False
        _all.add(self)
        self._wait_for(self._listener.fileno(), self._accept)
        self._wait_for(int(self._inbox.fd), self._read_queue)
        self._wait_for(self._wakeup, self._woken)
        self._threads = [
            helper_thread(self._receive, "monarch-inbox"),
            helper_thread(self._flush_late, "monarch-flush"),
        ]

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
                found = self._outboxes[process] = open_outbox(
                    self._context, self.run_dir, self.process, process, self, self._on_held
                )
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
        os.eventfd_write(self._wakeup, 1)
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
        self._inbox.close(0)
        self._context.term()
        for each in (self._listener, *self._peers.values()):
            each.close()
        self._epoll.close()
        os.close(self._wakeup)
        for path in wire.socket_paths(self.run_dir, self.process):
            path.unlink(missing_ok=True)

    def sever(self) -> None:
        """Let go of the parent's sockets in a forked child, which has none of the threads."""
        self.forked = True
        for outbox in list(self._outboxes.values()):
            outbox.sever()
        for each in (self._listener, *self._peers.values()):
            each.close()
        self._epoll.close()
        os.close(self._wakeup)

    # for streams, any thread

    def retry(self, stream: Stream) -> None:
        self._retried_since, self._retry_at = time.monotonic(), 0.0
        self._retries.append(stream)
        os.eventfd_write(self._wakeup, 1)

    def when_writable(self, fd: int, action: Callable[[], None]) -> None:
        """Call `action` whenever the descriptor is writable."""
        self._writers[fd] = action
        self._epoll.register(fd, select.EPOLLOUT)

    def stop_writing(self, fd: int) -> None:
        """Stop doing so."""
        del self._writers[fd]
        self._epoll.unregister(fd)

    # the inbox thread

    def _wait_for(self, fd: int, handler: Callable[[], object]) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, select.EPOLLIN)

    def _receive(self) -> None:
        poll, handlers, writers = self._epoll.poll, self._handlers, self._writers
        self._read_queue()
        while not self._closing:
            events = poll(self._retry_pause() if self._retries else None)
            for fd, _ in events:
                try:
                    handler = handlers.get(fd) or writers.get(fd)  # no descriptor is in both
                    if handler is not None:
                        handler()
                # one bad message must not end the thread that all depend on
                except Exception:  # noqa: BLE001
                    traceback.print_exc(file=sys.__stderr__)
            if self._retries and time.monotonic() >= self._retry_at:
                self._try_again()

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wakeup)
        self._read_queue()

    def _try_again(self) -> None:
        for _ in range(len(self._retries)):  # others append meanwhile
            stream = self._retries.popleft()
            if not stream.reach():
                self._retries.append(stream)
        if (now := time.monotonic()) > self._retried_since + LATE_S:
            self._retry_at = now + LATE_RETRY_S

    def _retry_pause(self) -> float:
        late = time.monotonic() > self._retried_since + LATE_S
        return LATE_RETRY_S if late else RETRY_S

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            peer, _ = self._listener.accept()
            peer.setblocking(False)
            self._peers[peer.fileno()] = peer
            self._wait_for(peer.fileno(), functools.partial(self._read, peer, StreamReader()))

    def _read(self, peer: socket.socket, reader: StreamReader) -> None:
        # the stream of a peer that writes no messages is closed
        target = reader.target
        try:
            if target is None:
                data = peer.recv(READ_BYTES)
                count = len(data)
                found = reader.feed(data) if data else []
            else:
                count = peer.recv_into(target)
                found = reader.fill(count)
        except BlockingIOError:
            return
        except (OSError, ProtocolError) as error:
            self.malformed += isinstance(error, ProtocolError)
            count, found = 0, []
        if not count:
            self._drop_peer(peer)
        for message in found:
            self._deliver_one(message)

    def _drop_peer(self, peer: socket.socket) -> None:
        fd = peer.fileno()
        self._epoll.unregister(fd)
        del self._handlers[fd], self._peers[fd]
        peer.close()

    def _deliver_one(self, message: frames.Message) -> None:
        try:
            self._deliver(message)
        except ProtocolError:
            self.malformed += 1
        except Exception:  # noqa: BLE001  one bad message must not keep the others from arriving
            traceback.print_exc(file=sys.__stderr__)

    def _read_queue(self) -> None:
        # what the agent and the gateway have sent, a turn of it: a flood of a rank's output, which
        # goes on as fast as it is taken, must not keep out what the ranks themselves send
        until = time.monotonic() + TURN_S
        while int(self._inbox.events) & zmq.POLLIN:
            try:
                for message in frames.open_parts(self._inbox.recv_multipart(copy=False)):
                    self._deliver_one(message)
            except ProtocolError:
                self.malformed += 1
            if time.monotonic() > until:
                os.eventfd_write(self._wakeup, 1)  # the queue's descriptor tells of news only once
                return


_all: weakref.WeakSet[Links] = weakref.WeakSet()


def _sever_all() -> None:
    for links in list(_all):
        if not links.closed:
            links.sever()


os.register_at_fork(after_in_child=_sever_all)
