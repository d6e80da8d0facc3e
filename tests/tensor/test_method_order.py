"""One sender's messages to one actor are in order, whether they carry tensors of a mesh or not."""

import asyncio
import os

import pytest
import torch

from monarch_nb import (
    Actor,
    CallCancelled,
    Channel,
    SupervisionError,
    concurrent_endpoint,
    endpoint,
    send,
)
from monarch_nb.tensor import Stream, inspect, remote
from tests.support import eventually, until_exists
from tests.tensor.conftest import numbered


class Log(Actor):
    def __init__(self):
        self.seen = []

    @endpoint(propagate=lambda value: value)
    def note(self, value):
        self.seen.append(int(value.sum()) if isinstance(value, torch.Tensor) else value)
        return value

    @endpoint
    def read(self):
        return self.seen


class AsyncLog(Actor):
    def __init__(self):
        self.seen = []
        self.opened = asyncio.Event()

    @endpoint(propagate=lambda value: value)
    async def note(self, value):
        self.seen.append(int(value.sum()) if isinstance(value, torch.Tensor) else value)
        return value

    @concurrent_endpoint
    async def wait(self, value):
        await asyncio.wait_for(self.opened.wait(), 20)
        return int(value.sum())

    @concurrent_endpoint
    async def open(self):
        self.opened.set()

    @endpoint
    async def read(self):
        return self.seen


@remote(propagate=lambda x, path: x)
def held(x, path):
    """Go on when the file is there: a computation that takes its time."""
    until_exists(path)
    return x


@pytest.fixture
def gate(tmp_path):
    """Where ranks wait until it is touched; also when a test fails."""
    yield tmp_path / "gate"
    (tmp_path / "gate").touch()


def number(mesh, value):
    """A tensor of the mesh, whose sum is the number."""
    with mesh.activate():
        return torch.tensor([value])


PLAIN = ("call", "call_one", "choose", "stream", "broadcast", "send")
WITH_TENSORS = ("call", "call_one", "broadcast", "rref")


@pytest.mark.parametrize("cls", [Log, AsyncLog])
def test_calls_with_and_without_tensors_in_turn(mesh, cls):
    one = mesh.slice(gpus=0)
    log = one.spawn("log", cls)
    port, _receiver = Channel.open()
    for value in range(60):
        if value % 2:
            adverb = PLAIN[value // 2 % len(PLAIN)]
            if adverb == "send":
                send(log.note, (value,), {}, port)
            else:
                getattr(log.note, adverb)(value)
        else:
            getattr(log.note, WITH_TENSORS[value // 2 % len(WITH_TENSORS)])(number(one, value))
    assert log.read.call_one().get(20) == list(range(60))


def test_what_follows_waits_for_the_computation_before(mesh, gate):
    log = mesh.spawn("log", Log)
    log.note.broadcast(held(number(mesh, 1), str(gate)))
    call = log.note.call(2)
    other = mesh.spawn("other", Log)
    other.note.call(3).get(20)  # another actor's messages do not wait
    assert not call.done()
    gate.touch()
    call.get(20)
    assert log.read.call().get(20).values() == [[1, 2]] * 4


def test_ranks_that_get_no_tensors_do_not_wait(mesh, gate):
    log = mesh.spawn("log", Log)
    pair = mesh.slice(gpus=slice(0, 2))
    log.slice(gpus=slice(0, 2)).note.broadcast(held(number(pair, 1), str(gate)))
    answers = log.note.stream(2)
    first = {next(answers).get(20), next(answers).get(20)}
    assert first == {2}
    assert log.slice(gpus=slice(2, 4)).read.call().get(20).values() == [[2]] * 2
    gate.touch()
    assert log.read.call().get(20).values() == [[1, 2], [1, 2], [2], [2]]


def test_computations_of_two_streams(mesh, gate):
    log = mesh.spawn("log", Log)
    log.note.broadcast(held(number(mesh, 1), str(gate)))
    with Stream("beside").activate():
        log.note.broadcast(number(mesh, 2))
    call = log.note.call(3)
    with Stream("beside").activate():
        log.note.broadcast(number(mesh, 4))
    assert not call.done()
    gate.touch()
    assert log.read.call().get(20).values() == [[1, 2, 3, 4]] * 4


def test_a_call_whose_tensors_have_failed_holds_nobody_up(mesh):
    log = mesh.spawn("log", Log)

    @remote(propagate=lambda x: x)
    def fail(x):
        raise ValueError("no")

    log.note.broadcast(fail(number(mesh, 1)))
    assert log.note.call(2).get(20).values() == [2] * 4
    assert log.read.call().get(20).values() == [[2]] * 4


def test_a_function_that_exits_holds_nobody_up(mesh):
    log = mesh.spawn("log", Log)

    @remote(propagate=lambda x: x)
    def leave(x):
        raise SystemExit(3)

    log.note.broadcast(leave(number(mesh, 1)))
    assert log.note.call(2).get(20).values() == [2] * 4
    assert inspect(number(mesh, 5)).tolist() == [5]


def test_a_concurrent_call_may_wait_for_what_follows_it(mesh):
    log = mesh.spawn("log", AsyncLog)
    waiting = log.wait.call(number(mesh, 4))
    log.open.call().get(20)
    assert waiting.get(20).values() == [4] * 4


@pytest.mark.parametrize("batches_before", [0, 3])
def test_an_interrupt_lets_what_follows_through(mesh, gate, tmp_path, batches_before):
    log = mesh.spawn("log", Log)
    began, goes_on = tmp_path / "began", tmp_path / "goes on"
    began.mkdir()

    @remote(propagate=lambda x: x)
    def endless(x):
        (began / str(os.getpid())).touch()
        until_exists(str(gate))
        return x

    for _ in range(batches_before):  # ranks are behind: what follows leaves as one batch
        held(number(mesh, 0), str(goes_on))
    first = log.note.call(endless(number(mesh, 1)))
    second = log.note.call(2)
    goes_on.touch()
    eventually(lambda: len(list(began.iterdir())) == 4, what="all ranks have begun")
    first.cancel()
    assert second.get(20).values() == [2] * 4
    with pytest.raises(CallCancelled):
        first.get(20)


def test_an_actor_that_ends_answers_what_waits(mesh, gate):
    log = mesh.spawn("log", Log)
    log.note.broadcast(held(number(mesh, 1), str(gate)))
    call = log.note.call(2)
    log.stop().get(20)
    with pytest.raises(SupervisionError, match="stopped"):
        call.get(20)


def test_the_order_holds_for_tensors_after_others(mesh):
    log = mesh.spawn("log", Log)
    x = numbered(mesh)
    for value in range(300):
        log.note.broadcast(value)
        log.note.broadcast(x)
    seen = log.read.call().get(20)
    for rank in range(4):
        expected = [each for value in range(300) for each in (value, 3 * rank)]
        assert seen.item(gpus=rank) == expected
