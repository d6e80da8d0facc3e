"""Relays messages between the unix sockets of this host and one TCP link to each other host.

Rules: every TCP link is CURVE on both ends, and the listening end lets in only keys of its
allow-list; a stranger's bytes never get past libzmq. Nothing is decoded but the relay header. Each
host has a second link that carries heartbeats only, so that large frames never look like silence. A
link that breaks or is silent for `timeout_s` is broken for good: what was in flight is lost, and
`on_lost` is called so that the callers are told.

A relayed message is a relay header (`port` is the destination process) followed by the message's
own frames.
"""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

from monarch_nb.core.wire import frames
from monarch_nb.net import wire
from monarch_nb.net.keys import KeyPair

_HELLO: Final = struct.Struct("<4sHHQ")  # magic, version, host number, controller
_MAGIC: Final = b"MNB1"
_PULSE: Final = b"pulse of "
VERSION: Final = 1
_REFUSED: Final = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
Socket = zmq.Socket[bytes]
Record = dict[str, Any]


def pack_hello(host: int, controller: int) -> bytes:
    """Return what a controller says first: a fixed record, read before anything else is."""
    return _HELLO.pack(_MAGIC, VERSION, host, controller)


def unpack_hello(data: bytes) -> tuple[int, int] | str:
    """Host number and controller, or what is wrong."""
    if len(data) != _HELLO.size:
        return "this is no hello of monarch_nb"
    magic, version, host, controller = _HELLO.unpack(data)
    if magic != _MAGIC or version != VERSION:
        return (
            f"protocol {magic!r} {version} meets {_MAGIC!r} {VERSION}: "
            "install one version on both hosts"
        )
    return host, controller


class Gateway:
    """Relays in a thread of its own, which calls the three callbacks.

    Args:
        host: the number of this host.
        on_hello: gets what a controller says first; its answer is sent back, and one without
            "error" lets the controller in.
        on_welcome: gets the number of a host that was dialled, and its answer.
        on_lost: gets the number of a host whose link broke (0: the controller's), and why.
    """

    def __init__(
        self,
        run_dir: Path,
        host: int,
        interval_s: float,
        timeout_s: float,
        *,
        on_lost: Callable[[int, str], None],
        on_hello: Callable[[bytes], Record] = lambda _: {"error": "nobody listens"},
        on_welcome: Callable[[int, Record], None] = lambda _host, _answer: None,
    ) -> None:
        self.run_dir = run_dir
        self.host = host
        self._on_hello = on_hello
        self._on_welcome = on_welcome
        self._on_lost = on_lost
        self._timing = (interval_s, timeout_s)
        self._context = wire.new_context(io_threads=2)
        self._inbox = wire.bind_inbox(self._context, run_dir, wire.gateway_id(host))
        self._wake = wire.connect_outbox(self._context, run_dir, wire.gateway_id(host))
        self._wake_lock = threading.Lock()
        self._todo: list[Callable[[], None]] = []
        self._local: dict[int, Socket] = {}
        self._dialled: dict[int, tuple[Socket, Socket]] = {}  # data, pulse
        self._poller = zmq.Poller()
        self._handlers: dict[object, Callable[[], None]] = {}
        self._server: Socket | None = None
        self._client: bytes | None = None  # identity of who was let in
        self._client_hello = b""
        self._client_links: set[int] = set()  # descriptors of its connections
        self._auth: ThreadAuthenticator | None = None
        self._over = False
        self._watch(self._inbox, self._from_here)
        self._thread = threading.Thread(target=self._run, name="monarch-gateway", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def listen(self, address: str, keys: KeyPair, allowed: frozenset[bytes]) -> str:
        """Accept one controller at a time; return the address with its port. Before `start`."""
        self._auth = ThreadAuthenticator(self._context)
        self._auth.start()
        self._auth.configure_curve_callback(
            wire.ZAP_DOMAIN, credentials_provider=_AllowList(allowed)
        )
        self._server = wire.bind_server(self._context, address, keys)
        self._watch(self._server, self._from_client)
        monitor = self._server.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._watch(monitor, lambda: self._client_event(monitor))
        return str(self._server.get_string(zmq.LAST_ENDPOINT)).rstrip("\0")

    def dial(self, host: int, address: str, keys: KeyPair, server: bytes, hello: bytes) -> None:
        """Connect to another host's gateway, which is to have this number. Any thread."""

        def connect() -> None:
            link = wire.connect_server(self._context, address, keys, server)
            pulse = wire.connect_server(self._context, address, keys, server, self._timing)
            self._dialled[host] = link, pulse
            self._watch(link, lambda: self._from_host(host, link))
            for each in (link, pulse):
                self._watch_end(host, each)
            link.send(hello)
            pulse.send(_PULSE + hello)

        self._do(connect)

    def _watch_end(self, host: int, link: Socket) -> None:
        monitor = link.get_monitor_socket(zmq.EVENT_DISCONNECTED | _REFUSED)
        self._watch(monitor, lambda: self._host_event(host, monitor))

    def hang_up(self, host: int) -> None:
        self._do(lambda: self._forget(host))

    def close(self) -> None:
        if self._over:
            return
        self._do(self._finish)
        if self._thread.is_alive():
            self._thread.join(2)
        if self._auth is not None:
            self._auth.stop()
        self._wake.close(0)
        self._context.destroy(0)
        for path in wire.socket_paths(self.run_dir, wire.gateway_id(self.host)):
            path.unlink(missing_ok=True)

    # the gateway's thread

    def _finish(self) -> None:
        self._over = True

    def _run(self) -> None:
        while not self._over:
            for socket, _ in self._poller.poll():
                handler = self._handlers.get(socket)
                if handler is not None:
                    handler()

    def _do(self, action: Callable[[], None]) -> None:
        with self._wake_lock:
            self._todo.append(action)
            self._wake.send(b"")

    def _watch(self, socket: Socket, handler: Callable[[], None]) -> None:
        self._poller.register(socket, zmq.POLLIN)
        self._handlers[socket] = handler

    def _unwatch(self, socket: Socket) -> None:
        if self._handlers.pop(socket, None) is not None:
            self._poller.unregister(socket)
        socket.close(0)

    def _from_here(self) -> None:
        parts = self._inbox.recv_multipart(copy=False)
        if self._todo:  # first: who sends to a host has dialled it, but on another way to this
            self._do_all()
        if len(parts) > 1:
            self._relay(parts)

    def _do_all(self) -> None:
        with self._wake_lock:
            todo, self._todo = self._todo, []
        for action in todo:
            action()

    def _relay(self, parts: list[zmq.Frame]) -> None:
        header = frames.parse_header(parts[0].bytes)
        process = header[5]
        host = process >> frames.HOST_SHIFT
        if host == self.host:
            self._local_outbox(process).send_multipart(parts[1:], copy=False)
        elif host in self._dialled:
            self._dialled[host][0].send_multipart(parts, copy=False)
        elif self._server is not None and self._client is not None:
            self._server.send_multipart([self._client, *parts], copy=False)

    def _local_outbox(self, process: int) -> Socket:
        found = self._local.get(process)
        if found is None:
            found = self._local[process] = wire.connect_outbox(self._context, self.run_dir, process)
        return found

    def _from_host(self, host: int, link: Socket) -> None:
        parts = link.recv_multipart(copy=False)
        if len(parts) == 1:  # the answer to the hello
            self._on_welcome(host, json.loads(parts[0].bytes))
        else:
            self._relay(parts)

    def _from_client(self) -> None:
        assert self._server is not None
        parts = self._server.recv_multipart(copy=False)
        who, rest = parts[0].bytes, parts[1:]
        if len(rest) > 1:
            if who == self._client:
                self._relay(rest)
        elif rest and rest[0].bytes == _PULSE + self._client_hello:
            self._client_links.add(int(rest[0].get(zmq.SRCFD)))
        elif rest and not rest[0].bytes.startswith(_PULSE):
            self._let_in(who, rest[0])

    def _let_in(self, who: bytes, hello: zmq.Frame) -> None:
        assert self._server is not None
        if self._client is not None:
            answer = {"error": "another client is attached to this host; stop it first"}
        else:
            answer = self._on_hello(hello.bytes)
            if "error" not in answer:
                self._client, self._client_hello = who, hello.bytes
                self._client_links = {int(hello.get(zmq.SRCFD))}
        self._server.send_multipart([who, json.dumps(answer).encode()])

    def _client_event(self, monitor: Socket) -> None:
        event = recv_monitor_message(monitor)
        if self._client is not None and event["value"] in self._client_links:
            self._client = None
            self._client_links = set()
            for socket in self._local.values():
                socket.close(0)
            self._local.clear()
            self._on_lost(0, "the client has gone")

    def _host_event(self, host: int, monitor: Socket) -> None:
        event = recv_monitor_message(monitor)["event"]
        if host in self._dialled:
            self._forget(host)
            self._unwatch(monitor)
            refused = "it does not let this key in" if event & _REFUSED else None
            self._on_lost(host, refused or "the link to the host broke")

    def _forget(self, host: int) -> None:
        for link in self._dialled.pop(host, ()):
            link.disable_monitor()
            self._unwatch(link)

    def rename(self, host: int) -> None:
        """Take the number that the controller, which was let in, gives this host. The gateway's
        thread."""
        self._unwatch(self._inbox)
        self.host = host
        self._inbox = wire.bind_inbox(self._context, self.run_dir, wire.gateway_id(host))
        self._watch(self._inbox, self._from_here)
        with self._wake_lock:
            self._wake.close(0)
            self._wake = wire.connect_outbox(self._context, self.run_dir, wire.gateway_id(host))


class _AllowList:
    def __init__(self, allowed: frozenset[bytes]) -> None:
        self._allowed = allowed

    def callback(self, domain: str, key: bytes) -> bool:
        return domain == wire.ZAP_DOMAIN and key in self._allowed
