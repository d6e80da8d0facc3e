"""A TCP forwarder in front of a worker: the network between two hosts, which can be cut."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

KEPT_BYTES = 4096


class Forwarder:
    """Forwards what connects at `port` to `to` on this host, by two threads for each connection.
    `said`: the first bytes of those who connect."""

    def __init__(self, to: int) -> None:
        self.to = to
        self.said: list[bytearray] = []
        self._thawed = threading.Event()
        self._thawed.set()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._start(self._accept)

    def in_front_of(self, address: str) -> str:
        """Forward to what listens there; return the address to use instead."""
        self.to = int(address.rpartition(":")[2])
        return f"tcp://127.0.0.1:{self.port}"

    def freeze(self) -> None:
        """Carry nothing from now on, and say so to nobody, as when a cable is pulled."""
        self._thawed.clear()

    def thaw(self) -> None:
        self._thawed.set()

    def reset(self) -> None:
        """Break all connections; others can be made at once."""
        with self._lock:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.thaw()
        while self._threads:
            self.reset()
            self._threads.pop().join()

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                come, _ = self._listener.accept()
                self._start(self._forward, come)

    def _forward(self, come: socket.socket) -> None:
        self._thawed.wait()
        with contextlib.ExitStack() as opened:
            opened.enter_context(come)
            try:
                go = opened.enter_context(socket.create_connection(("127.0.0.1", self.to)))
            except OSError:  # nobody listens there any more
                return
            with self._lock:
                self._open |= {come, go}
            back = threading.Thread(target=self._carry, args=(go, come), daemon=True)
            back.start()
            said = bytearray()
            self.said.append(said)
            self._carry(come, go, said)
            back.join()
            with self._lock:
                self._open -= {come, go}

    def _carry(self, come: socket.socket, go: socket.socket, said: bytearray | None = None) -> None:
        with contextlib.suppress(OSError):
            while data := come.recv(1 << 16):
                if said is not None and len(said) < KEPT_BYTES:
                    said += data[:KEPT_BYTES]
                self._thawed.wait()
                go.sendall(data)
        for each in (come, go):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def forwarder(to: int) -> Iterator[Forwarder]:
    """Have one until the end of the block."""
    made = Forwarder(to)
    try:
        yield made
    finally:
        made.close()
