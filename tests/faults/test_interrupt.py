"""Row 27: the stop button, wherever the ranks are. (Cells: tests/notebook; collectives come
later.)"""

import contextlib
import gc
import os
import random
import signal
import threading
import time

import pytest

from monarch_nb import ActorError, CallCancelled, CallInterrupted, this_host
from monarch_nb.control.client import client
from tests.faults.actors import AsyncWorker, Worker
from tests.faults.test_values import Raises
from tests.support import eventually

pytestmark = pytest.mark.alone  # the workers of pytest-xdist ignore SIGINT


def interrupted_get(future, after_s: float = 0.3) -> float:
    """`future.get()` with a SIGINT after a while; when it was sent. Asserts KeyboardInterrupt."""
    sent: list[float] = []

    def fire() -> None:
        sent.append(time.perf_counter())
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    timer = threading.Timer(after_s, fire)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            future.get(timeout=20)
    finally:
        timer.join()
    return sent[0]


CASES = {
    "a Python loop": ("main", lambda w: w.spin.call()),
    "time.sleep": ("main", lambda w: w.sleep.call(1e6)),
    "queue.get": ("main", lambda w: w.do.call("import queue; queue.Queue().get()")),
    "select": ("main", lambda w: w.do.call("import select; select.select([], [], [])")),
    "unpickling": ("main", lambda w: w.echo.call(Raises("hang"))),
    "a Python loop in a further actor": ("thread", lambda w: w.spin.call()),
    "time.sleep in a further actor": ("thread", lambda w: w.sleep.call(1e6)),
    "unpickling in a further actor": ("thread", lambda w: w.echo.call(Raises("hang"))),
    "asyncio.sleep": ("async", lambda w: w.sleep.call(1e6)),
    "a Python loop in an async actor": ("async", lambda w: w.spin.call()),
    "unpickling in an async actor": ("async", lambda w: w.add.call(Raises("hang"))),
}


@pytest.fixture(scope="module")
def trio(mesh_runtime):
    """Two ranks with an actor of each kind, for all tests: each must leave them usable."""
    procs = this_host().spawn_procs(per_host={"gpus": 2})
    found = {
        "main": procs.spawn("main", Worker),
        "thread": procs.spawn("thread", Worker),
        "async": procs.spawn("async", AsyncWorker),
    }
    for workers in found.values():
        workers.pid.call().get(timeout=40)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_prompt_is_back_at_once_and_the_rank_is_free_soon(trio, goal, case, failures):
    kind, call = CASES[case]
    workers = trio[kind]
    future = call(workers)
    at = interrupted_get(future)
    goal(f"{case}: prompt", time.perf_counter() - at, 0.3)
    assert len(workers.add.call(0).get(timeout=10)) == 2
    goal(f"{case}: rank free", time.perf_counter() - at, 1.0)
    error = future.exception(timeout=10)
    assert isinstance(error, CallInterrupted), error
    assert failures == []


@pytest.mark.slow
def test_queued_calls_are_cancelled_and_never_run(trio, goal):
    workers = trio["main"]
    before = list(workers.add.call(0).get(timeout=10).values())
    running = workers.sleep.call(1e6)
    queued = [workers.add.call(1000) for _ in range(100)]
    last = interrupted_get(queued[-1])
    client().interrupt()
    goal("100 queued calls: prompt", time.perf_counter() - last, 0.3)
    assert isinstance(running.exception(timeout=10), CallInterrupted)
    assert all(isinstance(each.exception(timeout=10), CallCancelled) for each in queued)
    assert list(workers.add.call(0).get(timeout=10).values()) == before
    goal("100 queued calls: rank free", time.perf_counter() - last, 1.0)


@pytest.mark.slow
def test_only_calls_of_the_interrupted_cell_are_stopped(trio):
    workers = trio["thread"]
    client().tag_calls(7)
    of_seven = workers.sleep.call(1e6)
    client().tag_calls(8)
    of_eight = trio["main"].sleep.call(1.0)
    client().tag_calls(0)
    client().interrupt(7)
    assert isinstance(of_seven.exception(timeout=10), (CallInterrupted, CallCancelled))
    assert list(of_eight.get(timeout=10).values()) == [1.0, 1.0]


@pytest.mark.slow
def test_the_spawn_of_a_mesh_can_be_left_and_goes_on(mesh_runtime, goal):
    procs = this_host().spawn_procs(per_host={"gpus": 2})
    slow = procs.spawn("slow", Slow, 1.5)
    at = interrupted_get(slow.initialized)
    goal("spawn: prompt", time.perf_counter() - at, 0.3)
    assert list(slow.add.call().get(timeout=20).values()) == [1, 1]
    procs.stop().get(timeout=20)


class Slow(Worker):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        threading.Event().wait(seconds)


@pytest.mark.slow
def test_a_concurrent_call_is_stopped_and_the_others_are_not(trio):
    workers = trio["async"].slice(gpus=0)
    waits = [workers.nap.call_one(seconds) for seconds in (1e6, 0.2)]
    eventually(lambda: workers.napping.call_one().get(timeout=10) == 2, 10.0)
    waits[0].cancel()
    assert isinstance(waits[0].exception(timeout=10), CallInterrupted)
    assert waits[1].get(timeout=10) == 0.2


@pytest.mark.slow
def test_user_code_that_swallows_the_interrupt_gets_the_next_one(trio):
    workers = trio["main"].slice(gpus=0)
    code = (
        "import time\n"
        "for _ in range(2):\n"
        "    try:\n        time.sleep(1e6)\n"
        "    except KeyboardInterrupt:\n        result = 'swallowed'\n"
    )
    future = workers.do.call_one(code)
    ended = threading.Event()
    future.add_done_callback(lambda _: ended.set())
    while not ended.wait(0.1):
        future.cancel()
    assert future.get(timeout=10) == "swallowed"
    assert workers.add.call_one(0).get(timeout=10) is not None


@pytest.mark.slow
def test_an_endpoint_that_raises_keyboardinterrupt_itself_is_an_ordinary_error(trio):
    for kind in ("main", "thread"):
        error = trio[kind].do.call("raise KeyboardInterrupt").exception(timeout=10)
        assert isinstance(error, ActorError)
        assert isinstance(error.exception, KeyboardInterrupt)
        assert len(trio[kind].add.call(0).get(timeout=10)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["main", "thread", "async"])
def test_no_interrupt_hits_a_call_it_was_not_meant_for(trio, kind):
    """Short calls in a stream, every other one cancelled at a random moment."""
    workers = trio[kind].slice(gpus=1)
    rng = random.Random(int(os.environ.get("MNB_SEED", "7")))
    rounds = 1500
    before = workers.add.call_one(0).get(timeout=10)
    ran = 0
    for _ in range(rounds):
        doomed = workers.add.call_one(1)
        other = workers.add.call_one(1)
        wait_until = time.perf_counter() + rng.random() * 3e-4
        while time.perf_counter() < wait_until:
            pass
        doomed.cancel()
        error = doomed.exception(timeout=10)
        assert error is None or isinstance(error, (CallCancelled, CallInterrupted)), repr(error)
        ran += error is None
        assert other.exception(timeout=10) is None
        ran += 1
    after = workers.add.call_one(0).get(timeout=10)
    assert ran <= after - before <= 2 * rounds


STORM = 100


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 5))]
)
def test_a_storm_leaves_the_mesh_usable(trio, mesh_runtime, seed):
    """Row 28: a hundred SIGINTs within a second, whatever this thread is doing."""
    rng = random.Random(seed)
    begun, over = threading.Event(), threading.Event()
    main = threading.main_thread().ident
    started: list = []

    def storm() -> None:
        begun.wait()
        for _ in range(STORM):
            over.wait(rng.random() * 2 / STORM)
            signal.pthread_kill(main, signal.SIGINT)
        over.set()

    def work() -> None:
        begun.set()
        while not over.is_set():
            with contextlib.suppress(KeyboardInterrupt):
                some_work(trio, rng, started)

    gc.collect()  # what other tests have left may have a `__del__`, which none may interrupt
    thread = threading.Thread(target=storm)
    thread.start()
    while not over.is_set():  # one may come between two `suppress`
        with contextlib.suppress(KeyboardInterrupt):
            work()
    thread.join()
    for procs in started:
        procs.stop().get(timeout=20)
    for workers in trio.values():
        assert len(workers.add.call(0).get(timeout=10)) == 2
    fresh = this_host().spawn_procs(per_host={"gpus": 2})
    assert len(fresh.spawn("fresh", Worker).add.call().get(timeout=20)) == 2
    fresh.stop().get(timeout=20)


def some_work(trio, rng: random.Random, started: list) -> None:
    """One of the things that the main thread of a notebook does."""
    match rng.randrange(4):
        case 0:
            trio["main"].add.call(1).get(timeout=10)
        case 1:
            trio["async"].sleep.call(0.01).get(timeout=10)
        case 2:
            started.append(this_host().spawn_procs(per_host={"gpus": 1}))
        case _:
            if started:
                started.pop().stop().get(timeout=20)
