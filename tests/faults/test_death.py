"""Rows 1 and 2: a rank is killed, idle or in a call."""

import os
import signal
import time

import pytest

import monarch_nb
from monarch_nb import RankExited, SupervisionError
from monarch_nb.control.client import client
from tests.faults.actors import Caller
from tests.support import eventually, is_running


def kill(pid: int, number: int = signal.SIGKILL) -> float:
    at = time.monotonic()
    os.kill(pid, number)
    return at


def states(procs) -> list[str]:
    [found] = [each for each in client().snapshot().meshes if each.name == procs.name]
    return [rank.state for rank in found.ranks]


@pytest.mark.fault
def test_an_idle_rank_that_is_killed_is_seen_without_a_call(mesh, failures, goal, responsive):
    made = mesh(4)
    seen: list[float] = []
    client().supervision.on_exit.append(lambda _: seen.append(time.monotonic()))
    at = kill(made.pids[1])
    eventually(lambda: failures, what="the failure at the root")
    goal("SIGKILL idle: known", seen[0] - at, 0.1)
    assert "lost ranks [1]" in repr(made.procs)
    assert "lost ranks [1]" in repr(made.workers)
    assert states(made.procs) == ["idle", "exited", "idle", "idle"]
    [failure] = failures
    assert failure.crashed_ranks == [1]
    assert "SIGKILL" in failure.report()
    assert not is_running(made.pids[1])


@pytest.mark.fault
def test_a_call_in_flight_ends_with_the_rank_and_keeps_the_others_values(mesh, goal, responsive):
    made = mesh(4)
    future = made.workers.sleep_unless.call(1, 60.0)
    others = made.workers.slice(gpus=slice(2, 4))
    assert list(others.add.call(1).get(timeout=10).values()) == [1, 1]
    assert made.one(0).add.call_one(0).get(timeout=10) == 0  # all but rank 1 have answered
    at = kill(made.pids[1])
    with pytest.raises(RankExited) as caught:
        future.get(timeout=10)
    goal("SIGKILL in a call: known", time.monotonic() - at, 0.1)
    error = caught.value
    assert (error.signal, error.exitcode, error.ranks) == (9, None, (1,))
    assert error.values == {0: 0, 2: 2, 3: 3}
    assert error.endpoint == "workers.sleep_unless()"
    assert "rank 1" in str(error)
    assert "heal" in str(error)
    assert list(others.add.call(1).get(timeout=10).values()) == [2, 2]
    assert made.one(0).add.call_one(5).get(timeout=10) == 5


@pytest.mark.fault
def test_every_kind_of_call_ends_and_later_ones_fail_at_once(mesh, goal):
    made = mesh(2)
    victim = made.one(1)
    queued = [victim.sleep.call_one(60.0), victim.add.call_one(), victim.add.call()]
    streamed = list(made.workers.sleep_unless.stream(1, 60.0))
    assert streamed[0].get(timeout=10) == 0
    chosen = victim.add.choose()
    victim.add.broadcast(1)
    at = kill(made.pids[1])
    for future in [*queued, streamed[1], chosen]:
        error = future.exception(timeout=10)
        assert isinstance(error, RankExited)
        assert error.ranks == (1,)
    goal("SIGKILL, calls of every kind: all ended", time.monotonic() - at, 0.1)
    before = time.monotonic()
    with pytest.raises(RankExited):
        made.workers.add.call()
    with pytest.raises(SupervisionError, match="heal"):
        made.procs.spawn("more", Caller)
    goal("a call to a lost rank is refused", time.monotonic() - before, 0.01)


@pytest.mark.fault
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT, signal.SIGHUP])
def test_the_signal_is_named(mesh, number):
    made = mesh(2)
    future = made.one(1).sleep.call_one(60.0)
    kill(made.pids[1], number)
    error = future.exception(timeout=10)
    assert isinstance(error, RankExited)
    assert error.signal == number
    assert number.name in str(error)


@pytest.mark.fault
def test_a_fat_rank(mesh, goal):
    made = mesh(2)
    made.one(1).grow.call_one(1024).get(timeout=60)
    future = made.one(1).sleep.call_one(60.0)
    at = kill(made.pids[1])
    assert isinstance(future.exception(timeout=10), RankExited)
    goal("SIGKILL of a rank of 1 GB: known", time.monotonic() - at, 0.5)


@pytest.mark.fault
def test_a_rank_that_waits_for_a_killed_one_is_told_too(mesh, goal):
    made = mesh(2)
    callers = made.procs.spawn("callers", Caller)
    future = callers.slice(gpus=0).call_sleep.call_one(made.one(1), 60.0)
    eventually(lambda: states(made.procs)[1] == "busy", 10.0)
    inner = made.one(1).add.call_one()  # behind the sleep
    at = kill(made.pids[1])
    error = future.exception(timeout=10)
    goal("SIGKILL, the caller is a rank: known", time.monotonic() - at, 0.1)
    assert isinstance(error, monarch_nb.ActorError)
    assert isinstance(error.exception, RankExited)
    assert error.exception.signal == 9
    assert isinstance(inner.exception(timeout=10), RankExited)
    assert made.one(0).add.call_one().get(timeout=10) == 1
