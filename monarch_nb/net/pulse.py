"""The pulse of one peer: a link that carries heartbeats only, and word of when it breaks.

The peer's answer comes from libzmq's own thread, so a peer that holds the GIL for minutes has a
pulse; a stopped or frozen one, or one behind a cut link, has none. A link that breaks says *lost*
at once, also when the peer just ended: what that means is decided elsewhere, with its exit at hand.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

import zmq
from zmq.utils.monitor import parse_monitor_message

from monarch_nb.net import wire

_UP: Final = int(zmq.Event.HANDSHAKE_SUCCEEDED)  # a stopped peer's kernel still accepts connections
_DOWN: Final = int(zmq.Event.DISCONNECTED)


class Pulse:
    """Watches one process. `fileno` becomes readable when `read` may have something to say."""

    def __init__(
        self,
        context: wire.Context,
        run_dir: Path,
        process: int,
        interval_s: float,
        timeout_s: float,
    ) -> None:
        self._up = False
        monitored = _Monitored(context)
        stand_in = cast("wire.Context", monitored)
        self._socket = wire.connect_pulse(stand_in, run_dir, process, interval_s, timeout_s)
        self._monitor = monitored.monitor

    def fileno(self) -> int:
        """Return what to poll. It is edge-triggered, and silent until `read` was called once."""
        return int(self._monitor.fd)

    def read(self) -> list[bool]:
        """Return what happened since the last call: True for heard, False for lost, in turns."""
        changes = []
        while self._monitor.poll(0):
            event = parse_monitor_message(self._monitor.recv_multipart())["event"]
            if (event == _UP) != self._up:  # an attempt to connect that fails is no news
                self._up = not self._up
                changes.append(self._up)
        return changes

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(0)


class _Monitored:
    """Stands in for a context: its socket is monitored before it connects, so no event is lost."""

    def __init__(self, context: wire.Context) -> None:
        self._context = context

    def socket(self, kind: int) -> zmq.Socket[bytes]:
        made = self._context.socket(kind)
        self.monitor = made.get_monitor_socket(_UP | _DOWN)
        self.monitor.linger = 0
        return made


class PulseWatch:
    """A pulse that is watched by a thread of its own.

    `judge(up)` is called in that thread with every change, and with None when the time is over
    that it returned last: seconds until it wants to be asked again, or None.
    """

    def __init__(
        self, make: Callable[[], Pulse], judge: Callable[[bool | None], float | None]
    ) -> None:
        self._make = make
        self._judge = judge
        self._ending = os.eventfd(0)
        self._closing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="monarch-pulse", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching, from any thread but that one."""
        with self._closing:
            if self._thread.is_alive():
                os.eventfd_write(self._ending, 1)
                self._thread.join()
                os.close(self._ending)

    def _run(self) -> None:
        pulse = self._make()  # sockets belong to the thread that uses them
        try:
            self._watch(pulse)
        finally:
            pulse.close()

    def _watch(self, pulse: Pulse) -> None:
        poll = select.poll()
        for fd in (pulse.fileno(), self._ending):
            poll.register(fd, select.POLLIN)
        wait_s: float | None = None
        while True:
            for up in pulse.read():
                wait_s = self._judge(up)
            ready = poll.poll(None if wait_s is None else wait_s * 1000)
            if any(fd == self._ending for fd, _ in ready):
                return
            if not ready:
                wait_s = self._judge(None)
