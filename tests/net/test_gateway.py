"""What goes from host to host through two gateways, in one process, over real sockets."""

import pytest

from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import HOST_SHIFT
from monarch_nb.host.rundir import new_run_dir
from monarch_nb.net import wire
from monarch_nb.net.hosts.gateway import Gateway
from monarch_nb.net.hosts.handshake import Secret
from monarch_nb.net.hosts.link import Timing
from monarch_nb.net.links import Links
from monarch_nb.net.loop import LoopThread
from tests.support import eventually

TIMING = Timing(pulse_s=0.1, silent_s=0.5, outage_s=5.0)


class Host:
    """A run dir, its gateway, and one process that only receives."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process = number << HOST_SHIFT | 1
        self.dir = new_run_dir()
        self.thread = LoopThread("gateway")
        self.lost = []
        self.pulses = []
        self.gateway = Gateway(
            self.dir.path,
            number,
            self.thread.loop,
            TIMING,
            on_lost=lambda host, why, _: self.lost.append((host, why)),
            on_pulse=lambda host, silent_s: self.pulses.append((host, silent_s is not None)),
        )
        self.got = []
        self.links = Links(self.dir.path, self.process, self.got.append)
        self.links.start()

    def listen(self) -> str:
        listener = wire.listen_for_hosts("tcp://127.0.0.1:*")
        self.thread.loop.call(lambda: self.gateway.listen(listener))
        return wire.listens_at(listener)

    def send(self, to: "Host", number: int) -> None:
        header = frames.HEADER.pack(frames.CALL, 0, 0, 0, number, 7, self.process, 0)
        self.links.outbox(to.process).send(header)

    def close(self) -> None:
        self.links.close()
        self.gateway.close()
        self.thread.close()
        self.dir.remove()


@pytest.fixture
def hosts():
    made = [Host(number) for number in (1, 2)]
    yield made
    for each in made:
        each.close()


def link(here: Host, there: Host) -> None:
    secret = Secret.new()
    address = there.listen()
    there.thread.loop.call(lambda: there.gateway.serve(here.number, secret))
    here.thread.loop.call(lambda: here.gateway.link(there.number, secret, [address]))


def test_what_is_sent_before_a_host_is_linked_arrives_in_order(hosts):
    here, there = hosts
    here.gateway.expect(there.number)
    for number in range(100):
        here.send(there, number)
    link(here, there)
    for number in range(100, 200):
        here.send(there, number)
        there.send(here, number)
    eventually(lambda: len(there.got) == 200 and len(here.got) == 100)
    assert [each.tag for each in there.got] == list(range(200))
    assert [each.tag for each in here.got] == list(range(100, 200))


def test_a_host_that_leaves_is_lost_at_once(hosts):
    here, there = hosts
    link(here, there)
    there.send(here, 1)
    eventually(lambda: here.got)
    there.gateway.close()
    eventually(lambda: here.lost == [(2, "it was ended")], 1.0)
