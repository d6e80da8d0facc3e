"""An offered host listens on one interface, and lets nobody in when its allow-list is not there."""

import os

import pytest
import zmq
from zmq.auth.thread import ThreadAuthenticator

from monarch_nb.errors import LaunchError
from monarch_nb.net import keys, wire
from tests.security.test_ports import is_loopback
from tests.support import eventually, listening_ports

EVERYWHERE = (
    "*", "", "0", "0x0", "00", "000.0.0.0", "0.0", "0.0.0", "0x0.0", "0x00000000", "0.0.0.0x0",
    "[::]", "[0::0]", "[::0.0.0.0]", "[::ffff:0.0.0.0]", "[0:0:0:0:0:ffff:0:0]", "::",
    ".".join("0000"), "[*]", "[0]",
)  # fmt: skip


@pytest.fixture
def server(tmp_path):
    """Make one at an address; with an allow-list of nobody."""
    context = wire.new_context()
    auth = ThreadAuthenticator(context)
    auth.start()
    auth.configure_curve(domain=wire.ZAP_DOMAIN, location=str(tmp_path))
    pair = keys.KeyPair(*zmq.curve_keypair())
    made = []

    def bind(address: str):
        made.append(wire.bind_server(context, address, pair))
        return made[-1], pair, auth

    yield bind
    for each in made:
        each.close(0)
    auth.stop()
    context.destroy(0)


@pytest.mark.parametrize("host", EVERYWHERE)
def test_no_spelling_of_every_interface_is_bound(server, host):
    with pytest.raises(ValueError, match="every interface"):
        wire.check_address(f"tcp://{host}:1")
    with pytest.raises(ValueError, match="every interface"):
        server(f"tcp://{host}:*")
    assert all(map(is_loopback, listening_ports(os.getpid())))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "0x7f000001", "lo"])
def test_one_interface_is_listened_on(server, host):
    found, _, _ = server(f"tcp://{host}:*")
    assert wire.listens_at(found).startswith("tcp://127.0.0.1:")


def test_what_slips_through_is_seen_once_it_is_bound(server, monkeypatch):
    asked = []
    monkeypatch.setattr(wire, "check_address", asked.append)
    found, _, _ = server("tcp://127.1:*")
    assert asked == ["tcp://127.1:*", wire.listens_at(found)]


@pytest.mark.parametrize(
    "place", ["tcp://no.such.host.:1", "tcp://1.2.3:4:5:6", "tcp://" + "a" * 99]
)
def test_a_host_that_is_none_is_one_clear_line(server, place):
    with pytest.raises((LaunchError, ValueError), match=r"cannot listen at|is no address"):
        server(f"tcp://{place}:1")


@pytest.mark.parametrize("is_there", [True, False], ids=["list", "list gone"])
def test_nobody_is_let_in_without_the_list(server, is_there):
    """CURVE alone lets in whoever knows the public key of the server."""
    found, pair, auth = server("tcp://127.0.0.1:*")
    if not is_there:
        auth.stop()
    stranger = keys.KeyPair(*zmq.curve_keypair())
    context = wire.new_context()
    link = wire.connect_server(context, wire.listens_at(found), stranger, pair.public)
    ends = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_SUCCEEDED
    monitor = link.get_monitor_socket(ends)
    try:
        link.send(b"let me in")
        eventually(lambda: monitor.poll(100) or found.poll(0), 10.0)
        assert not found.poll(200), "a stranger's message has arrived"
    finally:
        link.disable_monitor()
        for each in (monitor, link):
            each.close(0)
        context.term()
