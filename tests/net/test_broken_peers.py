"""Peers that were let in and then send what makes no sense: it is dropped, and nobody ends."""

import json
import struct

import pytest
import zmq
from zmq.auth.thread import ThreadAuthenticator

from monarch_nb import attach_to_workers
from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import CONTROL, HEADER, HOST_SHIFT, RELAY
from monarch_nb.net import keys, pieces, wire
from monarch_nb.net.gateway import pack_hello
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
    """Frames that a gateway may get, for itself or for the agent behind it."""
    begins, goes_on = relay(agent, pieces.BEGINS), relay(agent, pieces.GOES_ON)
    return {
        "nothing": [b""],
        "no JSON": [b"\xff\xfe"],
        "JSON that is no object": [b"[1]"],
        "deep JSON": [b'{"a":' * 50_000],
        "two empty frames": [b"", b""],
        "a short header": [b"short", b"x"],
        "an unknown kind": [relay(agent, kind=99), b"x"],
        "an unknown piece": [relay(agent, 9), b"x"],
        "a piece of nothing": [goes_on, b"x"],
        "a begin without lengths": [begins, b""],
        "lengths that are cut": [begins, b"123"],
        "lengths that no memory has": [begins, struct.pack("<Q", 1 << 62)],
        "a frame that is no message": [relay(agent), b"x"],
        "no frame": [relay(agent)],
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


class RawClient:
    """Attaches to a worker, and sends whatever it is told."""

    def __init__(self, address: str) -> None:
        pair = keys.identity()
        self._context = wire.new_context()
        self._link = wire.connect_server(self._context, address, pair, pair.public)
        self.send(pack_hello(HOST, CLIENT))
        [answer] = self.receive(30)
        self.agent = json.loads(answer)["agent"]

    def send(self, *parts: bytes) -> None:
        self._link.send_multipart(parts)

    def receive(self, within_s: float) -> list[bytes]:
        assert self._link.poll(within_s * 1000), "nobody answers"
        return self._link.recv_multipart()

    def hello(self, port: int) -> int:
        """Ask the agent; the number of its process."""
        self.send(relay(self.agent), control('{"verb": "hello"}', reply=port))
        while True:
            _, *message = self.receive(20)
            if message and (found := frames.parse(message)).port == port:
                return json.loads(bytes(found.payload))["pid"]

    def close(self) -> None:
        self._context.destroy(0)


@pytest.mark.slow
def test_a_client_that_makes_no_sense_ends_nobody(workers):
    [address], [process] = workers(1)
    client = RawClient(address)
    try:
        agent = client.hello(300)
        for port, (what, parts) in enumerate(noise(client.agent).items(), 301):
            client.send(*parts)
            assert client.hello(port) == agent, what
    finally:
        client.close()
    assert agent in descendants(process.pid)


class RawWorker:
    """A worker that answers the hello, and then sends whatever it is told."""

    def __init__(self) -> None:
        pair = keys.identity()
        self._context = wire.new_context()
        self._auth = ThreadAuthenticator(self._context)
        self._auth.start()
        self._auth.configure_curve(domain="*", location=zmq.auth.CURVE_ALLOW_ANY)
        self._link = wire.bind_server(self._context, "tcp://127.0.0.1:*", pair)
        self.address = self._link.get_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def answer(self, *parts: bytes) -> None:
        """Let the client in, or whatever these say."""
        while True:
            assert self._link.poll(20_000)
            who, hello = self._link.recv_multipart()
            if not hello.startswith(b"pulse"):
                break
        self.who = who
        self.send(*parts)

    def send(self, *parts: bytes) -> None:
        self._link.send_multipart([self.who, *parts])

    def close(self) -> None:
        self._auth.stop()
        self._context.destroy(0)


@pytest.fixture
def raw_worker(home):
    made = RawWorker()
    yield made
    made.close()


@pytest.mark.slow
def test_a_host_that_makes_no_sense_does_not_end_the_client_s_others(workers, raw_worker):
    broken = attach_to_workers(workers=[raw_worker.address])
    raw_worker.answer(b'{"ok": true}')
    assert broken.initialized.get(20)
    for parts in noise(CLIENT).values():
        raw_worker.send(*parts)
    [address], _ = workers(1)
    actors = attach_to_workers(workers=[address]).spawn_procs().spawn("where", Where)
    assert actors.where.call_one().get(60) == 1


def test_a_host_whose_first_word_makes_no_sense_is_no_host(raw_worker, attach_within):
    attach_within(1.0)
    hosts = attach_to_workers(workers=[raw_worker.address])
    raw_worker.answer(b"\xff")
    with pytest.raises(RuntimeError, match="attach failed"):
        hosts.initialized.get(20)
