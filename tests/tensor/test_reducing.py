"""Reductions over axes of a mesh, slices of tensors, and tensors on other meshes."""

import pytest
import torch

from monarch_nb.process import current
from monarch_nb.tensor import (
    call_on_shard_and_fetch,
    inspect,
    reduce,
    reduce_,
    remote,
    slice_mesh,
    to_mesh,
)
from monarch_nb.tensor.moving import between_meshes
from tests.support import eventually

same = torch.testing.assert_close


def values(square, dtype=torch.float32):
    """A tensor of each rank of the square, and those of all by (dp, tp)."""
    with square.activate():
        there = (torch.arange(4) + 10 * square.rank_tensor(("dp", "tp"))).to(dtype).reshape(2, 2)
    here = {
        (dp, tp): (torch.arange(4) + 10 * (2 * dp + tp)).to(dtype).reshape(2, 2)
        for dp in range(2)
        for tp in range(2)
    }
    return there, here


def everywhere(square, tensor):
    return {(dp, tp): inspect(tensor, dp=dp, tp=tp) for dp in range(2) for tp in range(2)}


PLAIN = {
    "sum": sum,
    "avg": lambda parts: sum(parts) / len(parts),
    "product": lambda parts: torch.stack(parts).prod(0),
    "min": lambda parts: torch.stack(parts).amin(0),
    "max": lambda parts: torch.stack(parts).amax(0),
    "stack": torch.stack,
}


@pytest.mark.parametrize("axis", ["dp", "tp"])
@pytest.mark.parametrize("reduction", PLAIN)
def test_along_one_axis(square, reduction, axis):
    there, here = values(square)
    found = everywhere(square, there.reduce(axis, reduction))
    for (dp, tp), value in found.items():
        line = [here[at, tp] if axis == "dp" else here[dp, at] for at in range(2)]
        same(value, PLAIN[reduction](line))


@pytest.mark.parametrize("reduction", ["sum", "max", "stack"])
def test_scattered(square, reduction):
    there, here = values(square)
    found = everywhere(square, reduce(there, "tp", reduction, scatter=True))
    for (dp, tp), value in found.items():
        line = [here[dp, 0], here[dp, 1]]
        wanted = torch.stack([each[tp] for each in line])
        same(value, wanted if reduction == "stack" else PLAIN[reduction](line)[tp])


@pytest.mark.parametrize("dims", [(), ("dp", "tp"), ("tp", "dp")])
def test_along_all_axes(square, dims):
    there, here = values(square)
    for value in everywhere(square, there.reduce(dims, "sum")).values():
        same(value, sum(here.values()))


@pytest.mark.parametrize("reduction", ["band", "bor", "bxor"])
def test_bits(square, reduction):
    there, here = values(square, torch.int64)
    plain = {"band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}
    value = inspect(there.reduce("tp", reduction), dp=1, tp=0)
    same(value, plain[reduction](here[1, 0], here[1, 1]))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.bfloat16, torch.float64])
def test_dtypes(square, dtype):
    with square.activate():
        x = torch.ones(3).to(dtype)
    assert inspect(x.reduce("dp", "max")).dtype is dtype
    assert inspect(x.reduce("dp", "stack")).shape == (2, 3)


def test_what_is_reduced_is_left_alone_and_in_place_is_not(square):
    there, here = values(square)
    total = there.reduce("dp")
    same(inspect(there, dp=0, tp=0), here[0, 0])
    assert reduce_(there, "dp") is there
    same(inspect(there, dp=0, tp=0), inspect(total, dp=0, tp=0))
    with square.activate():
        out = torch.empty(2, 2, 2)
    there, here = values(square)
    assert there.reduce("tp", "stack", out=out) is out
    same(inspect(out, dp=1, tp=0), torch.stack([here[1, 0], here[1, 1]]))


def test_trees_of_tensors(square):
    there, here = values(square)
    found = inspect(reduce({"a": [there], "b": 3}, "tp"), dp=0, tp=1)
    same(found["a"][0], here[0, 0] + here[0, 1])
    assert found["b"] == 3


def test_the_result_on_a_slice(square):
    there, here = values(square)
    total = there.reduce("dp", mesh=square.slice(dp=0))
    assert list(total.mesh.sizes) == ["tp"]
    same(inspect(total, tp=1), here[0, 1] + here[1, 1])


@pytest.mark.parametrize(
    "arguments, kind, text",
    [
        ({"dims": "zz"}, KeyError, "dim zz not found in square"),
        ({"dims": ("dp", "dp")}, ValueError, "the same dimension twice"),
        ({"dims": "dp", "reduction": "mean"}, ValueError, "reductions are stack, sum, avg"),
        ({"dims": ("dp", "tp"), "reduction": "stack"}, ValueError, "multiple dimensions"),
        ({"dims": ("dp", "tp"), "scatter": True}, ValueError, "multiple dimensions"),
        (
            {"dims": "dp", "reduction": "bor"},
            TypeError,
            "takes integers or bools, not torch.float32",
        ),
    ],
)
def test_what_cannot_be_reduced(square, arguments, kind, text):
    there, _ = values(square)
    with pytest.raises(kind, match=text):
        there.reduce(**arguments)


def test_shapes_that_do_not_fit_a_reduction(square):
    with square.activate():
        x, whole = torch.ones(3), torch.ones(3, dtype=torch.int64)
    with pytest.raises(TypeError, match="must match the size of the axis, 2"):
        x.reduce("dp", scatter=True)
    with pytest.raises(TypeError, match=r"'avg' takes floats.*t.float\(\)"):
        whole.reduce("dp", "avg")
    with pytest.raises(
        ValueError, match=r"would be float32\[2, 3\], and the tensor is float32\[3\]"
    ):
        x.reduce_("dp", "stack")
    with pytest.raises(ValueError, match=r"would be float32\[3\], and the tensor is int64\[3\]"):
        x.reduce("dp", out=whole)
    with pytest.raises(TypeError, match=r"does not work with autograd.*t.detach\(\)"):
        x.clone().requires_grad_().reduce("dp")


def test_gradients_are_averaged_as_data_parallel_training_does(square):
    torch.manual_seed(0)
    weight, batches = torch.randn(3), torch.randn(4, 5, 3)
    with square.activate():
        w = torch.zeros(3)
        w.copy_(weight)
        w.requires_grad_()
        mine = torch.zeros(4, 5, 3).copy_(batches)[square.rank_tensor(("dp", "tp"))[None]][0]
        ((mine @ w) ** 2).mean().backward()
        reduce_(w.grad, (), "avg")
    local = weight.clone().requires_grad_()
    torch.stack([((each @ local) ** 2).mean() for each in batches]).mean().backward()
    same(inspect(w.grad, dp=1, tp=1), local.grad)


def test_a_slice_is_the_same_tensor_on_fewer_ranks(square):
    there, here = values(square)
    part = slice_mesh(there, dp=1)
    assert list(part.mesh.sizes) == ["tp"]
    same(inspect(part, tp=0), here[1, 0])
    part += 1
    same(inspect(there, dp=1, tp=0), here[1, 0] + 1)
    same(inspect(there, dp=0, tp=0), here[0, 0])
    with pytest.raises(TypeError, match="zz"):
        slice_mesh(there, zz=0)
    with pytest.raises(ValueError, match="of one mesh"):
        part + there


def test_to_another_mesh_rank_by_rank(square, mesh):
    with mesh.activate():
        x = torch.ones(2, 3).T * mesh.rank_tensor("gpus")
    four = square.flatten("gpus")
    moved = x.to_mesh(four)
    assert moved.shape == (3, 2)
    for rank in range(4):
        same(inspect(moved, gpus=rank), torch.full((3, 2), float(rank)))
    x.zero_()
    assert inspect(moved, gpus=3).sum() == 18, "a copy"


def test_to_a_mesh_with_more_axes(square):
    there, here = values(square)
    spread = there.slice_mesh(tp=1).to_mesh(square)
    for (dp, _), value in everywhere(square, spread).items():
        same(value, here[dp, 1])
    pair = to_mesh([there.slice_mesh(dp=0, tp=1), 5], square)
    same(inspect(pair, dp=1, tp=0), [here[0, 1], 5])


def test_to_a_mesh_that_does_not_fit(square, mesh):
    there, _ = values(square)
    with pytest.raises(ValueError, match=r"does not have dimensions .*t.slice_mesh\(dp=0\)"):
        there.to_mesh(mesh)
    with mesh.activate():
        x = torch.ones(3)
    with pytest.raises(ValueError, match="has a different length"):
        x.to_mesh(square.rename(dp="gpus"))


def test_what_has_moved_is_contiguous(square, mesh):
    with mesh.activate():
        x = torch.arange(6).reshape(2, 3).T + mesh.rank_tensor("gpus")
    for target in (square.flatten("gpus"), mesh):
        moved = x.to_mesh(target)
        assert moved.is_contiguous()
        assert inspect(moved.view(-1), gpus=1).tolist() == [1, 4, 2, 5, 3, 6]


@remote(propagate="inspect")
def move_one_sided(*, on):
    (between_meshes.one_sided.add if on else between_meshes.one_sided.discard)("cpu")


@remote(propagate="inspect")
def buffers():
    return current.runtime().buffers.statistics()["buffers"]


def test_memory_that_its_receiver_copies(square, mesh):
    """As it is done between GPUs."""
    with mesh.activate():
        move_one_sided(on=True)
        x = torch.ones(3, 2, dtype=torch.bfloat16).T * mesh.rank_tensor("gpus")
        scalar, empty, flag = mesh.rank_tensor("gpus"), torch.zeros(0, 2), torch.ones(1) > 0
        moved = to_mesh([x, scalar, empty, flag], square.flatten("gpus"))
        x.zero_()
        found = inspect(moved, gpus=3)
        assert [each.tolist() for each in found] == [[[3.0] * 3] * 2, 3, [], [True]]
        spread = to_mesh(x.slice_mesh(gpus=slice(0, 1)) + 5, mesh.slice(gpus=slice(1, 2)))
        assert inspect(spread).tolist() == [[5.0] * 3] * 2
        move_one_sided(on=False)
        eventually(lambda: call_on_shard_and_fetch(buffers).get() == 0)


def test_a_pipeline_over_slices(square):
    torch.manual_seed(2)
    first, second = torch.randn(4, 4), torch.randn(4, 4)
    x = torch.randn(3, 4)
    with square.slice(dp=0).activate():
        hidden = torch.relu(torch.zeros(3, 4).copy_(x) @ torch.zeros(4, 4).copy_(first))
    with square.slice(dp=1).activate():
        out = hidden.to_mesh(square.slice(dp=1)) @ torch.zeros(4, 4).copy_(second)
    same(inspect(out, tp=1), torch.relu(x @ first) @ second)
