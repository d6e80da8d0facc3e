"""The network between two hosts is cut: short, and nothing is lost or doubled; long, and the host
is unreachable and ends what runs there."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from monarch_nb import Actor, RankUnreachable, attach_to_workers, endpoint
from monarch_nb.control.client import client
from monarch_nb.host.rundir import sweep_all
from tests.net.forwarder import forwarder, free_port
from tests.support import descendants, eventually, is_running


class Counter(Actor):
    def __init__(self):
        self.calls = []

    @endpoint
    def count(self, number):
        self.calls.append(number)
        return number

    @endpoint
    def all(self):
        return self.calls

    @endpoint
    def echo(self, data):
        return data

    @endpoint
    def pid(self):
        return os.getpid()


@pytest.fixture
def between():
    """The network in front of a worker that listens at `between.to`."""
    with forwarder(free_port()) as made:
        yield made


@pytest.fixture
def counter(workers, between):
    """An actor behind the forwarder; and the process of its host."""
    address = f"tcp://127.0.0.1:{between.port}@tcp://127.0.0.1:{between.to}"
    [address], [process] = workers(1, address=address)
    actor = attach_to_workers(workers=[address]).spawn_procs().spawn("counter", Counter)
    assert actor.echo.call_one(1).get(60) == 1
    return actor, process


@pytest.mark.slow
@pytest.mark.fault
def test_an_outage_of_3_s_during_10_000_calls_loses_and_doubles_none(counter, between):
    actor, _ = counter
    waiting = []

    def call() -> None:
        for number in range(10_000):
            waiting.append(actor.count.call_one(number))

    calling = threading.Thread(target=call)
    calling.start()
    eventually(lambda: len(waiting) > 3_000)
    between.freeze()
    at = time.monotonic()
    eventually(lambda: client().supervision.silent, 5.0, "it is shown as silent")
    threading.Event().wait(max(0.0, at + 3.0 - time.monotonic()))
    between.thaw()
    calling.join()
    assert [each.get(30) for each in waiting] == list(range(10_000))
    assert actor.all.call_one().get(30) == list(range(10_000))
    eventually(lambda: not client().supervision.silent, 5.0)


@pytest.mark.slow
@pytest.mark.fault
def test_connections_that_break_lose_and_double_nothing(counter, between):
    actor, _ = counter
    waiting = []
    large = os.urandom(3 << 20)
    echoes = []
    for number in range(2_000):
        waiting.append(actor.count.call_one(number))
        if number % 400 == 100:
            echoes.append(actor.echo.call_one(large))
            between.reset()
    assert [each.get(30) for each in waiting] == list(range(2_000))
    assert [each.get(30) == large for each in echoes] == [True] * 5
    assert actor.all.call_one().get(30) == list(range(2_000))


@pytest.mark.slow
@pytest.mark.fault
def test_after_the_limit_the_host_is_lost_and_ends_what_runs_there(workers, between, monkeypatch):
    monkeypatch.setenv("MONARCH_NB_OUTAGE_S", "2.0")
    monkeypatch.setattr("monarch_nb.unhandled_fault_hook", lambda _: None, raising=False)
    address = f"tcp://127.0.0.1:{between.port}@tcp://127.0.0.1:{between.to}"
    [address], [process] = workers(1, address=address)
    actor = attach_to_workers(workers=[address]).spawn_procs().spawn("counter", Counter)
    rank = actor.pid.call_one().get(60)
    between.freeze()
    waiting = actor.count.call_one(1)
    error = waiting.exception(20)
    assert isinstance(error, RankUnreachable)
    assert "nothing was heard of it for" in str(error)
    assert address.partition("@")[0] in str(error)
    eventually(lambda: not is_running(rank), 10.0, "its rank ends")
    eventually(lambda: not descendants(process.pid), 10.0)
    assert is_running(process.pid)  # and offers its host again


@pytest.mark.slow
@pytest.mark.fault
def test_a_worker_that_has_not_seen_the_loss_is_had_again_at_once(workers, between, monkeypatch):
    """It waits for its client longer than that waits for it."""
    monkeypatch.setenv("MONARCH_NB_OUTAGE_S", "2.0")
    monkeypatch.setattr("monarch_nb.unhandled_fault_hook", lambda _: None, raising=False)
    address = f"tcp://127.0.0.1:{between.port}@tcp://127.0.0.1:{between.to}"
    [address], [process] = workers(1, address=address, MONARCH_NB_OUTAGE_S="60")
    procs = attach_to_workers(workers=[address]).spawn_procs()
    actor = procs.spawn("counter", Counter)
    rank = actor.pid.call_one().get(60)
    between.freeze()
    assert isinstance(actor.count.call_one(1).exception(20), RankUnreachable)
    assert is_running(rank), "the worker has not seen it"
    between.thaw()
    procs.heal()
    assert actor.pid.call_one().get(20) != rank
    assert actor.all.call_one().get(20) == []
    eventually(lambda: not is_running(rank), 10.0)
    assert is_running(process.pid)


@pytest.mark.slow
@pytest.mark.fault
def test_a_client_that_is_killed_leaves_nothing_on_the_host(workers, tmp_path):
    [address], [process] = workers(1)
    program = (
        "import sys; from monarch_nb import attach_to_workers\n"
        "procs = attach_to_workers(workers=[sys.argv[1]]).spawn_procs()\n"
        "procs.initialized.get(30)\n"
        "print('there', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, address]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout.readline() == "there\n"
        assert descendants(process.pid)
        os.kill(other.pid, signal.SIGKILL)
        at = time.monotonic()
        eventually(lambda: not descendants(process.pid), 10.0)
        assert time.monotonic() - at < 4.0
        other.stdin.close()
    sweep_all()  # its run dir, as the next client does
