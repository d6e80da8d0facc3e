"""Peers that were let in and then send what makes no sense: it is dropped, and nobody ends."""

import functools
import json
import queue
import re
import struct

import pytest
import zmq
from zmq.auth.thread import ThreadAuthenticator

from monarch_nb import attach_to_workers
from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import CONTROL, HEADER, HOST_SHIFT, RELAY
from monarch_nb.core.wire.messages import codec
from monarch_nb.core.wire.messages.codec import Refused
from monarch_nb.core.wire.messages.hosts import PROTOCOL, Join, Joined
from monarch_nb.host.rundir import new_run_dir
from monarch_nb.host.versions import versions
from monarch_nb.net import keys, wire
from monarch_nb.net.hosts import dialing, pieces
from monarch_nb.net.hosts.handshake import Secret
from monarch_nb.net.hosts.listener import Listener
from monarch_nb.net.loop import LoopThread
from monarch_nb.net.streams import StreamReader
from tests.net.test_attach_failed import Where
from tests.support import descendants

HOST = 7
CLIENT = 1 << HOST_SHIFT | 5
DEEP = "[" * 900 + "]" * 900


def relay(process: int, tag: int = 0, source: int = 1, kind: int = RELAY) -> bytes:
    return HEADER.pack(kind, 0, 0, 0, tag, process, source, 0)


def control(text: str, reply: int = 0) -> bytes:
    return HEADER.pack(CONTROL, 0, 0, 0, 0, 0, CLIENT, reply) + text.encode()


def noise(agent: int) -> dict[str, list[bytes]]:
    """Frames of messages that a gateway may get, for itself or for the agent behind it."""
    begins, goes_on = relay(agent, pieces.BEGINS), relay(agent, pieces.GOES_ON)
    return {
        "a short header": [b"short", b"x"],
        "an unknown kind": [relay(agent, kind=99), b"x"],
        "an unknown piece": [relay(agent, 9), b"x"],
        "a piece of nothing": [goes_on, b"x"],
        "a begin without lengths": [begins, b""],
        "lengths that are cut": [begins, b"123"],
        "lengths that no memory has": [begins, struct.pack("<Q", 1 << 62)],
        "a frame that is no message": [relay(agent), b"x"],
        "a message to nobody": [relay(HOST << HOST_SHIFT | 99), control("{}")],
        "a message to a host that is not there": [relay(99 << HOST_SHIFT), control("{}")],
        "control that is deep": [relay(agent), control('{"verb":"hello","x":' + "[" * 50_000)],
        "a spawn that is deep": [
            relay(agent),
            control(
                '{"verb":"spawn","procs":[5],"config":{"a":' + DEEP + '},"bind":[' + DEEP + "]}"
            ),
        ],
        "infinite bytes": [relay(agent), control('{"verb":"taken","bytes":Infinity}')],
        "a period that is no number": [
            relay(agent),
            control('{"verb":"status","on":true,"period_s":NaN}'),
        ],
        "an endless grace": [relay(agent), control('{"verb":"stop_all","grace_s":Infinity}')],
        "a process that cannot be": [relay(agent), control('{"verb":"spawn","procs":[-1]}')],
        "an owner that cannot be": [
            relay(agent),
            control('{"verb":"spawn","procs":[6],"owner":1180591620717411303424}'),
        ],
    }


BODIES = {
    "nothing": b"",
    "no header": b"short",
    "an unknown kind": b"\x09" + bytes(16),
    "what was never sent is acknowledged": struct.pack("<BQQ", 1, 1, 99),
    "records are missing": struct.pack("<BQQ", 1, 99, 0),
}
"""Of records that end their connection, or say nothing."""
INSIDE = {
    "no message": b"x",
    "a frame that no memory has": b"\xff\xff\xff\xff",
    "a message that is cut": struct.pack("<I", 60) + relay(5),
    "no relay": struct.pack("<I", 36) + control("")[:36],
}
"""What a record may hold that makes no sense."""


def stream(parts: list[bytes]) -> bytes:
    """The frames of a message as they lie in a record, whatever their header says."""
    first, *rest = parts
    head = bytearray(first)
    if len(head) >= HEADER.size:
        struct.pack_into("<H", head, 2, max(0, len(rest) - 1))
    payload, *buffers = rest or [b""]
    whole = bytes(head) + payload
    found = struct.pack("<I", len(whole)) + whole
    return found + b"".join(struct.pack("<Q", len(each)) + each for each in buffers)


class RawEnd:
    """An end of a link that sends whatever it is told, in records of its own."""

    def __init__(self, connection: dialing.Connection) -> None:
        self._connection = connection
        self._number = connection.peer_received
        self.came = 0
        self._reader = StreamReader()
        connection.socket.setblocking(True)

    def send(self, inside: bytes) -> None:
        self._number += 1
        self.send_body(struct.pack("<BQQ", 1, self._number, self.came) + inside)

    def send_body(self, body: bytes) -> None:
        self._connection.socket.sendall(self._connection.sealer.seal(body))

    def receive(self, within_s: float) -> list[frames.Message]:
        """The pieces of the next record that has some."""
        self._connection.socket.settimeout(within_s)
        count = self._connection.socket.recv_into(self._connection.reader.room)
        assert count, "it was cut off"
        found = []
        for body in self._connection.reader.take(count):
            kind, number, _ = struct.unpack_from("<BQQ", body)
            if kind == 1:
                self.came = number
                # A body is good until the next record is opened, which may have come with it
                found += self._reader.feed(bytes(body[17:]))
        return found

    def close(self) -> None:
        self._connection.socket.close()


class RawClient:
    """Attaches to a worker, and sends whatever it is told."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._secret = Secret.new()
        joined = asked(address, Join(PROTOCOL, versions(), HOST, CLIENT, self._secret.to_text()))
        assert isinstance(joined, Joined)
        self.agent = joined.agent
        self.came = 0
        self.connect()

    def connect(self) -> None:
        found = dialing.dial([self._address], self._secret, self.came, 10.0)
        assert isinstance(found, dialing.Connection)
        self.end = RawEnd(found)

    def hello(self, port: int) -> int:
        """Ask the agent; the number of its process."""
        self.end.send(stream([relay(self.agent), control('{"verb": "hello"}', reply=port)]))
        while True:
            for piece in self.end.receive(20):
                self.came = self.end.came
                message = frames.parse([bytes(piece.payload), *map(bytes, piece.buffers)])
                if message.port == port:
                    return json.loads(bytes(message.payload))["pid"]

    def close(self) -> None:
        self.end.close()


@pytest.fixture
def client(workers):
    [address], [process] = workers(1)
    made = RawClient(address)
    yield made, process.pid
    made.close()


@pytest.mark.slow
def test_a_client_that_makes_no_sense_ends_nobody(client):
    client, pid = client
    agent = client.hello(300)
    nonsense = {what: stream(parts) for what, parts in noise(client.agent).items()} | INSIDE
    for port, (what, inside) in enumerate(nonsense.items(), 301):
        client.end.send(inside)
        assert client.hello(port) == agent, what
    assert agent in descendants(pid)


@pytest.mark.slow
@pytest.mark.parametrize("what", BODIES)
def test_a_record_that_makes_no_sense_costs_its_connection_and_no_more(client, what):
    client, pid = client
    agent = client.hello(300)
    client.end.send_body(BODIES[what])
    client.end.close()
    client.connect()
    assert client.hello(301) == agent
    assert agent in descendants(pid)


class RawWorker:
    """A worker that lets everybody in, and then sends whatever it is told."""

    def __init__(self, answer: bytes = b"") -> None:
        self._run_dir = new_run_dir()
        self._answer = answer
        self._auth_context = wire.new_context()
        self._auth = ThreadAuthenticator(self._auth_context)
        self._auth.start()
        self._auth.configure_curve(domain="*", location=zmq.auth.CURVE_ALLOW_ANY)
        self._server = wire.bind_joins(self._auth_context, self._run_dir.path, keys.identity())
        self._secret: Secret | None = None
        self._thread = LoopThread("raw-worker")
        listener = wire.listen_for_hosts("tcp://127.0.0.1:*")
        self.address = wire.listens_at(listener)
        joins = functools.partial(wire.connect_joins, self._run_dir.path)
        self._taken: queue.SimpleQueue[dialing.Connection] = queue.SimpleQueue()
        self._listener = Listener(listener, self._thread.loop, self._find, joins)
        self._end: RawEnd | None = None

    def answer(self, parts: bytes | None = None, **theirs: str) -> None:
        """Let the client in, as a host with these versions; or whatever `parts` say."""
        assert self._server.poll(20_000)
        who, question = self._server.recv_multipart()
        asked = codec.decode(Join, codec.json_of(question))
        self._secret = Secret.from_text(asked.secret)
        joined = Joined(HOST << HOST_SHIFT | 9, "raw", versions() | theirs, [])
        self._server.send_multipart([who, codec.encode_answer(joined) if parts is None else parts])

    def send(self, inside: bytes) -> None:
        if self._end is None:
            self._end = RawEnd(self._taken.get(timeout=20))
        self._end.send(inside)

    def close(self) -> None:
        self._thread.loop.call(self._listener.stop)
        self._thread.close()
        if self._end is not None:
            self._end.close()
        while not self._taken.empty():
            self._taken.get().socket.close()
        self._auth.stop()
        self._auth_context.destroy(0)
        self._run_dir.remove()

    def _find(self, session: bytes) -> object:
        assert self._secret is not None
        assert self._secret.session == session
        return _Link(self._secret, self._taken)


class _Link:
    """In place of a link: whoever takes the connection does with it as he likes."""

    received = 0

    def __init__(self, secret: Secret, taken: queue.SimpleQueue[dialing.Connection]) -> None:
        self.secret = secret
        self.take_up = taken.put


@pytest.fixture
def raw_worker(home):
    made = RawWorker()
    yield made
    made.close()


@pytest.mark.slow
def test_a_host_that_makes_no_sense_does_not_end_the_client_s_others(workers, raw_worker):
    broken = attach_to_workers(workers=[raw_worker.address])
    raw_worker.answer()
    assert broken.initialized.get(20)
    for inside in [*map(stream, noise(CLIENT).values()), *INSIDE.values()]:
        raw_worker.send(inside)
    [address], _ = workers(1)
    actors = attach_to_workers(workers=[address]).spawn_procs().spawn("where", Where)
    assert actors.where.call_one().get(60) == 1


@pytest.mark.parametrize("word", [b"\xff", b"[1]", b"{}", b'{"ok": true}', b'{"a":' * 5_000])
def test_a_host_whose_first_word_makes_no_sense_is_no_host(raw_worker, attach_within, word):
    attach_within(1.0)
    hosts = attach_to_workers(workers=[raw_worker.address])
    raw_worker.answer(word)
    with pytest.raises(RuntimeError, match="attach failed"):
        hosts.initialized.get(20)


@pytest.mark.slow
@pytest.mark.parametrize("word", [b"", b"\xff\xfe", b"[1]", b"{}", b'{"a":' * 5_000])
def test_a_client_whose_first_word_makes_no_sense_is_told_so(workers, word):
    [address], _ = workers(1)
    pair = keys.identity()
    context = wire.new_context()
    asks, _ = wire.connect_to_join(context, address, pair, pair.public, 0)
    try:
        asks.send(word)
        assert asks.poll(10_000)
        assert "no hello of monarch_nb" in json.loads(asks.recv())["error"]
    finally:
        context.destroy(0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "what, theirs, words",
    [
        ("Python", "3.10.1", r"Python \S+ is installed there, 3.10.1 here: install the same"),
        ("monarch_nb", "0.0.1", r"monarch_nb \S+ is installed there, 0.0.1 here: install the same"),
        ("torch", "1.0", None),
    ],
)
def test_a_client_of_another_version_is_told_what_differs(workers, what, theirs, words):
    [address], _ = workers(1)
    answer = asked(address, Join(PROTOCOL, versions() | {what: theirs}, HOST, CLIENT, "ab" * 48))
    if words is None:
        assert isinstance(answer, Joined)
    else:
        assert isinstance(answer, Refused)
        assert re.search(words, answer.error)


def test_a_client_of_another_protocol_is_told_so(workers):
    [address], _ = workers(1)
    answer = asked(address, Join(99, versions(), HOST, CLIENT, "ab" * 48))
    assert isinstance(answer, Refused)
    assert "speaks protocol 99" in answer.error


def test_a_host_with_another_torch_is_attached_and_the_difference_said(raw_worker, caplog):
    hosts = attach_to_workers(workers=[raw_worker.address])
    raw_worker.answer(torch="1.0")
    assert hosts.initialized.get(20)
    assert f"{raw_worker.address}: torch 1.0 is installed there" in caplog.text


def asked(address: str, question: Join) -> Joined | Refused:
    pair = keys.identity()
    context = wire.new_context()
    try:
        asks, _ = wire.connect_to_join(context, address, pair, pair.public, 0)
        asks.send(codec.encode(question))
        assert asks.poll(30_000), "nobody answers"
        return codec.decode_answer(Joined, asks.recv())
    finally:
        context.destroy(0)
