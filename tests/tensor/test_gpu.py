"""Tensors of a mesh on GPUs: the same programs as on CPUs, compared with plain torch there."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from monarch_nb import Actor, ProcMesh, endpoint, this_host
from monarch_nb.tensor import Stream, inspect, to_mesh

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def pair(mesh_runtime) -> ProcMesh:
    """Two ranks, on one GPU if there is no other."""
    return this_host().spawn_procs(per_host={"gpus": 2}, name="pair")


def training():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.linspace(-1, 1, 64, device="cuda").reshape(8, 8)
    for _ in range(5):
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        optimizer.step()
    return loss, [*model.parameters()]


def test_training(pair):
    expected = training()
    with pair.activate():
        loss, parameters = training()
    assert loss.device.type == "cuda"
    found = inspect((loss, parameters), gpus=1)
    assert found[0].device.type == "cpu"
    torch.testing.assert_close(found[0], expected[0].detach().cpu(), atol=1e-4, rtol=1e-4)
    for one, other in zip(found[1], expected[1], strict=True):
        torch.testing.assert_close(one, other.detach().cpu(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("size", [3, 3_000_000])
def test_from_rank_to_rank(pair, size):
    first, second = pair.slice(gpus=0), pair.slice(gpus=1)
    with first.activate():
        x = torch.arange(size, device="cuda", dtype=torch.float32)
        moved = to_mesh(x * 2, second)
        x.zero_()
    assert moved.device.type == "cuda"
    assert torch.equal(inspect(moved + 1), torch.arange(size) * 2.0 + 1)


def test_a_borrow_waits_for_what_the_gpu_was_asked_before(pair):
    side = Stream("side")
    with pair.activate():
        a = torch.rand(2048, 2048, device="cuda")
        product = a @ a @ a
        lent, loan = side.borrow(product, mutable=True)
        with loan:
            lent.mul_(0).add_(3)
        total = product.sum()
    assert inspect(total).item() == 3 * 2048 * 2048


class Member(Actor):
    @endpoint
    def total(self, group):
        x = torch.ones(3, device="cuda")
        dist.all_reduce(x, group=group)
        return x.tolist(), dist.get_backend(group)


def test_a_group_of_one_rank_is_of_nccl(mesh_runtime):
    one = this_host().spawn_procs(per_host={"gpus": 1}, name="one")
    found = one.spawn("members", Member).total.call_one(one.group("gpus")).get(60)
    assert found[0] == [1, 1, 1]
    assert "nccl" in found[1]
    one.stop().get(20)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL wants a GPU for each rank")
def test_reduce_by_nccl(pair):
    with pair.activate():
        x = torch.ones(3, device="cuda") * (pair.rank_tensor("gpus") + 1)
        total = x.reduce("gpus", "sum")
    assert inspect(total).tolist() == [3, 3, 3]
