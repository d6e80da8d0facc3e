"""Functions of the user's that ranks run among the operations of torch."""

import pytest
import torch

from monarch_nb import ActorError, Channel, EncodeError, RemoteException, send
from monarch_nb.tensor import call_on_shard_and_fetch, inspect, remote
from tests.support import eventually


@remote(propagate=lambda x: x)
def doubled(x):
    return x * 2


@remote
def sorted_with_flag(x, *, flag):
    return {"values": x.sort().values, "flag": flag, "count": len(x)}


def test_what_is_promised_is_there_at_once(mesh):
    with mesh.activate():
        x = torch.ones(3) * mesh.rank_tensor("gpus")
        y = doubled(x) + 1
    assert y.shape == (3,)
    assert inspect(y, gpus=3).tolist() == [7, 7, 7]


def test_a_rank_is_asked_where_nothing_is_promised(mesh):
    with mesh.activate():
        x = torch.tensor([3.0, 1.0, 2.0])
        found = sorted_with_flag(x, flag=True)
    assert (found["flag"], found["count"], found["values"].shape) == (True, 3, (3,))
    assert inspect(found, gpus=1)["values"].tolist() == [1, 2, 3]


def test_it_is_asked_once_for_each_kind(mesh, tmp_path):
    log = tmp_path / "log"

    @remote
    def logged(x):
        with log.open("a") as file:
            file.write(f"{type(x).__name__}\n")
        return x

    part = mesh.slice(gpus=slice(0, 1))
    with part.activate():
        for size in (2, 2, 3):
            inspect(logged(torch.ones(size)))
    fakes = [line for line in log.read_text().split() if line == "FakeTensor"]
    assert len(fakes) == 2


def test_no_result(mesh, tmp_path):
    @remote(propagate="inspect")
    def write(x):
        (tmp_path / f"{int(x)}").touch()

    with mesh.activate():
        assert write(mesh.rank_tensor("gpus")) is None
        inspect(torch.ones(1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "3"]


def test_by_name(mesh):
    with mesh.activate():
        x = torch.ones(2)
        y = remote("torch.special.expit", propagate=lambda x: x)(x)
        assert inspect(y).tolist() == pytest.approx([0.73106, 0.73106], abs=1e-4)
        with pytest.raises(RemoteException, match="torch.no_such failed on ranks 0-3"):
            inspect(remote("torch.no_such", propagate=lambda x: x)(x))


def test_arguments_in_any_shape(mesh):
    @remote(propagate=lambda pair, *, rest: [pair[0], rest["c"]])
    def picked(pair, *, rest):
        return [pair[0] + pair[1], rest["c"] * rest["k"]]

    with mesh.activate():
        a, b, c = torch.ones(2), torch.ones(2), torch.ones(3)
        found = picked((a, b), rest={"c": c, "k": 5})
    assert [each.tolist() for each in inspect(found)] == [[2, 2], [5, 5, 5]]


def test_autograd_inside_and_outside(mesh):
    @remote(propagate=lambda x: x)
    def slope(x):
        x = x.detach().requires_grad_()
        [grad] = torch.autograd.grad((x**2).sum(), x)
        return grad

    with mesh.activate():
        x = torch.ones(2)
        assert inspect(slope(x)).tolist() == [2, 2]
        with pytest.raises(TypeError, match=r"does not work with autograd.*t.detach\(\)"):
            slope(x.requires_grad_())


def test_promises_that_are_not_kept(mesh):
    wrong_shape = remote(lambda x: x[:1], propagate=lambda x: x)
    wrong_count = remote(lambda x: (x, x), propagate=lambda x: x)
    with mesh.activate():
        x = torch.ones(3)
        with pytest.raises(
            RemoteException, match=r"of shape \(1,\), where `propagate` promised \(3,\)"
        ):
            inspect(wrong_shape(x))
        with pytest.raises(RemoteException, match="returned 2 tensors, where 1 were promised"):
            inspect(wrong_count(x))


def test_output_of_a_function_is_shown(mesh, capfd):
    @remote(propagate="inspect")
    def say(x):
        print("rank says", int(x))

    with mesh.activate():
        say(mesh.rank_tensor("gpus"))
        inspect(torch.ones(1))
    seen = ""

    def all_said():
        nonlocal seen
        seen += capfd.readouterr().out
        return all(f"rank says {rank}" in seen for rank in range(4))

    eventually(all_said)


def test_any_value_of_one_rank(square):
    @remote
    def facts(x, word):
        return {"sum": x.sum(), "word": word, "type": type(x).__name__}

    with square.activate():
        x = torch.ones(2) * square.rank_tensor("tp")
    found = call_on_shard_and_fetch(facts, x, "w", shard={"dp": 0, "tp": 1}).get()
    assert found == {"sum": torch.tensor(2.0), "word": "w", "type": "Tensor"}
    with pytest.raises(TypeError, match="takes a remote function"):
        call_on_shard_and_fetch(print, x)


def test_what_cannot_be_sent_fails_at_the_line(mesh):
    with mesh.activate():
        x = torch.ones(2)
        with pytest.raises(EncodeError, match=r"args\[1\]"):
            remote(lambda x, file: x, propagate=lambda x, file: x)(x, (i for i in ()))
        assert inspect(x).tolist() == [1, 1]


def test_what_remote_takes(mesh):
    with pytest.raises(ValueError, match="propagate is None"):
        remote(print, propagate="guess")
    with pytest.raises(NotImplementedError, match="mocked"):
        remote(print, propagate="mocked")
    with pytest.raises(ValueError, match="no device mesh is active"):
        doubled(torch.ones(2))


def test_send_gives_the_answers_to_a_port(mesh):
    port, receiver = Channel.open_ranked()

    @remote(propagate=lambda x: x)
    def total(x):
        return float(x.sum())

    with mesh.activate():
        x = torch.ones(3) * mesh.rank_tensor("gpus")
    send(total, (x,), {}, port)
    assert sorted(receiver.recv().get(10) for _ in range(4)) == [(r, 3.0 * r) for r in range(4)]
    send(total, (x,), {}, port, selection="choose")
    rank, value = receiver.recv().get(10)
    assert value == 3 * rank
    with pytest.raises(ValueError, match=r'selection is "all" or "choose"'):
        send(total, (x,), {}, port, selection="some")


def test_send_without_a_port_waits_for_nobody(mesh, tmp_path):
    @remote(propagate="inspect")
    def touch(x):
        (tmp_path / str(int(x[0]))).touch()

    with mesh.activate():
        x = torch.ones(3) * mesh.rank_tensor("gpus")
    send(touch, (x,), {})
    inspect(x)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["0", "1", "2", "3"]


def test_what_a_sent_function_raises_comes_to_the_port(mesh):
    port, receiver = Channel.open_ranked()

    @remote(propagate=lambda x: x)
    def fail(x):
        raise ValueError("no")

    with mesh.activate():
        x = torch.ones(3)
    send(fail, (x,), {}, port)
    for _ in range(4):
        with pytest.raises(ValueError, match="no"):
            receiver.recv().get(10)
    send(doubled, (fail(x),), {}, port)
    for _ in range(4):
        with pytest.raises(ActorError, match="no"):
            receiver.recv().get(10)
