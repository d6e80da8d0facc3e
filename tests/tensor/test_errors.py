"""What fails, and who is told: at the line that did it, or at the next fetch that needs it."""

import contextlib
import gc
import os
import pickle
import signal
import sys
import threading
from pathlib import Path

import pytest
import torch

from monarch_nb import CallCancelled, RemoteException, SupervisionError, this_host
from monarch_nb.process import current
from monarch_nb.services.transfer.mail import Mail
from monarch_nb.tensor import Stream, call_on_shard_and_fetch, fetch_shard, inspect, remote
from tests import inside
from tests.support import eventually, is_running, until_exists


@remote(propagate=lambda x: x)
def nope(x):
    raise ValueError("nope")


@remote(propagate=lambda x, _: x)
def picky(x, bad):
    if int(x[0]) == bad:
        raise ValueError(f"not {bad}")
    return x


def test_a_shape_that_does_not_fit_is_known_at_the_line(mesh, capfd):
    with mesh.activate():
        x = torch.ones(2, 3)
        with pytest.raises(RuntimeError, match="reduction dim") as caught:
            x @ x
        assert caught.value.__context__ is None, "nothing of ours is shown with it"
        with pytest.raises(RuntimeError, match="broadcastable"):
            x + torch.ones(4)
        assert inspect(x + 1).shape == (2, 3), "nothing was sent"
    assert capfd.readouterr().err == "", "PyTorch does not log what it raises"


def test_a_failure_comes_with_what_needs_it(mesh):
    with mesh.activate():
        x = torch.ones(3)
        bad = x[torch.tensor([7])]  # this line
        worse = bad * 2 + 1
        good = x + 1
    with pytest.raises(RemoteException) as caught:
        inspect(worse, gpus=2)
    error = caught.value
    assert isinstance(error.exception, IndexError)
    assert error.ranks == (0, 1, 2, 3)
    assert error.operation == "aten.index.Tensor"
    [(filename, line, function)] = error.controller_frames
    assert (filename, function) == (__file__, "test_a_failure_comes_with_what_needs_it")
    assert "# this line" in Path(__file__).read_text().splitlines()[line - 1]
    text = str(error)
    assert "aten.index.Tensor failed on ranks 0-3 of four" in text
    assert "bad = x[torch.tensor([7])]  # this line" in text
    assert "index 7 is out of bounds" in text
    assert "monarch_nb" not in text
    assert "torch/_ops" not in text
    assert inspect(good).tolist() == [2, 2, 2], "the rest goes on"
    with pytest.raises(RemoteException, match="index 7"):
        inspect(bad)


def test_a_failure_on_one_rank_is_told_whichever_is_fetched(mesh):
    with mesh.activate():
        x = picky(torch.ones(2) * mesh.rank_tensor("gpus"), 2) + 1
    for rank in (0, 2):
        with pytest.raises(RemoteException, match="picky failed on rank 2 of four") as caught:
            inspect(x, gpus=rank)
        assert caught.value.ranks == (2,)


def test_what_was_changed_by_a_failed_operation_has_failed(mesh):
    with mesh.activate():
        x = torch.ones(3)
        x[torch.tensor([9])] = 0
    with pytest.raises(RemoteException, match="index_put_"):
        inspect(x)


def test_a_failed_input_of_a_reduction_hangs_nobody_and_is_told(mesh):
    with mesh.activate():
        x = picky(torch.ones(2) * mesh.rank_tensor("gpus"), 1)
        total = x.reduce("gpus")
        fine = torch.ones(2).reduce("gpus")
    with pytest.raises(RemoteException, match="picky failed on rank 1 of four"):
        inspect(total, gpus=3)
    assert inspect(fine).tolist() == [4, 4]


def test_a_failure_travels_to_another_mesh(mesh, square):
    with mesh.activate():
        bad = nope(torch.ones(2))
    moved = bad.slice_mesh(gpus=1).to_mesh(square) + 1
    with pytest.raises(RemoteException, match="nope failed on rank 1 of four"):
        inspect(moved)


def test_values_are_not_here(mesh):
    with mesh.activate():
        x = torch.ones(3)
    for ask in (lambda: x.sum().item(), lambda: bool(x[0] > 0), lambda: float(x[0])):
        with pytest.raises(
            RuntimeError,
            match=r"item\(\) needs .* on the ranks. Bring one rank's home: fetch_shard",
        ):
            ask()
    for ask in (x.tolist, x.numpy):
        with pytest.raises(RuntimeError, match="Bring those of one home first"):
            ask()
    with pytest.raises(RuntimeError, match="depends on values"):
        x.nonzero()
    with pytest.raises(RuntimeError, match="depends on values"):
        x[x > 0]


def test_what_cannot_be_done_with_a_tensor_of_a_mesh(mesh, square):
    with mesh.activate():
        x = torch.ones(3)
    with square.activate():
        y = torch.ones(3)
    with pytest.raises(
        ValueError, match=r"of one mesh and stream, not of four .* and square .*to_mesh"
    ):
        x + y
    with pytest.raises(ValueError, match="would change a local tensor"):
        torch.zeros(3).add_(x)
    with pytest.raises(ValueError, match="requires a gradient"):
        x + torch.ones(3, requires_grad=True)
    with pytest.raises(TypeError, match="cannot be pickled; fetch_shard"):
        pickle.dumps(x)
    with pytest.raises(TypeError, match="one of a mesh only"):
        x.data = torch.zeros(3)
    with mesh.activate(), pytest.raises(ValueError, match="generator of the controller"):
        torch.rand(3, generator=torch.Generator())


@pytest.mark.parametrize(
    "coordinates, kind, text",
    [
        ({"zz": 0}, KeyError, "no axis 'zz'"),
        ({"dp": 0}, ValueError, "which rank on axis 'tp'"),
        ({"dp": 0, "tp": 2}, IndexError, "tp 0 to 1"),
        ({"dp": -1, "tp": 0}, IndexError, "dp 0 to 1"),
    ],
)
def test_coordinates_of_a_fetch(square, coordinates, kind, text):
    with square.activate():
        x = torch.ones(3)
    with pytest.raises(kind, match=text):
        fetch_shard(x, **coordinates)


def test_a_fetch_of_many(square, mesh):
    with square.activate():
        x = torch.ones(2) * square.rank_tensor("tp")
    found = inspect({"a": [x, 3], "b": (x + 1, "text")}, {"dp": 1, "tp": 1})
    assert (found["a"][0].tolist(), found["a"][1]) == ([1, 1], 3)
    assert (found["b"][0].tolist(), found["b"][1]) == ([2, 2], "text")
    assert fetch_shard({"plain": 1}).get() == {"plain": 1}
    with mesh.activate():
        y = torch.ones(2)
    with pytest.raises(ValueError, match="of one mesh and stream"):
        fetch_shard([x, y])


def test_an_interrupt_ends_what_ranks_run_and_the_rest_goes_on(mesh, tmp_path):
    gate, began = str(tmp_path / "gate"), tmp_path / "began"
    began.mkdir()

    @remote(propagate=lambda x: x)
    def endless(x):
        (began / str(os.getpid())).touch()
        until_exists(gate)
        return x

    with mesh.activate():
        x = torch.ones(2)
        stuck = endless(x) + 1
        after = x + 2
    waiting = fetch_shard(stuck)
    eventually(lambda: len(list(began.iterdir())) == 4, what="all ranks have begun")
    assert waiting.cancel()
    with pytest.raises(CallCancelled):
        waiting.get(timeout=10)
    with pytest.raises(RemoteException, match="endless failed on ranks 0-3") as caught:
        inspect(stuck)
    assert isinstance(caught.value.exception, KeyboardInterrupt)
    assert inspect(after).tolist() == [3, 3]


def test_an_interrupt_while_commands_are_issued_loses_none(mesh):
    main = threading.get_ident()
    with mesh.activate():
        x = torch.zeros(())
        issued = 0
        for _ in range(20):
            with contextlib.suppress(KeyboardInterrupt):
                threading.Timer(0.003, signal.pthread_kill, (main, signal.SIGINT)).start()
                while True:
                    x += 1
                    issued += 1
    # the one at hand may have been sent without being counted
    assert issued <= inspect(x, gpus=0) <= issued + 20
    assert inspect(x, gpus=0) == inspect(x, gpus=3)


def test_slices_are_told_apart(mesh):
    low, high = mesh.slice(gpus=slice(0, 2)), mesh.slice(gpus=3)
    with low.activate():
        x = torch.ones(2)
    with high.activate():
        y = torch.ones(2)
    assert repr(x) == "Tensor(float32[2] on four {gpus: 2}, ranks 0-1)"
    assert repr(y) == "Tensor(float32[2] on four, rank 3)"
    with pytest.raises(ValueError, match=r"not of four \{gpus: 2\}, ranks 0-1 and four, rank 3"):
        x + y


@pytest.mark.fault
def test_a_rank_that_is_lost(spawn, failures):
    mesh = spawn({"gpus": 2})
    with mesh.activate():
        x = torch.ones(3)
        inspect(x)
        os.kill(inside.pids(mesh)[1], signal.SIGKILL)
        with pytest.raises(SupervisionError, match="rank 1"):
            while True:
                inspect(x + 1)
        with pytest.raises(SupervisionError):
            for _ in range(1000):
                x = x + 1
        part = mesh.slice(gpus=0)
        with part.activate():
            assert inspect(torch.ones(2)).tolist() == [1, 1], "those that live go on"
    mesh.heal()
    with mesh.activate():
        y = torch.ones(2) * mesh.rank_tensor("gpus")
        assert inspect(y, gpus=1).tolist() == [1, 1]
        old = x + 1
        with pytest.raises(RemoteException, match="a rank of its mesh was lost since"):
            inspect(old, gpus=0)


@pytest.mark.fault
def test_a_rank_that_is_started_again_while_nobody_computes(spawn, failures):
    mesh = spawn({"gpus": 2})

    def of_all():
        with mesh.activate():
            return inspect((torch.ones(2) * 3).relu(), gpus=1).tolist()

    assert of_all() == [3, 3]
    os.kill(inside.pids(mesh)[1], signal.SIGKILL)
    eventually(lambda: inside.lost(mesh) == [1])
    mesh.heal()
    assert of_all() == [3, 3], "the new rank is told what the old one knew"


def test_a_mesh_that_is_stopped(spawn):
    mesh = spawn({"gpus": 2})
    with mesh.activate():
        x = torch.ones(3)
    mesh.stop().get()
    with pytest.raises(RuntimeError, match="stopped"):
        inspect(x + 1)
    with pytest.raises(RuntimeError, match="stopped"), mesh.activate():
        torch.ones(3)


def test_a_mesh_of_nobody_is_garbage_with_its_tensors():
    mesh = this_host().spawn_procs(per_host={"gpus": 1})
    with mesh.activate():
        x = torch.ones(3)
    assert inspect(x).tolist() == [1, 1, 1]
    [pid] = inside.pids(mesh).values()
    del mesh
    gc.collect()
    assert inspect(x + 1).tolist() == [2, 2, 2], "a tensor keeps its mesh"
    del x
    gc.collect()
    eventually(lambda: not is_running(pid), what="the rank has ended")


def test_what_comes_after_an_interrupt_is_thrown_away(mesh, tmp_path):
    gate = tmp_path / "gate"

    @remote(propagate=lambda x: x)
    def late(x):
        until_exists(str(gate))
        return x

    @remote(propagate="inspect")
    def waits():
        frames = sys._current_frames().values()
        return any(is_in(frame, "_awaited") for frame in frames)

    def is_in(frame, name):
        while frame is not None and frame.f_code.co_name != name:
            frame = frame.f_back
        return frame is not None

    @remote(propagate="inspect")
    def kept():
        return len(current.part(Mail))

    there, here = mesh.slice(gpus=0), mesh.slice(gpus=1)
    with there.activate():
        x = late(torch.ones(300_000))
    with here.activate():
        moved = x.to_mesh(here) + 1
        waiting = fetch_shard(moved)
        with Stream("watch").activate():
            eventually(lambda: call_on_shard_and_fetch(waits).get())
        assert waiting.cancel()
        with pytest.raises(RemoteException, match="to_mesh failed"):
            inspect(moved)
        gate.touch()
        assert inspect(x)[0] == 1
        assert inspect((x * 2).to_mesh(here))[0] == 2
        assert call_on_shard_and_fetch(kept).get() == 0
