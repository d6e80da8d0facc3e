"""Connections that are carried from a port of one process to a port of another."""

import contextlib
import socket
import socketserver
import threading

import pytest

from monarch_nb import ActorError, this_host, this_proc
from monarch_nb.job import PortForwarder
from tests.support import eventually

pytestmark = pytest.mark.timeout(60)


class Service(socketserver.ThreadingTCPServer):
    """A server of this process, which answers with its name and what it was sent; one that does not
    read says its name for ever."""

    daemon_threads = True  # one that is not told of the end of its reader holds up no test

    def __init__(self, name: bytes = b"", reads: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.name, self.reads = name, reads
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        self.broken = threading.Event()
        self.port = self.server_address[1]
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join(5)


class Connection(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        service = self.server
        try:
            self.request.sendall(service.name)
            while not service.reads:
                self.request.sendall(service.name)
            while data := self.request.recv(1 << 16):
                self.request.sendall(data)
        except OSError:
            service.broken.set()


@pytest.fixture
def services():
    made = []

    def make(*args, **kwargs):
        made.append(Service(*args, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def procs(mesh_runtime):
    procs = this_host().spawn_procs({"gpus": 2})
    procs.initialized.get(60)
    return procs


@pytest.fixture
def forwarder(procs):
    forwarder = this_proc().spawn("forwarder", PortForwarder)
    yield forwarder
    forwarder.stop().get(20)


def free_ports(count):
    with_ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in with_ports]
    for each in with_ports:
        each.close()
    return ports


def answer_to(port, data):
    """What the service says to this, until it closes."""
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        sender = threading.Thread(target=_send_all, args=(connection, data))
        sender.start()
        found = bytearray()
        while piece := connection.recv(1 << 16):
            found += piece
        sender.join(10)
        return bytes(found)


def _send_all(connection, data):
    connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)


def fill(connection, at_most=64 << 20):
    """Send until nobody takes more."""
    connection.settimeout(1)
    taken = 0
    with contextlib.suppress(TimeoutError):
        while taken < at_most:
            taken += connection.send(bytes(1 << 20))
    assert taken < at_most


def test_bytes_go_both_ways_in_order_until_it_is_stopped(procs, forwarder, services):
    [port] = free_ports(1)
    service = services(b"hello ")
    place = procs.slice(gpus=0), service.port, procs.slice(gpus=1), f"127.0.0.1:{port}"
    forwarder.forward.call_one(*place).get(20)
    data = bytes(range(256)) * (1 << 16)  # 16 MiB: many windows
    assert answer_to(port, data) == b"hello " + data
    assert answer_to(port, b"") == b"hello "
    forwarder.stop().get(20)
    with pytest.raises(ConnectionRefusedError):
        answer_to(port, b"")


def test_each_rank_leads_to_the_rank_at_its_place(procs, forwarder, services):
    ports, there = free_ports(2), [services(b"0"), services(b"1")]
    numbers = [each.port for each in there]
    forwarder.forward.call_one(
        procs, lambda at: numbers[at["gpus"]], procs, lambda at: f"127.0.0.1:{ports[at['gpus']]}"
    ).get(20)
    assert [answer_to(port, b"!") for port in ports] == [b"0!", b"1!"]


@pytest.mark.parametrize("reads", [True, False])
def test_a_reader_that_is_gone_is_told_to_the_service(procs, forwarder, services, reads):
    [port] = free_ports(1)
    service = services(b"hello " * 100, reads=reads)
    forwarder.forward.call_one(
        procs.slice(gpus=0), service.port, procs.slice(gpus=1), f"127.0.0.1:{port}"
    ).get(20)
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        fill(connection)  # the answer is not read, so all wait; then it breaks off
    eventually(service.broken.is_set, 10)


def test_who_does_not_read_holds_up_who_writes(procs, forwarder, services):
    [port] = free_ports(1)
    service = services(b"hello " * 100, reads=False)
    forwarder.forward.call_one(
        procs.slice(gpus=0), service.port, procs.slice(gpus=1), f"127.0.0.1:{port}"
    ).get(20)
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        fill(connection)


def test_what_cannot_be_forwarded_is_said_and_leaves_nobody_listening(procs, forwarder):
    one, two = procs.slice(gpus=0), free_ports(2)
    for given, said in [
        ((procs, 80, one, "127.0.0.1:1"), "the same shape"),
        ((one, 0, one, "127.0.0.1:1"), "from 1 to 65535, not 0"),
        ((one, 80, one, ".".join("0000") + ":6006"), "can be reached from other hosts"),
        ((one, 80, one, "6006"), "written as '127.0.0.1:6006', not '6006'"),
        ((procs, lambda at: 80 * at["gpus"], procs, "127.0.0.1:1"), "from 1 to 65535, not 0"),
    ]:
        with pytest.raises(ActorError, match=said):
            forwarder.forward.call_one(*given).get(20)
    with (
        socket.create_server(("127.0.0.1", two[1])),
        pytest.raises(ActorError, match="Address already in use"),
    ):
        addresses = [f"127.0.0.1:{port}" for port in two]
        forwarder.forward.call_one(procs, 80, procs, lambda at: addresses[at["gpus"]]).get(20)
    socket.create_server(("127.0.0.1", two[0])).close()
