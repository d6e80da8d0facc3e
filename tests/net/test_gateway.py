"""What goes from host to host through two gateways, in one process, over real sockets."""

import pytest

from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import HOST_SHIFT
from monarch_nb.host.rundir import new_run_dir
from monarch_nb.net import keys, wire
from monarch_nb.net.gateway import Gateway, pack_hello
from monarch_nb.net.outbox import open_queue

PULSE_S = 0.5, 1.5


class Host:
    """A run dir, its gateway, and one process that only receives."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process = number << HOST_SHIFT | 1
        self.dir = new_run_dir()
        self.gateway = Gateway(
            self.dir.path,
            number,
            *PULSE_S,
            on_lost=lambda _host, _why: None,
            on_hello=lambda _: {"ok": True},
        )
        self.context = wire.new_context()
        self.inbox = wire.bind_inbox(self.context, self.dir.path, self.process)

    def close(self) -> None:
        self.gateway.close()
        self.context.destroy(0)
        self.dir.remove()


@pytest.fixture
def hosts(home):
    made = [Host(number) for number in (1, 2)]
    yield made
    for each in made:
        each.close()


class LateRequests:
    """In place of the socket that wakes a gateway: what is sent on it has not come yet."""

    def __init__(self, socket) -> None:
        self.socket = socket
        self.sent = []

    def send(self, message):
        self.sent.append(message)

    def arrive(self):
        for message in self.sent:
            self.socket.send(message)
        return self.socket


def test_what_is_sent_right_after_a_host_was_dialled_arrives(hosts):
    """It comes to the gateway another way than the request to dial, and may be the first."""
    here, there = hosts
    pair = keys.identity()
    address = there.gateway.listen("tcp://127.0.0.1:*", pair, keys.allowed())
    for each in hosts:
        each.gateway.start()
    late = here.gateway._wake = LateRequests(here.gateway._wake)
    hello = pack_hello(there.number, here.process)
    here.gateway.dial(there.number, address, pair, pair.public, hello)
    outbox = open_queue(here.context, here.dir.path, here.process, there.process)
    try:
        outbox.send(frames.HEADER.pack(frames.CALL, 0, 0, 0, 0, 7, 0, 0))
        assert there.inbox.poll(5000), "it is lost"
        assert frames.parse_header(there.inbox.recv())[5] == 7
    finally:
        here.gateway._wake = late.arrive()
        outbox.close(0)
