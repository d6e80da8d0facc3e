"""Dialling a host at several addresses: which connection is used, and what a failure means."""

import socket

import pytest

from monarch_nb.net import wire
from monarch_nb.net.hosts.dialing import Connection, Failure, dial
from monarch_nb.net.hosts.handshake import Secret
from monarch_nb.net.hosts.listener import Listener
from monarch_nb.net.loop import LoopThread
from tests.net.forwarder import free_port
from tests.support import eventually


@pytest.fixture
def silent():
    """An address at which somebody listens who never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"


class Link:
    """In place of a link: keeps the connections that it is given."""

    received = 0

    def __init__(self) -> None:
        self.secret = Secret.new()
        self.connections: list[Connection] = []
        self.take_up = self.connections.append


@pytest.fixture
def link():
    found = Link()
    yield found
    for each in found.connections:
        each.socket.close()


@pytest.fixture
def addresses(link):
    """Four addresses at which the same host listens."""
    thread = LoopThread("host")
    sockets = [wire.listen_for_hosts("tcp://127.0.0.1:*") for _ in range(4)]
    listeners = [Listener(each, thread.loop, lambda _: link, lambda: None) for each in sockets]
    yield [wire.listens_at(each) for each in sockets]
    for each in listeners:
        thread.loop.call(each.stop)
    thread.close()


def test_a_host_goes_on_over_the_connection_that_was_chosen_and_no_other(link, addresses):
    for count in range(1, 11):
        found = dial(addresses, link.secret, 0, 5.0)
        assert isinstance(found, Connection)
        eventually(lambda count=count: len(link.connections) >= count)
        assert len(link.connections) == count
        there, here = link.connections[-1].socket, found.socket
        assert there.getpeername() == here.getsockname()
        here.close()


def test_nobody_at_one_address_says_nothing_of_the_others(silent):
    closed = f"tcp://127.0.0.1:{free_port()}"
    assert dial([closed, silent], Secret.new(), 0, 0.3) is Failure.UNREACHABLE


def test_the_address_that_led_there_decides(silent):
    closed = f"tcp://127.0.0.1:{free_port()}"
    assert dial([silent, closed], Secret.new(), 0, 0.3, known=closed) is Failure.REFUSED
    assert dial([silent, closed], Secret.new(), 0, 0.3, known=silent) is Failure.UNREACHABLE
