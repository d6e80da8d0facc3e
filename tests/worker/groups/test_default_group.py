"""`torch.distributed` in cells with no boilerplate, and groups of some ranks of the mesh."""

import os
import signal

import pytest

from tests import inside
from tests.control.conftest import WITHIN_S

USES = {
    "all_reduce": "x = torch.ones(3) * rank; dist.all_reduce(x); assert x.tolist() == [6.0] * 3",
    "barrier": "dist.barrier(); assert dist.is_initialized()",
    "new_group": "g = dist.new_group([0, 1, 2, 3]); x = torch.ones(1)\n"
    "dist.all_reduce(x, group=g); assert x.item() == 4",
    "own_init": "if not dist.is_initialized(): dist.init_process_group('gloo')\ndist.barrier()",
    "own_init_after": "dist.barrier(); dist.init_process_group('gloo'); dist.barrier()",
    "object": "o = [rank]; dist.broadcast_object_list(o, 0); assert o == [0]",
    "ddp": "torch.manual_seed(0); m = torch.nn.Linear(3, 1); p = copy.deepcopy(m)\n"
    "d = torch.nn.parallel.DistributedDataParallel(m); x = torch.arange(12.).view(4, 3)\n"
    "d(x[rank:rank + 1]).square().mean().backward(); p(x).square().mean().backward()\n"
    "torch.testing.assert_close(m.weight.grad, p.weight.grad)",
    "fully_shard": "from torch.distributed.fsdp import fully_shard\n"
    "torch.manual_seed(0); m = torch.nn.Linear(3, 4); p = copy.deepcopy(m); fully_shard(m)\n"
    "x = torch.arange(12.).view(4, 3)\n"
    "m(x[rank:rank + 1]).square().mean().backward(); p(x).square().mean().backward()\n"
    "torch.testing.assert_close(m.weight.grad.full_tensor(), p.weight.grad)",
    "dtensor": "from torch.distributed.device_mesh import init_device_mesh\n"
    "from torch.distributed.tensor import Replicate, Shard, distribute_tensor\n"
    "m = init_device_mesh('cpu', (2, 2), mesh_dim_names=('a', 'b'))\n"
    "x = torch.arange(16.).view(4, 4); d = distribute_tensor(x, m, [Shard(0), Shard(1)])\n"
    "torch.testing.assert_close((d @ d.T).full_tensor(), x @ x.T)\n"
    "r = d.redistribute(m, [Replicate(), Shard(0)]); assert r.to_local().shape == (2, 4)",
    "checkpoint": "import torch.distributed.checkpoint as dcp\n"
    "s = {{'w': torch.arange(5.)}}; dcp.save(s, checkpoint_id={path!r})\n"
    "t = {{'w': torch.zeros(5)}}; dcp.load(t, checkpoint_id={path!r})\n"
    "assert torch.equal(s['w'], t['w']) and dist.is_initialized()",
    "sampler": "from torch.utils.data import DistributedSampler\n"
    "assert list(DistributedSampler(range(8), shuffle=False)) == [rank, rank + 4]",
}
HEAD = "import copy, torch\nimport torch.distributed as dist\n"
OF = (
    HEAD
    + "from monarch_nb.process import current\ngroup_of = current.runtime().membership.group_of\n"
)
ROW = OF + "row = [0, 1] if rank < 2 else [2, 3]\ng = group_of(row)\n"
VERBS = {
    "all_reduce": "dist.all_reduce(x, group=g); assert x.item() == sum(row)",
    "all_gather": "o = [torch.empty(1), torch.empty(1)]; dist.all_gather(o, x, group=g)\n"
    "assert torch.cat(o).tolist() == row",
    "broadcast": "dist.broadcast(x, row[1], group=g); assert x.item() == row[1]",
    "reduce": "dist.reduce(x, row[0], group=g); assert rank != row[0] or x.item() == sum(row)",
    "scatter": "o = [torch.ones(1), torch.ones(1) * 2] if rank == row[0] else None\n"
    "dist.scatter(x, o, row[0], group=g); assert x.item() == row.index(rank) + 1",
    "reduce_scatter": "o = torch.empty(1); dist.reduce_scatter_tensor(o, x.repeat(2), group=g)\n"
    "assert o.item() == sum(row)",
    "all_to_all": "o = torch.empty(2); dist.all_to_all_single(o, x.repeat(2), group=g)\n"
    "assert o.tolist() == row",
    "send_recv": "go, peer = (dist.send, row[1]) if rank == row[0] else (dist.recv, row[0])\n"
    "go(x, peer, group=g); assert x.item() == row[0]",
    "barrier": "dist.barrier(group=g)",
    "functional": "import torch.distributed._functional_collectives as f\n"
    "assert f.all_reduce(x, 'sum', g).item() == sum(row)",
}  # fmt: skip


def errors(run) -> dict[int, str]:
    return {rank: str(each.error) for rank, each in run.outcomes.items() if each.status != "ok"}


def ok(made, code: str, **where: int) -> None:
    run = made.start(code, **where)
    assert run.wait(WITHIN_S), run
    assert not errors(run)


@pytest.fixture
def four(mesh):
    return mesh(4)


@pytest.mark.slow
@pytest.mark.parametrize("what", USES)
def test_a_cell_needs_no_boilerplate(four, what, tmp_path):
    code = USES[what].format(path=str(tmp_path)) if what == "checkpoint" else USES[what]
    ok(four, HEAD + code)


INTERRUPTED_BEFORE_IT_WAITS = """
from monarch_nb.worker.groups.meeting.keys import Keys
ask = Keys.missing
def interrupted(*args):
    Keys.missing = ask
    raise KeyboardInterrupt
Keys.missing = interrupted
dist.init_process_group("gloo")
"""


@pytest.mark.parametrize("by", ["dist.init_process_group('gloo')", "dist.barrier()"])
def test_an_init_that_is_interrupted_before_it_waits_is_as_none(mesh, by):
    two = mesh(2)
    run = two.start(HEAD + INTERRUPTED_BEFORE_IT_WAITS, gpus=0)
    assert run.wait(WITHIN_S), run
    assert run.outcomes[0].status != "ok"
    ok(two, HEAD + f"{by}; x = torch.ones(1); dist.all_reduce(x); assert x.item() == 2")


def test_who_only_asks_waits_for_nobody(four):
    ok(four, HEAD + "assert (dist.get_rank(), dist.get_world_size()) == (3, 4)", gpus=3)
    ok(four, HEAD + "assert not dist.is_initialized()")


@pytest.mark.slow
@pytest.mark.parametrize("what", VERBS)
def test_a_row_of_a_mesh_has_every_collective(four, what):
    ok(four, ROW + "x = torch.ones(1) * rank\n" + VERBS[what])
    ok(four, "assert not dist.is_initialized() and group_of(row) is g")


@pytest.mark.slow
def test_a_device_mesh_is_made_of_such_groups(four):
    code = (
        "from torch.distributed.device_mesh import DeviceMesh\n"
        "from torch.distributed.tensor import Shard, distribute_tensor\n"
        "column = [rank % 2, rank % 2 + 2]\n"
        "m = DeviceMesh.from_group([group_of(column), g], 'cpu',\n"
        "    mesh=torch.arange(4).view(2, 2), mesh_dim_names=('a', 'b'))\n"
        "x = torch.arange(16.).view(4, 4); d = distribute_tensor(x, m, [Shard(0), Shard(1)])\n"
        "torch.testing.assert_close((d @ d.T).full_tensor(), x @ x.T)"
    )
    ok(four, ROW + code)


def test_a_group_made_in_another_thread(four):
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def go():\n    x = torch.ones(1); g = group_of([0, 1, 2, 3])\n"
        "    dist.all_reduce(x, group=g); return x.item()\n"
        "with ThreadPoolExecutor(1) as pool: assert pool.submit(go).result() == 4"
    )
    ok(four, OF + code)


def test_a_rank_that_does_not_come_is_named(four):
    code = OF + "group_of([0, 2], timeout=0.5)"
    run = four.start(code, gpus=0)
    assert run.wait(WITHIN_S)
    assert "rank 2 did not come to the group of ranks 0,2" in errors(run)[0]
    run = four.start(OF + "group_of([1, 2])", gpus=0)
    assert run.wait(WITHIN_S)
    assert "rank 0 is not in the group of ranks [1, 2]" in errors(run)[0]


@pytest.mark.fault
def test_a_member_dies_and_after_a_heal_the_cell_works_again(four):
    both = "x = torch.ones(1); dist.all_reduce(x, group=g); dist.all_reduce(x)"
    ok(four, ROW + both)
    run = four.start("if rank != 3: dist.barrier()")
    os.kill(inside.pids(four.procs)[3], signal.SIGKILL)
    assert run.wait(WITHIN_S)
    assert {0, 1, 2} <= set(errors(run))
    four.procs.heal()
    ok(four, ROW + both)
