"""What a failure to reach a host means, where only some of its addresses lead there."""

import socket

import pytest

from monarch_nb.net.hosts.dialing import Failure, dial
from monarch_nb.net.hosts.handshake import Secret
from tests.net.forwarder import free_port


@pytest.fixture
def silent():
    """An address at which somebody listens who never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"


def test_nobody_at_one_address_says_nothing_of_the_others(silent):
    closed = f"tcp://127.0.0.1:{free_port()}"
    assert dial([closed, silent], Secret.new(), 0, 0.3) is Failure.UNREACHABLE


def test_the_address_that_led_there_decides(silent):
    closed = f"tcp://127.0.0.1:{free_port()}"
    assert dial([silent, closed], Secret.new(), 0, 0.3, known=closed) is Failure.REFUSED
    assert dial([silent, closed], Secret.new(), 0, 0.3, known=silent) is Failure.UNREACHABLE
