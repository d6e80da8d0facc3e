"""Part A, channels: mailboxes of a process, and ports to them that can be sent anywhere."""

import asyncio
import gc
import pickle
import threading

import pytest

from monarch_nb import Channel, RankedPortReceiver
from tests import support
from tests.actors.cast import Counter

pytestmark = pytest.mark.usefixtures("mesh_runtime")


def test_what_is_sent_is_received_in_order():
    port, receiver = Channel.open()
    for value in (1, "two", [3]):
        port.send(value)
    assert [receiver.recv().get() for _ in range(3)] == [1, "two", [3]]


def test_recv_waits():
    port, receiver = Channel.open()
    waiting = receiver.recv()
    with pytest.raises(TimeoutError):
        waiting.get(timeout=0.01)
    threading.Thread(target=port.send, args=("late",)).start()
    assert waiting.get(timeout=5) == "late"


def test_recv_may_be_awaited():
    port, receiver = Channel.open()

    async def main():
        port.send(1)
        return await receiver.recv()

    assert asyncio.run(main()) == 1


def test_a_receive_claims_when_it_is_observed():
    port, receiver = Channel.open()
    port.send("first")
    port.send("second")
    early, late = receiver.recv(), receiver.recv()
    assert late.get() == "first"  # it was observed first
    assert early.get() == "second"


def test_a_dropped_receive_claims_nothing():
    port, receiver = Channel.open()
    port.send("kept")
    receiver.recv()
    gc.collect()
    assert receiver.recv().get(timeout=5) == "kept"


def test_an_exception_is_raised_as_it_is():
    port, receiver = Channel.open()
    port.exception(ValueError("raw"))
    with pytest.raises(ValueError, match="^raw$") as caught:
        receiver.recv().get()
    assert type(caught.value) is ValueError


class Unsendable(Exception):
    def __reduce__(self):
        raise TypeError("never")


def test_an_exception_that_cannot_be_sent_arrives_as_text():
    port, receiver = Channel.open()
    port.exception(Unsendable("oh"))
    with pytest.raises(Exception, match="Unsendable: oh"):
        receiver.recv().get()


def test_a_port_for_one_message():
    port, receiver = Channel.open(once=True)
    port.send(1)
    with pytest.raises(RuntimeError, match="OncePortRef already used"):
        port.send(2)
    with pytest.raises(RuntimeError, match="OncePortRef already used"):
        port.exception(ValueError())
    assert receiver.recv().get() == 1
    with pytest.raises(ValueError, match="once"):
        receiver.recv()


def test_a_value_that_does_not_pickle_is_refused_and_does_not_use_the_port():
    port, receiver = Channel.open(once=True)
    with pytest.raises(TypeError, match="cannot be pickled"):
        port.send(threading.Lock())
    port.send("after all")
    assert receiver.recv().get() == "after all"


def test_ranked_receivers():
    port, receiver = Channel.open_ranked()
    assert isinstance(receiver, RankedPortReceiver)
    port.send("x")
    assert receiver.recv().get() == (0, "x")
    port, receiver = Channel.open()
    port.send("y")
    assert receiver.ranked().recv().get() == (0, "y")
    port.send("z")
    assert receiver.recv().get() == "z"  # the view took no more than it received


def send_twice(port, value):
    port.send(value)
    port.send(value)


def test_ports_travel(procs):
    counters = procs.spawn("counters", Counter)
    port, receiver = Channel.open()
    assert repr(pickle.loads(pickle.dumps(port))) == repr(port)
    counters.call_back.call(send_twice, port, "hello").get()
    assert [receiver.recv().get(timeout=5) for _ in range(8)] == ["hello"] * 8


def open_channel():
    port, open_channel.receiver = Channel.open()
    return port


def receive():
    return open_channel.receiver.recv().get(timeout=5)


def test_a_channel_opened_on_a_rank(procs):
    first, second = (procs.slice(gpus=i).spawn("counter", Counter) for i in (0, 1))
    port = first.call_back.call_one(open_channel).get()
    second.call_back.call_one(send_twice, port, "from the other").get()
    for _ in range(2):
        assert first.call_back.call_one(receive).get() == "from the other"
    port.send("from the client")  # of two senders no order is promised
    assert first.call_back.call_one(receive).get() == "from the client"


def test_large_values_go_through_ports(procs):
    counter = procs.slice(gpus=0).spawn("counter", Counter)
    port, receiver = Channel.open()
    counter.call_back.call_one(send_twice, port, b"x" * 5_000_000).get()
    assert receiver.recv().get(timeout=5) == b"x" * 5_000_000


def test_a_forgotten_receiver_leaves_nothing():
    from monarch_nb.process import current

    ports = current.proc().ports
    gc.collect()
    before = len(ports)
    port, receiver = Channel.open()
    port.send("kept by nobody")
    del receiver
    support.eventually(lambda: gc.collect() is not None and len(ports) == before)
    port.send("for nobody")


def test_a_waiting_receive_keeps_its_receiver():
    port, receiver = Channel.open()
    waiting = receiver.recv()
    del receiver
    gc.collect()
    port.send("arrives")
    assert waiting.get(timeout=5) == "arrives"


def test_a_channel_may_name_what_it_carries():
    port, receiver = Channel[int].open()
    port.send(1)
    assert receiver.recv().get(5) == 1
    ranked, collected = Channel[str].open_ranked()
    ranked.send("one")
    assert collected.recv().get(5) == (0, "one")
