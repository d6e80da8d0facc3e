"""What goes from host to host through two gateways, in one process, over real sockets."""

import threading
from collections.abc import Callable

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
from tests.net.forwarder import forwarder, free_port
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
def hosts(request):
    made = [Host(number) for number in range(1, 1 + getattr(request, "param", 2))]
    yield made
    for each in made:
        each.close()


def link(here: Host, there: Host, others: Callable[[str], str] = str) -> None:
    """Link a controller to a host, which others reach at what `others` makes of its address."""
    secret = Secret.new()
    address = there.listen()
    there.thread.loop.call(lambda: there.gateway.serve(here.number, secret))
    here.thread.loop.call(
        lambda: here.gateway.link(there.number, secret, [others(address)], [address])
    )


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


def tags(host: Host, source: Host) -> list[int]:
    return [each.tag for each in host.got if each.source == source.process]


@pytest.mark.parametrize("hosts", [3], indirect=True)
def test_two_hosts_talk_without_the_controller_s(hosts):
    controller, one, two = hosts
    link(controller, one)
    link(controller, two)
    for number in range(50):
        one.send(two, number)
        two.send(one, number)
    eventually(lambda: len(one.got) == len(two.got) == 50)
    going_on = threading.Event()
    controller.thread.loop.soon(going_on.wait)  # it relays nothing meanwhile
    try:
        for number in range(50, 100):
            one.send(two, number)
            two.send(one, number)
        eventually(lambda: len(one.got) == len(two.got) == 100, 1.0)
    finally:
        going_on.set()
    assert tags(one, two) == tags(two, one) == list(range(100))


@pytest.mark.parametrize("hosts", [3], indirect=True)
def test_hosts_that_cannot_reach_each_other_talk_through_the_controller_s(hosts):
    controller, one, two = hosts
    link(controller, one)
    link(controller, two, lambda _: "tcp://127.0.0.1:9")
    for number in range(50):
        one.send(two, number)
        two.send(one, number)
    eventually(lambda: len(one.got) == len(two.got) == 50, 5.0)
    one.send(two, 50)
    eventually(lambda: len(two.got) == 51, 1.0)
    assert tags(one, two) == list(range(50))
    assert tags(two, one) == list(range(51))


@pytest.mark.parametrize("hosts", [3], indirect=True)
def test_a_way_that_breaks_for_good_is_replaced_and_nothing_is_lost(hosts):
    controller, one, two = hosts
    link(controller, one)
    with forwarder(free_port()) as between:
        link(controller, two, between.in_front_of)
        one.send(two, 0)
        two.send(one, 0)
        eventually(lambda: one.got and two.got)
        between.freeze()
        for number in range(1, 500):
            one.send(two, number)
            two.send(one, number)
        eventually(lambda: len(one.got) == len(two.got) == 500, 6.0)
        assert tags(one, two) == tags(two, one) == list(range(500))
        between.thaw()
        one.send(two, 500)
        eventually(lambda: len(two.got) == 501, 2.0)
    assert not one.lost
    assert not two.lost


@pytest.mark.parametrize("hosts", [3], indirect=True)
def test_a_host_that_is_gone_is_forgotten_by_those_that_knew_it(hosts):
    controller, one, two = hosts
    link(controller, one)
    link(controller, two)
    one.send(two, 0)
    eventually(lambda: two.got)
    two.gateway.close()
    eventually(lambda: controller.lost == [(3, "it was ended")], 2.0)
    one.send(two, 1)  # to nobody
    one.send(controller, 2)
    eventually(lambda: tags(controller, one) == [2])
    assert one.lost == []
