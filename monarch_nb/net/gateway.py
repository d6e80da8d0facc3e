"""Relays messages between the unix sockets of this host and one TCP link to each other host.

Rules: every TCP link is CURVE on both ends, and the listening end lets in only keys of its
allow-list; a stranger's bytes never get past libzmq. Nothing is decoded but the relay header. Each
host has a second link that carries heartbeats only, so that large frames never look like silence. A
link that breaks or is silent for `timeout_s` is broken for good: what was in flight is lost, and
`on_lost` is called so that the callers are told. Whatever comes, the thread goes on: what makes no
sense is dropped and counted, and an error of ours costs that one message.

A relayed message is a relay header (`port` is the destination process) followed by the message's
own frames.
"""

from __future__ import annotations

import json
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

from monarch_nb.core.wire import frames
from monarch_nb.core.wire.messages import codec
from monarch_nb.errors import ProtocolError, RemoteProtocolError
from monarch_nb.net import pieces, wire
from monarch_nb.net.keys import KeyPair
from monarch_nb.net.loop import Loop
from monarch_nb.net.stream_inbox import StreamInbox

_HELLO: Final = struct.Struct("<4sHHQ")  # magic, version, host number, controller
_MAGIC: Final = b"MNB1"
_PULSE: Final = b"pulse of "
VERSION: Final = 1
_REFUSED: Final = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_EVENTS: Final = _REFUSED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
_RETRY_MS: Final = 50
_TRIES: Final = 3  # of a handshake: one that is not answered in time may be that of a busy host
Socket = zmq.Socket[bytes]
Record = dict[str, Any]
Frames = Sequence[zmq.Frame | frames.Buffer]


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
        self._malformed = 0  # of links
        self._joiner = pieces.Joiner()
        self._on_hello = on_hello
        self._on_welcome = on_welcome
        self._on_lost = on_lost
        self._timing = (interval_s, timeout_s)
        self._context = wire.new_context(io_threads=2)
        self._loop = Loop(self._do_all)  # what comes from processes of this host
        self._inbox = self._new_inbox()
        self._todo_lock = threading.Lock()
        self._todo: list[Callable[[], None]] = []
        self._local: dict[int, Socket] = {}
        self._postponed: dict[int, list[Frames]] = {}  # by process, until an outbox can be made
        self._dialled: dict[int, _Dialled] = {}
        self._poller = zmq.Poller()
        self._handlers: dict[object, Callable[[], None]] = {}
        self._server: Socket | None = None
        self._client: bytes | None = None  # identity of who was let in
        self._client_hello = b""
        self._client_links: set[int] = set()  # descriptors of its connections
        self._auth: ThreadAuthenticator | None = None
        self._over = False
        self._poller.register(self._loop.fileno(), zmq.POLLIN)
        self._handlers[self._loop.fileno()] = lambda: self._loop.turn(0)
        self._thread = threading.Thread(target=self._run, name="monarch-gateway", daemon=True)

    @property
    def malformed(self) -> int:
        """How many messages made no sense."""
        return self._malformed + self._inbox.malformed

    def start(self) -> None:
        self._thread.start()

    def listen(
        self, address: str, keys: KeyPair, allowed: frozenset[bytes], *, anywhere: bool = False
    ) -> str:
        """Accept one controller at a time; return the address with its port. Before `start`.

        `anywhere`: the address may mean every interface.
        """
        self._auth = ThreadAuthenticator(self._context)
        self._auth.start()
        self._auth.configure_curve_callback(
            wire.ZAP_DOMAIN, credentials_provider=_AllowList(allowed)
        )
        self._server = wire.bind_server(self._context, address, keys, anywhere=anywhere)
        self._watch(self._server, self._from_client)
        monitor = self._server.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._watch(monitor, lambda: self._client_event(monitor))
        return wire.listens_at(self._server)

    def dial(self, host: int, address: str, keys: KeyPair, server: bytes, hello: bytes) -> None:
        """Connect to another host's gateway, which is to have this number. Any thread."""

        def connect() -> None:
            data = wire.connect_server(self._context, address, keys, server)
            pulse = wire.connect_server(self._context, address, keys, server, self._timing)
            self._dialled[host] = _Dialled(*(self._new_link(host, each) for each in (data, pulse)))
            self._watch(data, lambda: self._from_host(host))
            data.send(hello)
            pulse.send(_PULSE + hello)

        self._do(connect)

    def _new_link(self, host: int, socket: Socket) -> _Link:
        link = _Link(socket, socket.get_monitor_socket(_EVENTS))
        self._watch(link.monitor, lambda: self._host_event(host, link))
        return link

    def give_up(self, host: int, why: str) -> None:
        """Lose a host that was dialled, unless it has answered meanwhile. Any thread."""

        def unless_answered() -> None:
            if host in self._dialled and not self._dialled[host].has_answered:
                self.hang_up(host, why)

        self._do(unless_answered)

    def close(self) -> None:
        if self._over:
            return
        self._do(self._finish)
        if self._thread.is_alive():
            self._thread.join(2)
        if self._auth is not None:
            self._auth.stop()
        with self._todo_lock:
            self._over = True
            self._inbox.close()
            self._loop.close()
        self._context.destroy(0)
        for path in wire.socket_paths(self.run_dir, wire.gateway_id(self.host)):
            path.unlink(missing_ok=True)

    # the gateway's thread

    def _finish(self) -> None:
        self._over = True

    def _run(self) -> None:
        while not self._over:
            if self._postponed:
                self._deliver_postponed()
            for socket, _ in self._poller.poll(self._pause_ms()):
                handler = self._handlers.get(socket)
                if handler is not None:
                    self._handle(handler)
            if self._loop.pause_s() is not None:
                self._loop.turn(0)

    def _pause_ms(self) -> int | None:
        if self._postponed or self._loop.pause_s() is not None:
            return _RETRY_MS
        return None

    def _handle(self, handler: Callable[[], None]) -> None:
        try:
            handler()
        except ProtocolError as error:
            self._malformed += 1
            if self._malformed == 1:
                sys.stderr.write(f"monarch_nb: a message to the gateway was dropped: {error}\n")
        # all ranks of this host depend on this thread
        except Exception:  # noqa: BLE001
            traceback.print_exc(file=sys.__stderr__)

    def _do(self, action: Callable[[], None]) -> None:
        with self._todo_lock:
            if not self._over:
                self._todo.append(action)
                self._loop.wake()

    def _watch(self, socket: Socket, handler: Callable[[], None]) -> None:
        self._poller.register(socket, zmq.POLLIN)
        self._handlers[socket] = handler

    def _unwatch(self, socket: Socket) -> None:
        if self._handlers.pop(socket, None) is not None:
            self._poller.unregister(socket)
        socket.close(0)

    def _new_inbox(self) -> StreamInbox:
        process = wire.gateway_id(self.host)
        return StreamInbox(self.run_dir, process, self._loop, self._from_here)

    def _from_here(self, message: frames.Message) -> None:
        if message.kind != frames.RELAY:
            raise RemoteProtocolError("a gateway takes only what is for processes of other hosts")
        if self._todo:  # first: who sends to a host has dialled it, but on another way to this
            self._do_all()
        bodies = [message.payload, *message.buffers]
        if message.port >> frames.HOST_SHIFT == self.host:
            self._deliver(message.port, bodies)
            return
        for piece in pieces.cut(message.port, bodies, self.host):
            self._forward(message.port, piece)

    def _do_all(self) -> None:
        with self._todo_lock:
            todo, self._todo = self._todo, []
        for action in todo:
            action()

    def _from_link(self, parts: list[zmq.Frame]) -> None:
        process = frames.parse_header(parts[0].bytes)[5]
        if process >> frames.HOST_SHIFT != self.host:
            self._forward(process, parts)
        elif (message := self._joiner.take(parts)) is not None:
            self._deliver(process, message)

    def _forward(self, process: int, parts: Frames) -> None:
        host = process >> frames.HOST_SHIFT
        if host in self._dialled:
            self._dialled[host].data.socket.send_multipart(parts, copy=False)
        elif self._server is not None and self._client is not None:
            self._server.send_multipart([self._client, *parts], copy=False)

    def _deliver(self, process: int, message: Frames) -> None:
        if process in self._postponed:  # in order
            self._postponed[process].append(message)
            return
        try:
            outbox = self._local_outbox(process)
        except zmq.ZMQError:  # strangers have every file that this process may open, for seconds
            self._postponed[process] = [message]
        else:
            outbox.send_multipart(message, copy=False)

    def _deliver_postponed(self) -> None:
        postponed, self._postponed = self._postponed, {}
        for process, messages in postponed.items():
            for message in messages:
                self._deliver(process, message)

    def _local_outbox(self, process: int) -> Socket:
        found = self._local.get(process)
        if found is None:
            found = self._local[process] = wire.connect_outbox(self._context, self.run_dir, process)
        return found

    def _from_host(self, host: int) -> None:
        dialled = self._dialled[host]
        parts = dialled.data.socket.recv_multipart(copy=False)
        if len(parts) == 1:  # the answer to the hello
            answer = codec.json_of(parts[0].bytes)
            if not dialled.has_answered:
                dialled.note_answer()
                self._on_welcome(host, answer)
        else:
            self._from_link(parts)

    def _from_client(self) -> None:
        assert self._server is not None
        parts = self._server.recv_multipart(copy=False)
        who, rest = parts[0].bytes, parts[1:]
        if len(rest) > 1:
            if who == self._client:
                self._from_link(rest)
        elif rest and rest[0].bytes == _PULSE + self._client_hello:
            self._client_links.add(int(rest[0].get(zmq.SRCFD)))
        elif rest and not rest[0].bytes.startswith(_PULSE):
            self._let_in(who, rest[0])

    def _let_in(self, who: bytes, hello: zmq.Frame) -> None:
        assert self._server is not None
        if self._client is not None:
            answer = {"error": "another client is attached to this host; stop it first"}
        else:
            answer = self._answer_to(hello.bytes)
            if "error" not in answer:
                self._client, self._client_hello = who, hello.bytes
                self._client_links = {int(hello.get(zmq.SRCFD))}
        self._server.send_multipart([who, json.dumps(answer).encode()])

    def _answer_to(self, hello: bytes) -> Record:
        try:
            return self._on_hello(hello)
        except Exception as error:  # noqa: BLE001  who waits there is told, and may try again
            return {"error": f"this host cannot be had: {type(error).__name__}: {error}"}

    def _client_event(self, monitor: Socket) -> None:
        event = recv_monitor_message(monitor)
        if self._client is not None and event["value"] in self._client_links:
            self._client = None
            self._client_links = set()
            for socket in self._local.values():
                socket.close(0)
            self._local.clear()
            self._postponed.clear()
            self._joiner.forget()
            self._on_lost(0, "the client has gone")

    def _host_event(self, host: int, link: _Link) -> None:
        event = recv_monitor_message(link.monitor)["event"]
        if host in self._dialled and (why := link.why_lost(event)) is not None:
            self.hang_up(host, why)

    def hang_up(self, host: int, why: str) -> None:
        """Lose a host that was dialled. The gateway's thread."""
        if (dialled := self._dialled.pop(host, None)) is None:
            return
        for link in (dialled.data, dialled.pulse):
            link.socket.disable_monitor()  # first: libzmq's thread waits for who reads its events
            self._unwatch(link.monitor)
            self._unwatch(link.socket)
        self._on_lost(host, why)

    def rename(self, host: int) -> None:
        """Take the number that the controller, which was let in, gives this host. The gateway's
        thread."""
        if host == self.host:  # that of the client before
            return
        self._malformed += self._inbox.malformed
        self._inbox.stop()  # nothing has failed, so what is there is ours no more
        self.host = host
        self._inbox = self._new_inbox()


class _Link:
    """One connection to a host that was dialled, and what its monitor has told of it."""

    def __init__(self, socket: Socket, monitor: Socket) -> None:
        self.socket = socket
        self.monitor = monitor
        self._is_up = False
        self._failures = 0

    def why_lost(self, event: int) -> str | None:
        """Take an event. None while there is hope: libzmq dials again until a link was up."""
        if event & _REFUSED:
            return "it does not let this key in"
        if event & zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._is_up = True
            return None
        if self._is_up:
            return "the link to the host broke"
        self._failures += 1
        if self._failures < _TRIES:
            return None
        return "what is there closes the connection: it has other keys, or is no worker of ours"


class _Dialled:
    def __init__(self, data: _Link, pulse: _Link) -> None:
        self.data = data
        self.pulse = pulse
        self.has_answered = False

    def note_answer(self) -> None:
        self.has_answered = True


class _AllowList:
    def __init__(self, allowed: frozenset[bytes]) -> None:
        self._allowed = allowed

    def callback(self, domain: str, key: bytes) -> bool:
        return domain == wire.ZAP_DOMAIN and key in self._allowed
