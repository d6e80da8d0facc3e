"""Functions that feed the ranks beside their commands, and objects that stay there."""

import gc
import threading

import pytest
import torch

from monarch_nb import RemoteException
from monarch_nb.tensor import (
    OpaqueRef,
    call_on_shard_and_fetch,
    create_pipe,
    inspect,
    remote,
    remote_generator,
)
from tests.support import eventually


def numbers(pipe, count, *, log=None):
    for at in range(count):
        if log is not None:
            (log / f"{pipe.ranks['gpus']}-{at}").touch()
        yield {"x": torch.full((2,), 100.0 * pipe.ranks["gpus"] + at), "of": pipe.sizes["gpus"]}


@remote_generator(numbers, max_messages=3)
def open_numbers(pipe, count, *, log=None):
    while True:
        yield {"x": torch.empty(2), "of": 4}


def echo(pipe):
    while True:
        value = pipe.recv()
        pipe.send(value["t"] * value["by"])


def promised_echo(pipe):
    while True:
        yield pipe.recv()["t"]


def failing(pipe):
    yield torch.zeros(1)
    raise ValueError("the file is gone")


def one_number(pipe):
    while True:
        yield torch.empty(1)


@remote(propagate="inspect")
def threads():
    return [each.name for each in threading.enumerate()]


def is_running(mesh, name):
    gc.collect()
    with mesh.activate():
        return name in call_on_shard_and_fetch(threads).get()


def test_one_value_after_another(mesh):
    with mesh.activate():
        pipe = open_numbers(5)
    first, second = pipe.recv(), pipe.recv()
    assert first["of"] == 4
    total = first["x"] + second["x"]
    assert inspect(total, gpus=0).tolist() == [1, 1]
    assert inspect(total, gpus=2).tolist() == [401, 401]


def test_it_runs_ahead_by_what_the_pipe_holds(mesh, tmp_path):
    with mesh.activate():
        pipe = open_numbers(100, log=tmp_path)
    for rank in range(4):  # three in the pipe, one to be put there
        eventually(lambda rank=rank: (tmp_path / f"{rank}-3").exists())
    inspect(pipe.recv()["x"])
    eventually((tmp_path / "0-4").exists)
    assert not (tmp_path / "0-5").exists()


def test_tensors_go_there_and_come_back(mesh):
    with mesh.activate():
        pipe = create_pipe(remote(echo, propagate=promised_echo))
        pipe.send({"t": torch.ones(3) * mesh.rank_tensor("gpus"), "by": 2})
        pipe.send({"t": torch.ones(2), "by": 3})
    assert inspect(pipe.recv(), gpus=3).tolist() == [6, 6, 6]
    second = pipe.recv()
    assert second.shape == (2,)
    assert inspect(second, gpus=3).tolist() == [3, 3]


def test_it_ends_with_its_pipe(mesh):
    with mesh.activate():
        pipe = create_pipe(remote(echo, propagate=promised_echo))
    eventually(lambda: is_running(mesh, "echo"))
    del pipe
    eventually(lambda: not is_running(mesh, "echo"))


def test_what_the_function_raises_comes_with_what_it_did_not_send(mesh):
    with mesh.activate():
        pipe = create_pipe(remote(failing, propagate=one_number))
    assert inspect(pipe.recv()).tolist() == [0]
    for _ in range(2):
        with pytest.raises(RemoteException, match="the file is gone"):
            inspect(pipe.recv())


def test_after_its_last_value(mesh):
    with mesh.activate():
        pipe = open_numbers(1)
    inspect(pipe.recv()["x"])
    with pytest.raises(RemoteException, match="the function of the pipe has returned"):
        inspect(pipe.recv()["x"])


def test_what_the_line_itself_tells(mesh):
    def rule(pipe):
        yield torch.empty(1)

    part = mesh.slice(gpus=0)
    with part.activate():
        elsewhere = torch.ones(1)
    with mesh.activate():
        for wrong in (echo, remote(echo), remote(echo, propagate=lambda pipe: torch.empty(1))):
            with pytest.raises(TypeError, match="create_pipe takes a remote function whose"):
                create_pipe(wrong)
        with pytest.raises(ValueError, match=r"gets no tensors of a mesh: send them"):
            open_numbers(torch.ones(1))
        with pytest.raises(ValueError, match="a pipe holds one value at least"):
            create_pipe(remote(echo, propagate=promised_echo), max_messages=0)
        pipe = create_pipe(remote(echo, propagate=rule))
        with pytest.raises(ValueError, match=r"the pipe of echo is on four \{gpus: 4\}"):
            pipe.send(elsewhere)
        pipe.send({"t": torch.ones(1), "by": 1})
        pipe.recv()
        with pytest.raises(RuntimeError, match="its propagate yields no more values"):
            pipe.recv()
    assert repr(pipe) == "<Pipe of echo on four {gpus: 4}>"
    with pytest.raises(ValueError, match="no device mesh is active"):
        create_pipe(remote(echo, propagate=promised_echo))


# ------------------------------------------------------------------------------------- OpaqueRef


class Source:
    """Neither can be pickled nor copied."""

    def __init__(self):
        self.lock = threading.Lock()
        self.at = 0

    def read(self):
        with self.lock:
            self.at += 1
            return torch.full((2,), float(self.at))


@remote(propagate=lambda: {"source": OpaqueRef(None)})
def opened():
    return {"source": OpaqueRef(Source())}


@remote(propagate=lambda source: torch.zeros(2))
def read(source):
    return source.value.read()


@remote(propagate="inspect")
def sources():
    gc.collect()
    return sum(type(each).__name__ == "Source" for each in gc.get_objects())


def test_an_object_stays_on_its_rank(mesh):
    with mesh.activate():
        source = opened()["source"]
        read(source)
        assert inspect(read(source), gpus=1).tolist() == [2, 2]
        with pytest.raises(RuntimeError, match="is on the ranks only"):
            source.value
        with pytest.raises(RuntimeError, match="is on the ranks only"):
            inspect(source).value
        assert call_on_shard_and_fetch(sources).get() == 1
        del source
        eventually(lambda: call_on_shard_and_fetch(sources).get() == 0)


# --------------------------------------------------------------------- what is read is local, too


def test_what_is_unpickled_inside_a_block_is_local(mesh, tmp_path):
    torch.save({"w": torch.ones(3)}, tmp_path / "w.pt")
    with mesh.activate():
        assert type(torch.load(tmp_path / "w.pt")["w"]) is torch.Tensor
        assert inspect(torch.empty(2, 0)).shape == (2, 0)
        assert inspect(torch.ones(2, dtype=torch.complex64).conj()).tolist() == [1, 1]
