"""How hosts come to share a secret: one question and one answer over CURVE, which proves who both
are.

The end that is dialled lets in only the keys of its allow-list; a stranger's bytes never get past
libzmq. Either a controller dials a host (`Join`), or a host the head of its job (`Offer`). Question
and answer are JSON, and with them comes the secret of the session, over which everything else goes
(`link.py`).

A ticket is a secret: it travels by standard input, in a private file, or as a mounted secret, never
in a command line or in the environment.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

from monarch_nb.core.wire.messages import codec
from monarch_nb.core.wire.messages.codec import Done, Refused, Request
from monarch_nb.core.wire.messages.hosts import PROTOCOL, Join, Joined, LetGo, Offer, Taken
from monarch_nb.errors import AuthError, LaunchError, ProtocolError, RemoteProtocolError
from monarch_nb.net import wire
from monarch_nb.net.keys import KeyPair
from monarch_nb.net.private import read_private
from monarch_nb.net.threads import helper_thread

_REFUSED: Final = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_EVENTS: Final = _REFUSED | zmq.EVENT_DISCONNECTED
_TRIES: Final = 3  # of a handshake: one that is not answered in time may be that of a busy host
_LOOK_S: Final = 0.5
OTHER_KEYS: Final = (
    "what is there closes the connection: it has other keys, or is no worker of ours"
)
_ANOTHER_PROTOCOL: Final = (
    "who asks speaks protocol {}, who is asked {}: install one version of monarch_nb on both"
)
Socket = zmq.Socket[bytes]
_Dial = Callable[[], tuple[Socket, Socket]]
A = TypeVar("A")


class Ticket(NamedTuple):
    """Lets a host join a job. `job` names it, `addresses` are all at which the head may be
    reached, the best first, `head` is its public key. `public` and `secret` are the pair with which
    hosts of this job join, `env` is to be set there."""

    job: str
    addresses: list[str]
    head: str
    public: str
    secret: str
    env: dict[str, str]

    @property
    def keys(self) -> KeyPair:
        return KeyPair(self.public.encode(), self.secret.encode())

    def to_line(self) -> bytes:
        return json.dumps(self._asdict()).encode() + b"\n"

    @staticmethod
    def from_line(line: bytes) -> Ticket:
        """Read a ticket. Raises `AuthError` for what is none, without showing any of it."""
        try:
            ticket = codec.decode(Ticket, codec.json_of(line))
        except ProtocolError:
            ticket = None
        if ticket is None or not f"{ticket.head}{ticket.public}{ticket.secret}".isascii():
            raise AuthError("this is no ticket of a monarch_nb job")
        return ticket

    @staticmethod
    def from_file(path: Path) -> Ticket:
        """Read a ticket from a file that nobody else can read. Raises `AuthError`, `OSError`."""
        return Ticket.from_line(read_private(path).encode())


class Answer(NamedTuple):
    """Answers one kind of question: by `give(question)`, in the thread of the server."""

    kind: type[Join | Offer | LetGo]
    give: Callable[[Any], Joined | Taken | Done | Refused]


class AllowList:
    """The public keys that are let in. Any thread."""

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        self._keys = frozenset(keys)

    def add(self, key: bytes) -> None:
        self._keys |= {key}

    def remove(self, key: bytes) -> None:
        self._keys -= {key}

    def callback(self, domain: str, key: bytes) -> bool:
        """Say so to libzmq, whose name for this it is."""
        return domain == wire.ZAP_DOMAIN and key in self._keys


class JoinServer:
    """Answers who wants to join, in a thread of its own."""

    def __init__(self, run_dir: Path, keys: KeyPair, allowed: AllowList, *answers: Answer) -> None:
        self._answers = {codec.verb_of(each.kind): each for each in answers}
        self._context = wire.new_context()
        self._auth = ThreadAuthenticator(self._context)
        self._auth.start()
        self._auth.configure_curve_callback(wire.ZAP_DOMAIN, credentials_provider=allowed)
        self._server = wire.bind_joins(self._context, run_dir, keys)
        self._ending = os.eventfd(0)
        self._thread = helper_thread(self._run, "monarch-joins")
        self._thread.start()

    def close(self) -> None:
        os.eventfd_write(self._ending, 1)
        self._thread.join()
        os.close(self._ending)
        self._server.close(0)
        self._auth.stop()
        wire.end_context(self._context)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._server, zmq.POLLIN)
        poller.register(self._ending, zmq.POLLIN)
        while self._ending not in dict(poller.poll()):
            who, *parts = self._server.recv_multipart()
            if len(parts) == 1:
                answer = codec.encode_answer(self._answer_to(parts[0]))
                self._server.send_multipart([who, answer])

    def _answer_for(self, verb: object) -> Answer:
        found = self._answers.get(str(verb))
        if found is None:
            raise RemoteProtocolError(f"nobody here answers {verb!r:.80}")
        return found

    def _answer_to(self, question: bytes) -> Joined | Taken | Done | Refused:
        try:
            body = codec.json_of(question)
            found = self._answer_for(body.get("verb"))
            asked = codec.decode(found.kind, body)
            if isinstance(asked, Join | Offer) and asked.protocol != PROTOCOL:
                return Refused(_ANOTHER_PROTOCOL.format(asked.protocol, PROTOCOL))
            return found.give(asked)
        except ProtocolError as error:
            return Refused(f"this is no hello of monarch_nb: {error}")
        except Exception as error:  # noqa: BLE001  who waits there is told, and may try again
            return Refused(f"this host cannot be had: {type(error).__name__}: {error}")


class Joins:
    """Asks hosts to be let in, all at once, in one thread.

    `on_answer(host, answer)` and `on_failed(host, why)` are called in that thread, one of them once
    for each host, unless it was given up.
    """

    def __init__(
        self, on_answer: Callable[[int, Joined], None], on_failed: Callable[[int, str], None]
    ) -> None:
        self._on_answer = on_answer
        self._on_failed = on_failed
        self._context = wire.new_context()
        self._poller = zmq.Poller()
        self._asked: dict[int, _Asked] = {}
        self._todo: deque[Callable[[], None]] = deque()
        self._wakeup = os.eventfd(0)
        self._waking = threading.Lock()  # once closed, its number may be another file's
        self._is_over = False
        self._poller.register(self._wakeup, zmq.POLLIN)
        self._thread = helper_thread(self._run, "monarch-joining")
        self._thread.start()

    def ask(self, host: int, address: str, keys: KeyPair, server: bytes, question: Join) -> None:
        """Ask the host at an address, whose public key must be `server`. Any thread."""

        def dial() -> tuple[Socket, Socket]:
            socket, monitor = wire.connect_to_join(self._context, address, keys, server, _EVENTS)
            with suppress(zmq.Again):  # it was disconnected by now, as the monitor tells
                socket.send(codec.encode(question), zmq.NOBLOCK)
            return socket, monitor

        self._do(lambda: self._begin(host, dial, 1))

    def give_up(self, host: int) -> None:
        """Wait for this host no more. Any thread."""
        self._do(lambda: self._end(host))

    def close(self) -> None:
        self._do(self._finish)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _do(self, action: Callable[[], None]) -> None:
        with self._waking:
            if not self._is_over:
                self._todo.append(action)
                os.eventfd_write(self._wakeup, 1)

    def _finish(self) -> None:
        self._is_over = True

    def _run(self) -> None:
        while not self._is_over:
            ready = dict(self._poller.poll())
            for host, asked in list(self._asked.items()):
                if asked.socket in ready:
                    self._answered(host, asked)
                elif asked.monitor in ready:
                    self._disconnected(host, asked)
            if self._wakeup in ready:
                os.eventfd_read(self._wakeup)
            while self._todo:
                self._todo.popleft()()
        for host in list(self._asked):
            self._end(host)
        with self._waking:
            os.close(self._wakeup)
        wire.end_context(self._context)

    def _begin(self, host: int, dial: _Dial, tries: int) -> None:
        asked = self._asked[host] = _Asked(*dial(), dial, tries)
        for each in (asked.socket, asked.monitor):
            self._poller.register(each, zmq.POLLIN)

    def _disconnected(self, host: int, asked: _Asked) -> None:
        # libzmq itself dials nobody again whose first word makes no sense, and tells nobody so
        refused = recv_monitor_message(asked.monitor)["event"] & _REFUSED
        self._end(host)
        if refused:
            self._on_failed(host, "it does not let this key in")
        elif asked.tries < _TRIES:
            self._begin(host, asked.dial, asked.tries + 1)
        else:
            self._on_failed(host, OTHER_KEYS)

    def _answered(self, host: int, asked: _Asked) -> None:
        parts = asked.socket.recv_multipart()
        self._end(host)
        try:
            answer = codec.decode_answer(Joined, parts[0])
        except ProtocolError as error:
            answer = Refused(f"what is there is no worker of ours: {error}")
        if isinstance(answer, Refused):
            self._on_failed(host, answer.error)
        else:
            self._on_answer(host, answer)

    def _end(self, host: int) -> None:
        asked = self._asked.pop(host, None)
        if asked is None:
            return
        asked.socket.disable_monitor()  # first: libzmq's thread waits for who reads its events
        for each in (asked.monitor, asked.socket):
            self._poller.unregister(each)
            each.close(0)


class _Asked(NamedTuple):
    """A host that was asked over `socket`; `monitor` tells when that is disconnected. `dial` asks
    over a new pair of them; this one is the result of try number `tries`."""

    socket: Socket
    monitor: Socket
    dial: _Dial
    tries: int


def offer(ticket: Ticket, host: Offer, limit_s: float) -> Taken:
    """Join a job, at whichever of its addresses answers first. Blocking.

    Raises `LaunchError` where none does within `limit_s`, or the head refuses.
    """
    answer = offer_again(ticket, host, limit_s)
    if answer is None:
        raise LaunchError(
            f"nothing at {', '.join(ticket.addresses)} answered within {limit_s:g} s: either no "
            "network leads there from this host, or the job has all its hosts or is over"
        )
    if isinstance(answer, Refused):
        raise LaunchError(f"the job does not take this host: {answer.error}")
    return answer


def offer_again(ticket: Ticket, host: Offer, limit_s: float) -> Taken | Refused | None:
    """Do so; return what the head answers, or None where nobody has within `limit_s`."""
    return _ask(ticket.addresses, ticket.keys, ticket.head.encode(), host, Taken, limit_s)


def ask_to_let_go(
    addresses: Sequence[str], keys: KeyPair, asked: LetGo, limit_s: float
) -> Done | Refused | None:
    """Ask the head that has this key pair to leave its hosts; return its answer, or None where
    there is none within `limit_s`. Blocking."""
    return _ask(addresses, keys, keys.public, asked, Done, limit_s)


def _ask(
    addresses: Sequence[str],
    keys: KeyPair,
    head: bytes,
    question: Request[A],
    kind: type[A],
    limit_s: float,
) -> A | Refused | None:
    context = wire.new_context()
    asks = wire.connect_to_any(context, addresses, keys, head)
    deadline = time.monotonic() + limit_s
    try:
        _wait_for(asks, zmq.POLLOUT, deadline)
        asks.send(codec.encode(question), zmq.NOBLOCK)
        _wait_for(asks, zmq.POLLIN, deadline)
        return codec.decode_answer(kind, asks.recv(zmq.NOBLOCK))
    except zmq.Again:
        return None
    finally:
        wire.end_context(context)


def _wait_for(socket: Socket, event: int, deadline: float) -> None:
    # In short waits: a signal that came just before one is noticed after it
    while (left_s := deadline - time.monotonic()) > 0:
        if socket.poll(int(min(left_s, _LOOK_S) * 1000) + 1, event):
            return
