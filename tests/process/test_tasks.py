"""Part A, `returns_future`: a body that runs once, where it is first looked at."""

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from monarch_nb import Future, returns_future
from tests.actors.cast import Counter

pytestmark = pytest.mark.usefixtures("mesh_runtime")


@pytest.fixture(scope="module")
def one(procs):
    return procs.slice(gpus=0).spawn("one", Counter)


async def wait(future):
    return await future


def test_the_body_is_lazy_and_runs_once(one):
    runs = []

    @returns_future
    async def body(n):
        """Says what it does."""
        runs.append(n)
        return await one.echo.call_one(n)

    assert (body.__name__, body.__doc__) == ("body", "Says what it does.")
    future = body(3)
    assert isinstance(future, Future)
    assert runs == []
    assert not future.done()
    assert (future.get(), future.get(), asyncio.run(wait(future))) == (3, 3, 3)
    assert runs == [3]


def test_the_body_runs_where_it_is_awaited():
    @returns_future
    async def body():
        return asyncio.get_running_loop()

    async def main():
        return await body() is asyncio.get_running_loop()

    assert asyncio.run(main())


def test_the_body_in_a_thread_with_a_running_loop():
    @returns_future
    async def body():
        return "from a loop of its own"

    async def main():
        return body().get()

    assert asyncio.run(main()) == "from a loop of its own"


variable = contextvars.ContextVar("variable", default="unset")


@pytest.mark.parametrize("how", ["get", "await", "callback"])
def test_the_body_sees_the_context_of_the_call(how):
    @returns_future
    async def body():
        return variable.get()

    token = variable.set("at the call")
    future = body()
    variable.reset(token)
    if how == "callback":
        arrived = threading.Event()
        future.add_done_callback(lambda _: arrived.set())
        assert arrived.wait(5)
    found = asyncio.run(wait(future)) if how == "await" else future.get()
    assert found == "at the call"


def test_later_observers_wait_for_the_outcome():
    started, go_on = threading.Event(), threading.Event()

    @returns_future
    async def body():
        started.set()
        await asyncio.to_thread(go_on.wait)
        return "outcome"

    future = body()
    with ThreadPoolExecutor(3) as pool:
        owner = pool.submit(future.get)
        assert started.wait(5)
        others = [pool.submit(future.get, 5), pool.submit(asyncio.run, wait(future))]
        with pytest.raises(TimeoutError):
            future.get(timeout=0.01)  # of an observer: the body goes on
        go_on.set()
        assert owner.result() == "outcome"
        assert [each.result() for each in others] == ["outcome"] * 2


def test_the_owner_s_timeout_cancels_the_body_and_waits_for_its_cleanup():
    cleaned = []

    @returns_future
    async def body():
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(True)

    future = body()
    with pytest.raises(TimeoutError):
        future.get(timeout=0.01)
    assert cleaned == [True]
    with pytest.raises(TimeoutError):
        future.get()


def test_the_owner_s_timeout_with_a_running_loop():
    cleaned = []

    @returns_future
    async def body():
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append(True)

    async def main():
        with pytest.raises(TimeoutError):
            body().get(timeout=0.01)

    asyncio.run(main())
    assert cleaned == [True]


def test_cancelling_the_await_of_a_body_cancels_only_the_observer():
    @returns_future
    async def body():
        await asyncio.sleep(0.05)
        return "went on"

    async def main():
        future = body()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait(future), 0.01)
        return await future

    assert asyncio.run(main()) == "went on"


def test_what_the_body_raises():
    @returns_future
    async def body():
        raise KeyError("mine")

    future = body()
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            future.get()
    assert isinstance(future.exception(), KeyError)


INTERRUPT = """
import asyncio, os, signal, sys, threading
from monarch_nb import returns_future

cleaned = []

@returns_future
async def body():
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        await asyncio.sleep(60)
    finally:
        cleaned.append(True)

async def with_a_loop():
    body().get()

try:
    if sys.argv[1:]:  # as a cell of ipykernel runs; asyncio.run has a SIGINT handler of its own
        asyncio.new_event_loop().run_until_complete(with_a_loop())
    else:
        body().get()
except KeyboardInterrupt:
    print("interrupted", cleaned)
"""


@pytest.mark.parametrize("with_a_loop", [False, True])
def test_an_interrupt_of_the_owner_cancels_the_body(program, with_a_loop):
    source = INTERRUPT.replace("sys.argv[1:]", str(with_a_loop))
    done = program(source, within_s=20)
    assert done.stdout == "interrupted [True]\n", done.stderr
