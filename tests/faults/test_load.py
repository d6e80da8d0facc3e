"""Row 26: 100 000 calls in flight to one actor and to 8 ranks: answered, cancelled, killed."""

import os
import signal
import statistics
import time
from collections import Counter

import numpy as np
import pytest

from monarch_nb import CallInterrupted, RankExited
from monarch_nb.control.client import client
from monarch_nb.process.exit import Exit
from tests.support import eventually, rss_bytes

pytestmark = pytest.mark.alone

CALLS = 100_000


class Burst:
    """That many calls, sent behind one that holds each rank up."""

    def __init__(self, made, hold_s: float) -> None:
        self.pids = made.pids
        self.before = [rss_bytes(), *map(rss_bytes, made.pids)]
        self.ones = [made.one(rank) for rank in range(len(made.pids))]
        self.began = time.perf_counter()
        self.held = [one.sleep.call_one(hold_s) for one in self.ones]
        count = len(self.ones)
        self.calls = [self.ones[i % count].add.call_one(1) for i in range(CALLS)]
        self.sent_s = time.perf_counter() - self.began

    def grown_bytes(self) -> int:
        """What it has cost the process that costs most."""
        now = [rss_bytes()]
        for pid in self.pids:
            now.append(rss_bytes(pid) if os.path.exists(f"/proc/{pid}") else 0)
        return max(after - before for after, before in zip(now, self.before, strict=True))


def kinds(calls) -> Counter:
    return Counter(type(each.exception(timeout=60)).__name__ for each in calls)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 8])
def test_all_are_answered_in_order(mesh, goal, ranks, responsive):
    burst = Burst(mesh(ranks), hold_s=0.0)
    values = [each.get(timeout=100) for each in burst.calls]
    goal(f"10^5 calls to {ranks} ranks: answered", time.perf_counter() - burst.began, 10.0)
    assert values == [i // ranks + 1 for i in range(CALLS)]
    assert burst.grown_bytes() < 200 << 20


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 8])
def test_all_can_be_cancelled_at_once(mesh, goal, ranks, responsive):
    burst = Burst(mesh(ranks), hold_s=1e6)
    goal(f"10^5 calls to {ranks} ranks: sent", burst.sent_s, 10.0)
    at = time.perf_counter()
    client().interrupt()
    goal(f"10^5 cancelled on {ranks} ranks: prompt", time.perf_counter() - at, 0.3)
    assert all(isinstance(each.exception(timeout=60), CallInterrupted) for each in burst.held)
    assert kinds(burst.calls) == {"CallCancelled": CALLS}
    goal(f"10^5 cancelled on {ranks} ranks: all ended", time.perf_counter() - at, 10.0)
    assert burst.grown_bytes() < 200 << 20
    assert all(one.add.call_one(0).get(timeout=10) == 0 for one in burst.ones)


@pytest.mark.slow
def test_each_can_be_cancelled_by_itself(mesh, goal):
    burst = Burst(mesh(1), hold_s=1e6)
    at = time.perf_counter()
    for each in [*reversed(burst.calls), *burst.held]:
        assert each.cancel()
    assert kinds(burst.calls) == {"CallCancelled": CALLS}
    goal("10^5 cancelled one by one: all ended", time.perf_counter() - at, 10.0)
    assert burst.ones[0].add.call_one(0).get(timeout=10) == 0


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("ranks", [1, 8])
def test_all_end_with_the_ranks(mesh, goal, ranks, responsive):
    burst = Burst(mesh(ranks), hold_s=1e6)
    at = time.perf_counter()
    for pid in burst.pids:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: all(each.done() for each in burst.calls), 20.0)
    goal(f"SIGKILL of {ranks} ranks: 10^5 calls ended", time.perf_counter() - at, 2.0)
    assert kinds([*burst.held, *burst.calls]) == {"RankExited": CALLS + ranks}
    error = burst.calls[-1].exception()
    assert isinstance(error, RankExited)
    assert error.signal == 9
    goal(f"SIGKILL of {ranks} ranks: 10^5 errors made", time.perf_counter() - at, 5.0)
    assert burst.grown_bytes() < 200 << 20


@pytest.mark.slow
@pytest.mark.fault
def test_one_of_eight_dies_and_the_others_answer(mesh, goal):
    burst = Burst(mesh(8), hold_s=0.0)
    os.kill(burst.pids[3], signal.SIGKILL)
    found = Counter()
    for i, each in enumerate(burst.calls):
        error = each.exception(timeout=60)
        assert error is None or (i % 8 == 3 and isinstance(error, RankExited))
        found[error is None] += 1
    assert found[True] >= CALLS * 7 // 8


GIGABYTE = 1 << 30


def longest_call_s(worker, until) -> float:
    """Of calls to a worker, one after the other, while something else is on its way."""
    longest_s = 0.0
    while not until.done():
        at = time.perf_counter()
        worker.add.call_one(0).get(timeout=10)
        longest_s = max(longest_s, time.perf_counter() - at)
    return longest_s


@pytest.mark.slow
@pytest.mark.nightly
def test_a_gigabyte_to_eight_ranks_holds_up_nobody(mesh, goal):
    """Row 11. Calls to a rank that has no part in it are answered meanwhile, there and back."""
    made, other = mesh(8), mesh(1).one(0)
    assert other.add.call_one(0).get(timeout=10) == 0
    large = np.ones(GIGABYTE, np.uint8)
    before = rss_bytes()
    at = time.perf_counter()
    sizes = made.workers.length.call(large)
    goal("1 GB to 8 ranks: sent", time.perf_counter() - at, 5.0)
    goal("1 GB to 8 ranks: another call meanwhile", longest_call_s(other, sizes), 0.05)
    assert set(sizes.get(timeout=60).values()) == {GIGABYTE}
    back = made.one(0).echo.call_one(large)
    goal("1 GB there and back: another call meanwhile", longest_call_s(other, back), 0.05)
    assert len(back.get(timeout=60)) == GIGABYTE
    grown = (rss_bytes() - before) / GIGABYTE
    goal("1 GB there and back: GB that the caller has grown by", grown, 2.4)


def test_a_call_takes_no_longer_after_thousands_of_deaths(mesh):
    """As in a session of days, in which ranks have died and were replaced all the time."""
    workers = mesh(8).workers

    def call_s() -> float:
        began = time.perf_counter()
        workers.add.call(1).get(timeout=5)
        return time.perf_counter() - began

    before_s = statistics.median(call_s() for _ in range(200))
    others = range(10_000)  # no process has such a number
    client().proc.dead.update((each, Exit(each)) for each in others)
    after_s = statistics.median(call_s() for _ in range(200))
    for each in others:
        del client().proc.dead[each]
    assert after_s < 2 * before_s
