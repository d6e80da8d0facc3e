"""Part A, ordering and concurrency: first in, first out for each pair, one message at a time."""

import asyncio
import threading

import pytest

from monarch_nb import Actor, Channel, concurrent_endpoint, endpoint, send
from tests import support
from tests.actors.cast import AsyncCounter


class Log(Actor):
    """Notes what arrives."""

    def __init__(self):
        self.seen = []

    @endpoint
    def note(self, value):
        self.seen.append(value)
        return value

    @endpoint
    def read(self):
        return self.seen


class AsyncLog(Actor):
    def __init__(self):
        self.seen = []

    @endpoint
    async def note(self, value):
        await asyncio.sleep(0)
        self.seen.append(value)
        return value

    @concurrent_endpoint
    async def note_soon(self, value):
        self.seen.append(value)
        await asyncio.sleep(0)

    @endpoint
    async def read(self):
        return self.seen


class Forwarder(Actor):
    """Sends to another actor."""

    @endpoint
    def send_many(self, log, start, count):
        for i in range(start, start + count):
            log.note.broadcast(i)


ADVERBS = ("call", "call_one", "choose", "stream", "broadcast", "send", "as given")


def say(log, adverb, value, port):
    if adverb == "send":
        send(log.note, (value,), {}, port)
    else:
        getattr(log.note, "call" if adverb == "as given" else adverb)(value)


@pytest.mark.parametrize("cls", [Log, AsyncLog])
def test_whatever_the_adverb(procs, cls):
    log = procs.slice(gpus=0).spawn("log", cls)
    port, _receiver = Channel.open()
    for value in range(700):
        say(log, ADVERBS[value % len(ADVERBS)], value, port)
    assert log.read.call_one().get() == list(range(700))


def test_a_mesh_and_its_slices_share_the_order(procs):
    logs = procs.spawn("logs", Log)
    one = logs.slice(gpus=2)
    pair = logs.slice(gpus=slice(1, 3))
    for value in range(3_000):
        (logs, one, pair)[value % 3].note.broadcast(value)
    found = logs.read.call().get()
    assert found.get(2) == list(range(3_000))
    assert found.get(1) == [value for value in range(3_000) if value % 3 != 1]
    assert found.get(0) == list(range(0, 3_000, 3))


def test_messages_sent_before_the_actor_is_there(procs):
    log = procs.slice(gpus=1).spawn("early", Log)
    for value in range(100):
        log.note.broadcast(value)
    assert log.read.call_one().get() == list(range(100))


def test_order_of_large_and_small_messages(procs):
    log = procs.slice(gpus=1).spawn("sizes", Log)
    sizes = [(1 << 21) if i % 5 == 0 else i for i in range(50)]
    for size in sizes:
        log.note.broadcast(b"x" * size)
    assert [len(each) for each in log.read.call_one().get()] == sizes


def test_order_holds_for_each_sender(procs):
    log = procs.slice(gpus=0).spawn("log", Log)
    senders = procs.spawn("senders", Forwarder)
    for rank in range(4):
        senders.slice(gpus=rank).send_many.broadcast(log, rank * 1000, 200)
    senders.send_many.call(log, 10_000, 0).get()  # all have sent
    seen = support.eventually(
        lambda: (found := log.read.call_one().get()) and len(found) == 800 and found
    )
    for rank in range(4):
        mine = [value for value in seen if value // 1000 == rank]
        assert mine == list(range(rank * 1000, rank * 1000 + 200))


def test_threads_of_the_client_do_not_mix_up_each_other(procs):
    log = procs.slice(gpus=3).spawn("log", Log)

    def shoot(start):
        for value in range(start, start + 300):
            log.note.broadcast(value)

    threads = [threading.Thread(target=shoot, args=(i * 1000,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = log.read.call_one().get()
    for i in range(4):
        mine = [value for value in seen if value // 1000 == i]
        assert mine == list(range(i * 1000, i * 1000 + 300))


# ---------------------------------------------------------------------------- one at a time, or not


def test_the_next_message_waits_for_the_awaits_of_the_last(procs):
    actor = procs.slice(gpus=0).spawn("slow", AsyncCounter)
    first, second = actor.slow.call_one("first", 20), actor.slow.call_one("second", 1)
    first.get()
    second.get()
    assert actor.read.call_one().get() == [
        ("start", "first"),
        ("end", "first"),
        ("start", "second"),
        ("end", "second"),
    ]


def test_a_concurrent_endpoint_lets_others_in_while_it_awaits(procs):
    actor = procs.slice(gpus=0).spawn("gate", AsyncCounter)
    waiting = [actor.wait_for.call_one("gate") for _ in range(10)]
    assert actor.add.call_one(1).get(timeout=5) == 1
    assert not any(each.done() for each in waiting)
    actor.open_gate.call_one("gate").get(timeout=5)
    assert [each.get(timeout=5) for each in waiting] == ["gate"] * 10


def test_concurrent_calls_start_in_order(procs):
    actor = procs.slice(gpus=0).spawn("numbers", AsyncCounter)
    answers = [actor.numbered.call_one(i) for i in range(300)]  # several batches of 64
    assert [each.get(timeout=5) for each in answers] == list(range(300))
    assert actor.read.call_one().get() == list(range(300))


def test_an_exclusive_endpoint_starts_after_the_concurrent_ones_before_it(procs):
    log = procs.slice(gpus=0).spawn("log", AsyncLog)
    for value in range(100):
        (log.note_soon if value % 2 else log.note).broadcast(value)
    assert sorted(log.read.call_one().get()) == list(range(100))
    odd = [value for value in log.read.call_one().get() if value % 2]
    assert odd == sorted(odd)


def test_an_error_in_a_concurrent_endpoint_leaves_the_actor_alive(procs):
    actor = procs.slice(gpus=0).spawn("failing", AsyncCounter)
    error = actor.fail.call_one().exception(5)
    assert "Actor call failing.fail failed" in str(error)
    assert actor.add.call_one(1).get() == 1


class Nested(Actor):
    """Calls itself through another, which a serial actor cannot answer and a concurrent one can."""

    @concurrent_endpoint
    async def ask_me_back(self, me, depth):
        return depth if depth == 0 else 1 + await me.ask_me_back.call_one(me, depth - 1)


def test_concurrent_endpoints_may_call_their_own_actor(procs):
    actor = procs.slice(gpus=1).spawn("nested", Nested)
    assert actor.ask_me_back.call_one(actor, 10).get(timeout=5) == 10
