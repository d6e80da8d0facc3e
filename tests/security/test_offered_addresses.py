"""An offered host listens on one interface, and lets nobody in when its allow-list is not there."""

import os
import socket

import pytest
import zmq
from zmq.auth.thread import ThreadAuthenticator

from monarch_nb.errors import LaunchError
from monarch_nb.host.rundir import new_run_dir
from monarch_nb.net import keys, wire
from tests.security.test_ports import is_loopback
from tests.support import eventually, listening_ports

EVERYWHERE = (
    "*", "", "0", "0x0", "00", "000.0.0.0", "0.0", "0.0.0", "0x0.0", "0x00000000", "0.0.0.0x0",
    "[::]", "[0::0]", "[::0.0.0.0]", "[::ffff:0.0.0.0]", "[0:0:0:0:0:ffff:0:0]", "::",
    ".".join("0000"), "[*]", "[0]",
)  # fmt: skip


@pytest.fixture
def listen():
    """Listen at an address."""
    made = []

    def bind(address: str) -> socket.socket:
        made.append(wire.listen_for_hosts(address))
        return made[-1]

    yield bind
    for each in made:
        each.close()


@pytest.mark.parametrize("host", EVERYWHERE)
def test_no_spelling_of_every_interface_is_bound(listen, host):
    with pytest.raises(ValueError, match="every interface"):
        wire.check_address(f"tcp://{host}:1")
    with pytest.raises(ValueError, match="every interface"):
        listen(f"tcp://{host}:*")
    assert all(map(is_loopback, listening_ports(os.getpid())))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "0x7f000001", "lo"])
def test_one_interface_is_listened_on(listen, host):
    assert wire.listens_at(listen(f"tcp://{host}:*")).startswith("tcp://127.0.0.1:")


def test_what_slips_through_is_seen_once_it_is_bound(listen, monkeypatch):
    asked = []
    monkeypatch.setattr(wire, "check_address", asked.append)
    found = listen("tcp://127.1:*")
    assert asked == ["tcp://127.1:*", wire.listens_at(found)]


@pytest.mark.parametrize(
    "place", ["tcp://no.such.host.:1", "tcp://1.2.3:4:5:6", "tcp://" + "a" * 99, "tcp://lo"]
)
def test_a_host_that_is_none_is_one_clear_line(listen, place):
    with pytest.raises((LaunchError, ValueError), match=r"cannot listen at|is no address|every"):
        listen(f"{place}:1" if place != "tcp://lo" else place)


@pytest.mark.parametrize("port", ["65536", "-1", "x", "", "1e3"])
def test_a_port_that_is_none_is_one_clear_line(listen, port):
    with pytest.raises(LaunchError, match="cannot listen at"):
        listen(f"tcp://127.0.0.1:{port}")


def test_a_path_that_a_dead_process_has_left_is_used_again_and_that_of_a_living_is_not(
    listen, tmp_path
):
    address = f"ipc://{tmp_path}/host"
    listen(address).close()
    assert wire.listens_at(listen(address)) == address
    with pytest.raises(LaunchError, match="Address already in use"):
        listen(address)


@pytest.mark.parametrize("is_there", [True, False], ids=["list", "list gone"])
def test_nobody_is_let_in_without_the_list(tmp_path, is_there):
    """CURVE alone lets in whoever knows the public key of the server."""
    run_dir = new_run_dir()
    context = wire.new_context()
    auth = ThreadAuthenticator(context)
    auth.start()
    auth.configure_curve(domain=wire.ZAP_DOMAIN, location=str(tmp_path))
    pair = keys.KeyPair(*zmq.curve_keypair())
    server = wire.bind_joins(context, run_dir.path, pair)
    if not is_there:
        auth.stop()
    stranger = keys.KeyPair(*zmq.curve_keypair())
    others = wire.new_context()
    ends = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_SUCCEEDED
    place = wire.joins_address(run_dir.path)
    link, monitor = wire.connect_to_join(others, place, stranger, pair.public, ends)
    try:
        link.send(b"let me in")
        eventually(lambda: monitor.poll(100) or server.poll(0), 10.0)
        assert not server.poll(200), "a stranger's message has arrived"
    finally:
        link.disable_monitor()
        for each in (monitor, link, server):
            each.close(0)
        others.term()
        if is_there:
            auth.stop()
        context.destroy(0)
        run_dir.remove()
