"""Actors that are given tensors of a mesh: each gets what its own rank has."""

import os
import re

import pytest
import torch

from monarch_nb import Actor, ActorError, Channel, RemoteException, endpoint, send
from monarch_nb.tensor import call_on_shard_and_fetch, inspect, remote
from tests.actors.fragile import only
from tests.tensor.conftest import numbered


class Layer(Actor):
    def __init__(self, bias):
        self.bias = bias
        self.seen = []

    @endpoint(propagate=lambda x: x)
    def forward(self, x):
        return x + self.bias

    @endpoint(propagate=lambda: torch.zeros(3))
    def weights(self):
        self.own = torch.full((3,), float(self.bias))
        return self.own

    @endpoint
    def held(self):
        return self.own.tolist()

    @endpoint
    def describe(self, x, *, scale=1):
        self.seen.append(x.data_ptr())
        return {"sum": float(x.sum()) * scale, "pid": os.getpid(), "x": x}

    @endpoint
    def times_seen(self):
        return len(self.seen), len(set(self.seen))

    @endpoint(propagate=lambda x: x)
    def fail(self, x):
        raise ValueError(f"not {int(x.sum())}")

    @endpoint(propagate=lambda x: x)
    def unlike(self, x):
        return x[:1]

    @endpoint
    def no_rule(self):
        return torch.zeros(3)


class Async(Actor):
    @endpoint(propagate=lambda x: x)
    async def double(self, x):
        return x * 2


@pytest.fixture(scope="module")
def layers(mesh):
    return mesh.spawn("layers", Layer, 10)


def test_each_gets_its_own(mesh, layers):
    x = numbered(mesh)
    found = layers.describe.call(x, scale=2).get(10)
    assert [found.item(gpus=rank)["sum"] for rank in range(4)] == [0, 6, 12, 18]
    assert len({value["pid"] for _, value in found}) == 4
    assert found.item(gpus=3)["x"].tolist() == [3, 3, 3]


def test_a_slice(mesh, layers):
    x = numbered(mesh)
    one = layers.slice(gpus=2)
    assert one.describe.call_one(x.slice_mesh(gpus=2)).get(10)["sum"] == 6
    with pytest.raises(ValueError, match="requires exactly 1 rank"):
        layers.describe.call_one(x)


def test_the_result_stays_on_the_ranks(layers, mesh):
    x = numbered(mesh)
    y = layers.forward.rref(layers.forward.rref(x)) * 2
    assert y.shape == (3,)
    assert y.mesh.sizes == mesh.sizes
    assert inspect(y, gpus=1).tolist() == [42, 42, 42]


def test_an_async_actor(mesh):
    x = numbered(mesh)
    doubles = mesh.spawn("doubles", Async)
    assert inspect(doubles.double.rref(x), gpus=3).tolist() == [6, 6, 6]
    assert doubles.double.call(x).get(10).item(gpus=2).tolist() == [4, 4, 4]


def test_nothing_is_copied_between_the_actor_and_the_stream(layers, mesh):
    with mesh.activate():
        weights = layers.weights.rref()
    weights += 1
    inspect(weights)
    assert layers.held.call_one is not None
    assert layers.held.call().get(10).item(gpus=0) == [11, 11, 11]


def test_calls_take_their_turn_among_operations(mesh, layers):
    x = numbered(mesh)
    before = layers.times_seen.call().get(10).item(gpus=0)[0]
    for _ in range(5):
        layers.describe.broadcast(x)
        x += 1
    inspect(x)
    assert layers.times_seen.call().get(10).item(gpus=0)[0] == before + 5


def test_what_it_raises_comes_with_the_value(mesh, layers):
    x = numbered(mesh)
    call = layers.fail.call(x)
    y = layers.fail.rref(x)
    for failing in (call.get, lambda: inspect(y + 1)):
        with pytest.raises(RemoteException, match=r"layers\.fail failed on ranks 0-3") as raised:
            failing()
        assert "not 0" in str(raised.value)
        assert "in fail" in str(raised.value)
    assert inspect(layers.forward.rref(x)).tolist() == [10, 10, 10]


def test_a_promise_that_is_not_kept(mesh, layers):
    x = numbered(mesh)
    with pytest.raises(RemoteException, match=r"layers\.unlike returned a tensor of shape \(1,\)"):
        inspect(layers.unlike.rref(x))


def test_what_the_line_itself_tells(layers, mesh):
    x = numbered(mesh)
    with pytest.raises(TypeError, match="unexpected keyword argument 'size'"):
        layers.describe.call(x, size=1)
    with pytest.raises(ValueError, match=r"layers lives on other ranks"):
        layers.slice(gpus=0).describe.call(x)
    with mesh.activate(), pytest.raises(TypeError, match=r"@endpoint\(propagate="):
        layers.no_rule.rref()
    with pytest.raises(TypeError, match=r"lives on its ranks and cannot be pickled"):
        layers.describe.choose(x)


def test_one_result_of_a_call_on_all(mesh, layers):
    x = numbered(mesh)
    found = call_on_shard_and_fetch(layers.describe, x, shard={"gpus": 3}).get(10)
    assert found["sum"] == 9


def test_remote_functions_have_the_adverbs_too(mesh, tmp_path):
    x = numbered(mesh)

    @remote(propagate="inspect")
    def total(t):
        (tmp_path / str(int(t[0]))).touch()
        return float(t.sum())

    found = total.call(x).get(10)
    assert [found.item(gpus=rank) for rank in range(4)] == [0, 3, 6, 9]
    assert total.call_one(x.slice_mesh(gpus=1)).get(10) == 3
    with pytest.raises(ValueError, match="requires exactly 1 rank"):
        total.call_one(x)
    total.broadcast(x + 10)
    inspect(x)
    assert sorted(int(each.name) for each in tmp_path.iterdir()) == [0, 1, 2, 3, 10, 11, 12, 13]


def test_send_takes_tensors_too(mesh, layers):
    x = numbered(mesh)
    port, receiver = Channel.open_ranked()
    send(layers.forward, (x,), {}, port)
    found = dict(receiver.recv().get(10) for _ in range(4))
    assert [found[rank].tolist() for rank in range(4)] == [[10 + rank] * 3 for rank in range(4)]


# ------------------------------------------------------------------------------------- constructors


class Held(Actor):
    def __init__(self, weights, *, more):
        self.weights, self.more = weights, more["more"]

    @endpoint
    def read(self):
        return self.weights.tolist(), self.more.tolist()

    @endpoint
    def place(self):
        return self.weights.data_ptr()


def test_a_constructor_gets_what_its_rank_has(mesh):
    x = numbered(mesh)
    with mesh.activate():
        held = mesh.spawn("held", Held, x, more={"more": x + 1})
    found = held.read.call().get(20)
    for rank in range(4):
        assert found.item(gpus=rank) == ([rank] * 3, [rank + 1] * 3)


def test_what_it_gets_is_the_tensor_itself(mesh):
    x = numbered(mesh)
    held = mesh.spawn("held", Held, x, more={"more": x})
    held.initialized.get(20)
    x += 1
    inspect(x)
    assert held.read.call().get(20).item(gpus=2) == ([3] * 3, [3] * 3)


def test_a_constructor_on_a_slice(mesh):
    x = numbered(mesh)
    held = mesh.slice(gpus=slice(1, 3)).spawn("held", Held, x, more={"more": x})
    assert held.read.call().get(20).values() == [([1] * 3, [1] * 3), ([2] * 3, [2] * 3)]


def test_a_constructor_whose_tensor_has_failed_raises_that(mesh, failures):
    x = numbered(mesh)

    @remote(propagate=lambda x: x)
    def fail(x):
        raise ValueError("not this one")

    held = mesh.spawn("held", Held, fail(x), more={"more": x})
    error = held.initialized.exception(20)
    assert isinstance(error, ActorError)
    assert "not this one" in str(error)
    report = only(failures).report()
    assert re.search(r"fail failed on rank \d of four: ValueError: not this one", report)


def test_tensors_of_other_ranks_are_refused_at_the_line(mesh):
    x = numbered(mesh).slice_mesh(gpus=0)
    with pytest.raises(ValueError, match="held is spawned on ranks where its tensors are not"):
        mesh.spawn("held", Held, x, more={"more": x})
