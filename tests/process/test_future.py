"""Part A, `Future` and `returns_future`: waited for by any thread or loop, any number of times."""

import _thread
import asyncio
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from monarch_nb import ActorError, CallCancelled, CallInterrupted, Channel, Future
from tests import support
from tests.actors.cast import AsyncCounter, Counter

pytestmark = pytest.mark.usefixtures("mesh_runtime")


@pytest.fixture(scope="module")
def one(procs):
    return procs.slice(gpus=0).spawn("one", Counter)


@pytest.fixture
def gate(procs):
    """An actor whose answers come when they are let."""
    actor = procs.slice(gpus=1).spawn("gate", AsyncCounter)
    yield actor
    actor.stop().get()


# ---------------------------------------------------------------------------------------------- get


def test_a_future_cannot_be_made_by_hand():
    with pytest.raises(TypeError, match="cannot be made by hand"):
        Future()


def test_get_any_number_of_times(one):
    answer = one.echo.call_one([1])
    assert answer.get() == [1]
    assert answer.get(timeout=0) is answer.result() is answer.get(None)
    assert answer.exception() is None


def test_an_error_any_number_of_times(one):
    answer = one.fail.call_one("again")
    for _ in range(2):
        with pytest.raises(ActorError, match="again"):
            answer.get()
    assert isinstance(answer.exception(timeout=1), ActorError)


def test_a_timeout_consumes_nothing(gate):
    answer = gate.wait_for.call_one("late")
    for timeout in (0, 0.01):
        with pytest.raises(TimeoutError):
            answer.get(timeout=timeout)
    with pytest.raises(TimeoutError):
        answer.exception(timeout=0.01)
    gate.open_gate.call_one("late").get()
    assert answer.get(timeout=5) == "late"


@pytest.mark.parametrize("timeout", [None, 20])
def test_a_stop_that_does_not_end_the_wait_of_the_system_comes_up_within_a_second(gate, timeout):
    # Python was told, but no system call was interrupted: so it is where a signal comes a moment
    # before the wait
    answer = gate.wait_for.call_one("nobody")
    threading.Timer(0.1, _thread.interrupt_main).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        answer.get(timeout)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan"), float("inf"), 1e300])
def test_bad_timeouts(one, gate, timeout):
    pending = gate.wait_for.call_one("never")
    done = one.echo.call_one(1)
    assert done.get() == 1
    for answer in (pending, done):
        with pytest.raises(ValueError, match="timeout must be"):
            answer.get(timeout=timeout)
        with pytest.raises(ValueError, match="timeout must be"):
            answer.exception(timeout=timeout)


def test_get_with_a_running_loop_does_not_warn(one):
    async def main():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return one.echo.call_one(3).get()

    assert asyncio.run(main()) == 3


def test_many_threads_wait_for_one_future(gate):
    answer = gate.wait_for.call_one("crowd")
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(answer.get, 10) for _ in range(8)]
        gate.open_gate.call_one("crowd").get()
        assert [each.result() for each in waiting] == ["crowd"] * 8


def test_done_never_blocks(gate):
    answer = gate.wait_for.call_one("done")
    assert not answer.done()
    assert "pending" in repr(answer)
    gate.open_gate.call_one("done").get()
    answer.get(5)
    assert answer.done()
    assert "done" in repr(answer)


def test_callbacks_are_called_once_early_or_late(gate):
    answer = gate.wait_for.call_one("callback")
    called = threading.Event()
    seen = []
    answer.add_done_callback(lambda future: (seen.append(future.get()), called.set()))
    gate.open_gate.call_one("callback").get()
    assert called.wait(5)
    answer.add_done_callback(lambda future: seen.append(future.get()))
    assert seen == ["callback", "callback"]


# -------------------------------------------------------------------------------------------- await


def test_await_any_number_of_times_from_any_loop(one, gate):
    answer = gate.wait_for.call_one("await")

    async def main():
        first = asyncio.ensure_future(wait(answer))
        second = asyncio.ensure_future(wait(answer))
        await asyncio.sleep(0)
        await gate.open_gate.call_one("await")
        return await first, await second, await answer

    assert asyncio.run(main()) == ("await",) * 3
    assert asyncio.run(wait(answer)) == "await"
    assert answer.get() == "await"


async def wait(future):
    return await future


def test_await_raises_what_get_raises(one):
    with pytest.raises(ActorError, match="bad"):
        asyncio.run(wait(one.fail.call_one()))


def test_cancelling_an_await_cancels_only_the_observer(gate):
    answer = gate.wait_for.call_one("cancel")

    async def main():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait(answer), 0.01)
        assert not answer.done()
        await gate.open_gate.call_one("cancel")
        return await answer

    assert asyncio.run(main()) == "cancel"


def test_futures_can_be_gathered_and_get_stays_usable(one):
    async def main():
        return await asyncio.gather(*[wait(one.echo.call_one(i)) for i in range(5)])

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]


def test_as_asyncio(one, gate):
    with pytest.raises(RuntimeError, match="no running event loop"):
        one.echo.call_one(1).as_asyncio()

    async def main():
        mirror = gate.wait_for.call_one("mirror").as_asyncio()
        assert isinstance(mirror, asyncio.Future)
        assert not mirror.done()
        await gate.open_gate.call_one("mirror")
        with pytest.raises(ActorError):
            await one.fail.call_one().as_asyncio()
        return await mirror

    assert asyncio.run(main()) == "mirror"


def test_a_loop_that_was_closed_while_the_call_ran(gate):
    answer = gate.wait_for.call_one("closed")

    async def main():
        answer.as_asyncio()

    asyncio.run(main())
    gate.open_gate.call_one("closed").get()
    assert answer.get(5) == "closed"


# ------------------------------------------------------------------------------------------- cancel


def test_cancel_a_call_that_is_queued(procs):
    actor = procs.slice(gpus=2).spawn("queued", Counter)
    actor.get.call_one().get()
    busy = actor.nap.call_one(0.2)
    queued = actor.add.call_one(1)
    assert queued.cancel()
    with pytest.raises(CallCancelled):
        queued.get(5)
    assert busy.get(5) == 0.2
    assert actor.get.call_one().get() == 0
    assert not queued.cancel()


def test_cancel_a_call_that_runs(procs, gate):
    actor = procs.slice(gpus=3).spawn("running", Counter)  # the first there: on the main thread
    port, started = Channel.open()
    running = actor.announced_nap.call_one(port, 30)
    started.recv().get(5)
    assert running.cancel()
    with pytest.raises(CallInterrupted):
        running.get(5)
    assert actor.add.call_one(1).get(5) == 1
    waiting = gate.wait_for.call_one("forever")
    support.eventually(lambda: gate.read.call_one().get() == [("wait", "forever")])
    waiting.cancel()
    with pytest.raises(CallInterrupted):
        waiting.get(5)
    assert gate.add.call_one(1).get(5) == 1
