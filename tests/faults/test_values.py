"""Rows 12 and 13: what cannot be pickled, and what misbehaves while it is."""

import os
import socket
import sys
import threading
import time

import pytest

from monarch_nb import ActorError, EncodeError, RankExited
from tests.faults.actors import AsyncWorker, Worker
from tests.support import eventually


class Holder:
    def __init__(self, **parts) -> None:
        self.__dict__.update(parts)


@pytest.mark.parametrize(
    "arguments, place",
    [
        ((1, Holder(fine=1, lock=threading.Lock())), "args[1].lock"),
        (({"a": [0, threading.Lock()]},), "args[0]['a'][1]"),
        ((Holder(deep=Holder(deeper=(1, socket.socket()))),), "args[0].deep.deeper[1]"),
        (((i for i in range(3)),), "args[0]"),
        ((sys._getframe(),), "args[0]"),
    ],
    ids=["lock", "in a dict", "socket deep inside", "generator", "frame"],
)
def test_an_argument_that_cannot_be_pickled_is_named(mesh, goal, arguments, place, request):
    made = mesh(2)
    before = time.perf_counter()
    with pytest.raises(EncodeError) as caught:
        made.workers.do.call(*arguments[:1]) if len(arguments) == 1 else made.workers.log.call(
            *arguments
        )
    goal(f"{request.node.callspec.id}: error", time.perf_counter() - before, 0.05)
    assert isinstance(caught.value, TypeError)
    assert place in str(caught.value)
    assert list(made.workers.add.call().get(timeout=5).values()) == [1, 1]
    for each in arguments:
        inner = getattr(getattr(getattr(each, "deep", None), "deeper", None), "__getitem__", None)
        if inner is not None:
            inner(1).close()


def test_a_keyword_and_a_constructor_argument_are_named(mesh):
    made = mesh(1)
    with pytest.raises(EncodeError, match="by"):
        made.workers.add.call(by=threading.Lock())
    with pytest.raises(EncodeError, match="lock"):
        made.procs.spawn("other", Worker, start=Holder(lock=threading.Lock()))


@pytest.mark.parametrize("cls", [Worker, AsyncWorker])
def test_a_result_that_cannot_be_pickled_is_an_error_and_both_live(mesh, goal, cls):
    made = mesh(1)
    workers = made.procs.spawn("results", Worker)
    for code in (
        "import threading; result = threading.Lock()",
        "import socket; result = [1, socket.socket()]",
        "result = (i for i in range(3))",
    ):
        before = time.perf_counter()
        error = workers.do.call_one(code).exception(timeout=10)
        goal("a result that cannot be pickled: error", time.perf_counter() - before, 0.05)
        assert isinstance(error, ActorError)
        assert "cannot be pickled" in str(error)
        assert "result" in str(error)
    assert workers.add.call_one().get(timeout=5) == 1


def test_what_must_work_works(mesh):
    made = mesh(1)
    doubled = made.workers.echo.call_one(lambda x: x * 2).get(timeout=10)
    assert doubled(21) == 42

    class Local:
        value = 7

    assert made.workers.echo.call_one(Local()).get(timeout=10).value == 7
    nested = current = []
    for _ in range(200):
        current.append([])
        current = current[0]
    assert made.workers.echo.call_one(nested).get(timeout=10) == nested


class Raises:
    """Raises at one of the steps of its journey."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __getstate__(self):
        if self.where == "getstate":
            raise ValueError("no state for you")
        return self.__dict__

    def __setstate__(self, state):
        self.__dict__.update(state)
        if self.where == "setstate":
            raise KeyError("no rebirth")
        if self.where == "exit":
            os._exit(5)
        if self.where == "sys.exit":
            sys.exit(6)
        while self.where == "hang":
            threading.Event().wait(0.05)


class Reduces:
    def __reduce__(self):
        raise LookupError("cannot be reduced")


def explode(*_):
    raise ArithmeticError("not rebuilt")


class Rebuilds:
    def __reduce__(self):
        return explode, (1,)


def test_getstate_and_reduce_that_raise_are_named_in_the_caller(mesh):
    made = mesh(1)
    with pytest.raises(ValueError, match="no state for you") as caught:
        made.workers.echo.call(Raises("getstate"))
    assert "args[0]" in "".join(caught.value.__notes__)
    with pytest.raises(LookupError, match="cannot be reduced"):
        made.workers.echo.call([Reduces()])
    assert made.workers.add.call_one().get(timeout=5) == 1


@pytest.mark.parametrize(
    "value, kind, text",
    [
        (Raises("setstate"), KeyError, "no rebirth"),
        (Rebuilds(), ArithmeticError, "not rebuilt"),
        (Raises("sys.exit"), RuntimeError, "sys.exit(6)"),
    ],
    ids=["__setstate__", "__reduce__", "exits politely"],
)
@pytest.mark.parametrize("which", ["sync", "async"])
def test_one_that_raises_on_arrival_is_an_error_of_the_call(mesh, which, value, kind, text):
    made = mesh(2)
    workers = made.workers
    if which == "async":
        workers = made.procs.spawn("async", AsyncWorker)
    error = workers.slice(gpus=1).add.call_one(value).exception(timeout=10)
    assert isinstance(error, ActorError)
    assert isinstance(error.exception, kind), error.exception
    assert text in str(error)
    assert error.rank == 1
    assert list(workers.add.call(2).get(timeout=5).values()) == [2, 2]


@pytest.mark.fault
def test_one_that_ends_the_process_on_arrival_is_an_exit(mesh):
    made = mesh(2)
    error = made.one(1).echo.call_one(Raises("exit")).exception(timeout=10)
    assert isinstance(error, RankExited)
    assert error.exitcode == 5
    assert made.one(0).add.call_one().get(timeout=5) == 1


def test_one_that_hangs_on_arrival_leaves_the_rank_responsive(mesh, goal):
    """The inbox thread runs no unpickling: other actors, interrupts and status go on."""
    made = mesh(2)
    others = made.procs.spawn("others", AsyncWorker)
    others.add.call().get(timeout=10)
    future = made.one(1).echo.call_one(Raises("hang"))
    started = time.monotonic()
    eventually(lambda: time.monotonic() - started > 0.3)
    before = time.perf_counter()
    assert list(others.add.call().get(timeout=5).values()) == [2, 2]
    goal("a hanging __setstate__: another actor answers", time.perf_counter() - before, 0.05)
    assert not future.done()
    before = time.perf_counter()
    future.cancel()
    error = future.exception(timeout=10)
    goal("a hanging __setstate__: interrupted", time.perf_counter() - before, 1.0)
    assert type(error).__name__ == "CallInterrupted"
    assert made.one(1).add.call_one().get(timeout=5) == 1


def test_a_result_that_raises_here_ends_the_call_and_harms_nothing(mesh):
    made = mesh(2)
    code = "from tests.faults.test_values import Raises; result = Raises('setstate')"
    future = made.one(0).do.call_one(code)
    error = future.exception(timeout=10)
    assert "no rebirth" in f"{error!r} {error}"
    gathered = made.workers.do.call(code).get(timeout=10)
    with pytest.raises(Exception, match="no rebirth"):
        gathered.item(gpus=0)
    assert list(made.workers.add.call().get(timeout=5).values()) == [1, 1]
