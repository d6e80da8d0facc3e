"""What a call's arguments borrow goes back when the call has ended, not with the next one."""

import os
import signal
import threading
from collections import OrderedDict

import numpy as np
import pytest

from monarch_nb import Actor, LimitError, endpoint
from monarch_nb.net.outbox import Outbox
from tests import inside
from tests.support import eventually


@pytest.fixture(scope="module")
def mesh_runtime(own_client: None) -> None:
    """All that the client lends is counted."""


LARGE = np.ones(8 << 20, np.uint8)


class Sync(Actor):
    @endpoint
    def total(self, array, error=None):
        if error:
            raise error
        return int(array.sum())


class Async(Actor):
    @endpoint
    async def total(self, array, error=None):
        if error:
            raise error
        return int(array.sum())


@pytest.mark.parametrize("kind", [Sync, Async])
@pytest.mark.parametrize("error", [None, ValueError("of the user")])
def test_nothing_is_lent_after_a_call(procs, kind, error):
    actors = procs.spawn("actors", kind)
    answer = actors.total.call(LARGE, error)
    if error is None:
        assert list(answer.get(10).values()) == [8 << 20] * 4
        eventually(lambda: inside.leased_bytes() == 0, 5)
    else:
        assert answer.exception(10) is not None
        del answer
        assert list(actors.total.call(LARGE[:8]).get(10).values()) == [8] * 4
        eventually(lambda: inside.leased_bytes() == 0, 5)
    actors.stop().get(10)


@pytest.mark.parametrize("kind", [Sync, Async])
def test_a_steady_exchange_needs_one_segment(procs, kind):
    actors = procs.spawn("actors", kind)
    large = np.ones(80 << 20, np.uint8)
    for _ in range(6):
        actors.total.call(large).get(20)
    segments = inside.lender()._segments
    assert len([each for each in segments if each.capacity >= large.nbytes]) == 1
    actors.stop().get(10)


class Echo(Actor):
    @endpoint
    def echo(self, value):
        return value


class Holder(Actor):
    @endpoint
    def measure(self, value):
        while isinstance(value, dict | list | tuple):
            value = next(iter(value.values() if isinstance(value, dict) else value))
        return len(value)

    @endpoint
    def keep(self, value):
        self.value = value

    @endpoint
    def kept(self):
        return len(self.value)

    @endpoint
    def count(self, value, byte):
        return value.count(byte)

    @endpoint
    def make(self, size):
        return {"made": [bytes(size)]}

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def lends(self):
        return inside.lender().statistics()

    @endpoint
    def ask(self, holders):
        return list(holders.measure.call(bytes(SIZE)).get(20).values())


SIZE = 10_000_000
CARRIERS = {
    "bytes": bytes(SIZE),
    "bytearray": bytearray(SIZE),
    "text": "x" * SIZE,
    "within": [{"deep": (bytes(SIZE), 1)}],
    "within an object": OrderedDict(a=[bytes(SIZE)]),
}


@pytest.fixture
def sent(monkeypatch):
    """How many bytes go through the sockets of this process."""
    counted = []
    send = Outbox.send_frames
    monkeypatch.setattr(
        Outbox,
        "send_frames",
        lambda self, parts: [counted.extend(map(len, parts)), send(self, parts)][1],
    )
    return counted


@pytest.mark.parametrize("kind", CARRIERS)
def test_large_bytes_and_texts_are_lent_and_not_sent(procs, sent, kind):
    holders = procs.spawn("holders", Holder)
    assert list(holders.measure.call(CARRIERS[kind]).get(20).values()) == [SIZE] * 4
    assert sum(sent) < 100_000
    assert inside.lender().statistics()["bytes"] >= SIZE
    eventually(lambda: inside.leased_bytes() == 0, 5)
    holders.stop().get(10)


def test_a_broadcast_of_bytes_returns_before_they_are_copied(procs, monkeypatch):
    holders = procs.spawn("holders", Holder)
    go, copied = threading.Event(), threading.Event()
    write = os.pwrite  # by which a new segment is filled
    monkeypatch.setattr(os, "pwrite", lambda *args: (go.wait(5), write(*args), copied.set())[1])
    holders.keep.broadcast(bytes(7 * SIZE))
    assert not copied.is_set()
    go.set()
    assert list(holders.kept.call().get(20).values()) == [7 * SIZE] * 4
    holders.stop().get(10)


def test_large_bytes_of_a_result_are_lent_and_given_back(procs):
    holders = procs.spawn("holders", Holder)
    found = holders.make.call(SIZE).get(20)
    assert [len(each["made"][0]) for each in found.values()] == [SIZE] * 4
    assert all(lent["bytes"] >= SIZE for lent in holders.lends.call().get(20).values())
    eventually(
        lambda: not any(lent["leased_bytes"] for lent in holders.lends.call().get(20).values()), 5
    )
    holders.stop().get(10)


def test_what_an_actor_lends_to_another_one_of_its_process_is_given_back(procs):
    holders = procs.spawn("holders", Holder)
    others = procs.spawn("others", Holder)
    assert list(holders.ask.call(others).get(30).values()) == [[SIZE] * 4] * 4
    eventually(
        lambda: not any(lent["leased_bytes"] for lent in holders.lends.call().get(20).values()), 5
    )
    holders.stop().get(10)
    others.stop().get(10)


def test_what_was_lent_to_a_process_that_dies_comes_back(spawn, failures):
    holders = spawn({"gpus": 2}).spawn("holders", Holder)
    holders.keep.call(LARGE).get(20)
    assert inside.leased_bytes() >= LARGE.nbytes
    for pid in holders.pid.call().get(20).values():
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: inside.leased_bytes() == 0, 5)
    eventually(lambda: failures)


def test_bytes_that_change_after_the_call_arrive_as_they_were(procs):
    holders = procs.spawn("holders", Holder)
    value = bytearray(b"a" * SIZE)
    answers = holders.count.call(value, b"a")
    value[:] = b"b" * SIZE
    assert list(answers.get(20).values()) == [SIZE] * 4
    holders.stop().get(10)


def test_with_shared_memory_full_large_bytes_travel_inline(procs, no_room):
    holders = procs.spawn("holders", Holder)
    for value in CARRIERS.values():
        assert list(holders.measure.call(value).get(20).values()) == [SIZE] * 4
    assert inside.leased_bytes() == 0
    holders.stop().get(10)


@pytest.fixture
def no_room(monkeypatch):
    """This process may lend a megabyte."""
    monkeypatch.setattr(inside.lender(), "limit_bytes", 1 << 20)


def test_with_shared_memory_full_an_argument_travels_inline(procs, no_room):
    actors = procs.spawn("actors", Sync)
    assert list(actors.total.call(LARGE).get(20).values()) == [8 << 20] * 4
    assert inside.leased_bytes() == 0
    actors.stop().get(10)


def test_what_is_too_large_for_that_is_refused(procs, no_room):
    actors = procs.spawn("actors", Sync)
    with pytest.raises(LimitError, match="shared memory full: need .* bytes, free"):
        actors.total.call(np.ones(65 << 20, np.uint8))
    assert list(actors.total.call(LARGE[:8]).get(10).values()) == [8] * 4
    actors.stop().get(10)


ATOMS = {"number": 1 << 8_000_000, "snow": "\N{SNOWMAN}" * 65_536, "text": "x" * 65_536}


@pytest.mark.parametrize("kind", ATOMS)
def test_a_number_or_text_of_any_length_arrives(procs, kind):
    echoes = procs.spawn("echoes", Echo)
    assert all(found == ATOMS[kind] for found in echoes.echo.call(ATOMS[kind]).get(20).values())
    echoes.stop().get(10)
