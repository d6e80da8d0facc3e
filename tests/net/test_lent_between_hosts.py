"""Large values on their way between hosts lie in memory that is lent: it comes back, whatever
happens to who has lent it, to who was to get it, and to the network between them."""

import gc
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from monarch_nb import Actor, attach_to_workers, endpoint
from monarch_nb.errors import MeshError
from tests.net.forwarder import forwarder, free_port
from tests.net.test_lent_on_arrival import segments
from tests.support import eventually

pytestmark = pytest.mark.slow
SIZE = 24 << 20


class Sender(Actor):
    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def make(self, value, size=SIZE):
        return np.full(size, value, np.uint8)

    @endpoint
    def total(self, array):
        return int(array[:: 1 << 10].sum())

    @endpoint
    def pass_on(self, other, value):
        return other.total.call_one(np.full(SIZE, value, np.uint8)).get(30)

    @endpoint
    def pass_to_all(self, others, value):
        return others.total.call(np.full(SIZE, value, np.uint8)).get(30).values()


def total(value: int) -> int:
    return value * (SIZE >> 10)


def maps(pid: int) -> int:
    """How many pieces of shared memory a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text().count("/memfd:monarch_nb")


@pytest.fixture
def between():
    """The network in front of a worker that listens at `between.to`."""
    with forwarder(free_port()) as made:
        yield made


@pytest.fixture
def far(workers, between):
    """An actor behind the forwarder; and the process of its host."""
    address = f"tcp://127.0.0.1:{between.port}@tcp://127.0.0.1:{between.to}"
    [address], [process] = workers(1, address=address)
    procs = attach_to_workers(workers=[address]).spawn_procs()
    return procs, procs.spawn("far", Sender), process


def test_results_and_arguments_use_their_memory_again(workers):
    [address], [process] = workers(1)
    far = attach_to_workers(workers=[address]).spawn_procs().spawn("far", Sender)
    rank = far.pid.call_one().get(60)
    for value in range(1, 7):
        assert (far.make.call_one(value).get(30) == value).all()
        assert far.total.call_one(np.full(SIZE, value, np.uint8)).get(30) == total(value)
        gc.collect()
    assert segments(rank) <= 2, "what it has sent comes back"
    assert segments(process.pid) <= 2, "what it was sent comes back"
    assert segments(os.getpid()) <= 4


def test_what_is_kept_of_a_result_is_the_user_s(workers):
    [address], _ = workers(1)
    far = attach_to_workers(workers=[address]).spawn_procs().spawn("far", Sender)
    kept = [far.make.call_one(value).get(30) for value in range(1, 5)]
    kept[0][:] = 9
    assert [int(each[-1]) for each in kept] == [9, 2, 3, 4]
    assert (far.make.call_one(7).get(30) == 7).all()
    assert [int(each[0]) for each in kept] == [9, 2, 3, 4]


def test_a_rank_sends_to_ranks_of_other_hosts(workers):
    addresses, _ = workers(3)
    all_of_them = attach_to_workers(workers=addresses).spawn_procs().spawn("far", Sender)
    first, others = all_of_them.slice(hosts=0), all_of_them.slice(hosts=slice(1, 3))
    pid = first.pid.call_one().get(60)
    for value in range(1, 6):
        assert first.pass_to_all.call_one(others, value).get(60) == [total(value)] * 2
        assert first.pass_on.call_one(others.slice(hosts=0), value).get(60) == total(value)
    assert segments(pid) <= 2


@pytest.mark.fault
def test_an_outage_in_the_middle_loses_and_changes_nothing(far, between):
    _, actor, _ = far
    values = range(1, 9)
    results = [actor.make.call_one(value) for value in values]
    totals = [actor.total.call_one(np.full(SIZE, value, np.uint8)) for value in values]
    results[0].get(60)
    between.freeze()
    at = time.monotonic()
    threading.Event().wait(max(0.0, at + 3.0 - time.monotonic()))
    between.thaw()
    assert [(each.get(60) == value).all() for each, value in zip(results, values, strict=True)]
    assert [each.get(60) for each in totals] == [total(value) for value in values]


@pytest.mark.fault
def test_connections_that_break_in_the_middle_lose_and_change_nothing(far, between):
    _, actor, _ = far
    values = range(1, 9)
    results = [actor.make.call_one(value) for value in values]
    totals = [actor.total.call_one(np.full(SIZE, value, np.uint8)) for value in values]
    for each, value in zip(results, values, strict=True):
        array = each.get(60)
        between.reset()
        assert (array == value).all()
    assert [each.get(60) for each in totals] == [total(value) for value in values]


@pytest.mark.fault
def test_a_rank_dies_that_has_lent_what_is_on_its_way(far, between, monkeypatch):
    monkeypatch.setattr("monarch_nb.unhandled_fault_hook", lambda _: None, raising=False)
    procs, actor, process = far
    rank = actor.pid.call_one().get(60)
    assert actor.total.call_one(np.ones(8, np.uint8)).get(30) == 1
    before = maps(process.pid)
    between.freeze()
    waiting = actor.make.call_one(3, 4 * SIZE)
    between.thaw()
    eventually(lambda: maps(process.pid) > before, 20, "its host has taken it up")
    between.freeze()
    os.kill(rank, signal.SIGKILL)
    threading.Event().wait(0.5)
    between.thaw()
    error = waiting.exception(30)
    if error is None:  # else it was told first that the rank has ended
        assert (waiting.get() == 3).all()
    else:
        assert "SIGKILL" in str(error)
    procs.heal()
    assert (actor.make.call_one(5).get(30) == 5).all()
    eventually(lambda: maps(process.pid) <= before + 1, 20, "its host holds nothing of the dead")


@pytest.mark.fault
def test_a_host_is_lost_in_the_middle(workers, monkeypatch):
    monkeypatch.setattr("monarch_nb.unhandled_fault_hook", lambda _: None, raising=False)
    for _ in range(3):
        with forwarder(free_port()) as between:
            address = f"tcp://127.0.0.1:{between.port}@tcp://127.0.0.1:{between.to}"
            [address], [process] = workers(1, address=address)
            actor = attach_to_workers(workers=[address]).spawn_procs().spawn("far", Sender)
            assert (actor.make.call_one(1).get(60) == 1).all()
            gc.collect()
            result = actor.make.call_one(2, 16 * SIZE)
            argument = actor.total.call_one(np.ones(SIZE, np.uint8))
            process.kill()
            for each in (result, argument):
                with pytest.raises(MeshError):
                    each.get(60)
            between.reset()
    gc.collect()
    assert segments(os.getpid()) <= 6
