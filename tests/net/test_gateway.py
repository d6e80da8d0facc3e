"""What goes from host to host through two gateways, in one process, over real sockets."""

import pytest

from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import HOST_SHIFT
from monarch_nb.host.rundir import new_run_dir
from monarch_nb.net import keys, wire
from monarch_nb.net.gateway import Gateway, pack_hello
from monarch_nb.net.links import Links
from monarch_nb.net.loop import Loop

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


@pytest.fixture
def process(hosts):
    """The links of a process of the first host."""
    here, _ = hosts
    links = Links(here.dir.path, here.process + 1, lambda _: None)
    links.start()
    yield links
    links.close()


def test_what_is_sent_right_after_a_host_was_dialled_arrives(hosts, process, monkeypatch):
    """It comes to the gateway another way than the request to dial, and may be the first."""
    here, there = hosts
    pair = keys.identity()
    address = there.gateway.listen("tcp://127.0.0.1:*", pair, keys.allowed())
    for each in hosts:
        each.gateway.start()
    hello = pack_hello(there.number, here.process)
    with monkeypatch.context() as late:
        late.setattr(Loop, "wake", lambda _: None)  # the request to dial is not heard
        here.gateway.dial(there.number, address, pair, pair.public, hello)
    process.outbox(there.process).send(frames.HEADER.pack(frames.CALL, 0, 0, 0, 0, 7, 0, 0))
    assert there.inbox.poll(5000), "it is lost"
    assert frames.parse_header(there.inbox.recv())[5] == 7
