"""Process groups along the axes of a mesh: in cells, in endpoints, in functions of `execute`."""

import os
import pickle
import signal
import time
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from monarch_nb import Actor, ActorError, endpoint
from monarch_nb.control.hangs.collectives import Xray
from monarch_nb.core.hangs.collectives import disagreement
from tests import inside
from tests.control.conftest import WITHIN_S, Mesh
from tests.support import eventually

HEAD = "import torch\nimport torch.distributed as dist\n"
SUM = HEAD + "x = torch.ones(1) * rank; dist.all_reduce(x, group={}); assert x.item() == {}, x"


class Member(Actor):
    """Uses groups that it is given, or makes them of a mesh that it is given."""

    @endpoint
    def total(self, group) -> float:
        x = torch.ones(1) * dist.get_rank()
        dist.all_reduce(x, group=group)
        return x.item()

    @endpoint
    def total_of(self, mesh, dims) -> float:
        x = torch.ones(1) * dist.get_rank()
        dist.all_reduce(x, group=mesh.group(dims))
        return x.item()

    @endpoint
    def receive(self, group) -> None:
        dist.recv(torch.ones(1), group_src=1, group=group)

    @endpoint
    def rank(self) -> int:
        return dist.get_rank()

    @endpoint
    def axes(self, mesh) -> tuple:
        found = mesh.device_mesh()
        return found.mesh_dim_names, found["b"].get_group().size()


@pytest.fixture
def grid(mesh) -> Iterator[Mesh]:
    """Ranks 0 1 / 2 3 on axes `a` and `b`."""
    flat = mesh(4)
    procs = flat.procs.split(gpus=("a", "b"), b=2)
    made = Mesh(procs, None)
    yield made
    for run in made.runs:
        run.interrupt()


def ran(made: Mesh, code: str, **where: object) -> dict[int, str]:
    run = made.start(code, **where)
    assert run.wait(WITHIN_S), run
    return {rank: str(each.error) for rank, each in run.outcomes.items() if each.status != "ok"}


def sums(found) -> list[float]:
    return list(found.values())


def test_a_handle_shows_what_it_is_and_what_to_do_with_it(grid):
    handle = grid.procs.group("a")
    assert repr(handle) == f"AxisGroup(a: 2 ranks of mesh {grid.name!r})"
    assert repr(grid.procs.group()) == f"AxisGroup(a, b: 4 ranks of mesh {grid.name!r})"
    assert repr(grid.procs.slice(a=0, b=1).group()) == f"AxisGroup(1 rank of mesh {grid.name!r})"
    assert pickle.loads(pickle.dumps(handle)) == handle
    assert grid.procs.group(("a", "b")) != handle
    with pytest.raises(RuntimeError, match="is a handle here: collectives run on the ranks"):
        dist.all_reduce(torch.ones(1), group=handle)
    with pytest.raises(KeyError, match="no axis 'c'; its axes are a, b"):
        grid.procs.group("c")


def test_a_variable_of_cells_is_the_group(grid):
    grid.procs["g"], grid.procs["all"] = grid.procs.group("b"), grid.procs.group()
    assert not ran(grid, SUM.format("g", "[1, 1, 5, 5][rank]"))
    assert not ran(grid, SUM.format("all", "6") + "\nassert isinstance(g, dist.ProcessGroup)")
    assert not ran(grid, "assert not dist.is_initialized()")
    assert not ran(grid, "assert dist.get_rank(g) == rank % 2 and dist.get_world_size(g) == 2")


def test_mesh_is_known_in_cells(grid):
    own = SUM.format("mesh.group('gpus')", "6")
    assert not ran(grid, own + "\nassert mesh.rank == rank and mesh.sizes == {'gpus': 4}")
    cut = "m = mesh.split(gpus=('a', 'b'), b=2)\n"
    assert not ran(grid, cut + SUM.format("m.group('a')", "[2, 4, 2, 4][rank]"))
    part = "m = mesh.slice(gpus=slice(0, 4, 2))\n" + SUM.format("m.group()", "2")
    run = grid.start(part, b=0)
    assert run.wait(WITHIN_S)
    assert {each.status for each in run.outcomes.values()} == {"ok"}


def test_endpoints_and_execute(grid):
    members = grid.procs.spawn("members", Member)
    assert sums(members.total.call(grid.procs.group("a")).get()) == [2, 4, 2, 4]
    assert sums(members.total_of.call(grid.procs, "b").get()) == [1, 1, 5, 5]
    assert sums(members.total_of.call(grid.procs, ("b", "a")).get()) == [6] * 4
    row = grid.procs.slice(a=1)
    assert sums(members.slice(a=1).total.call(row.group()).get()) == [5, 5]
    assert sums(members.axes.call(grid.procs).get()) == [(("a", "b"), 2)] * 4

    def total(group):
        x = torch.ones(1)
        dist.all_reduce(x, group=group)
        return x.item()

    assert sums(grid.procs.execute(total, grid.procs.group())) == [4] * 4


class Later(Actor):
    """On a thread with a loop of its own."""

    @endpoint
    async def total(self, group) -> float:
        x = torch.ones(1) * dist.get_rank()
        dist.all_reduce(x, group=group)
        return x.item()


def test_an_async_actor(grid):
    later = grid.procs.spawn("later", Later)
    assert sums(later.total.call(grid.procs.group("b")).get()) == [1, 1, 5, 5]


def test_who_is_no_member_is_told_so(grid):
    grid.procs["g"] = grid.procs.slice(a=0).group()
    errors = ran(grid, SUM.format("g", "1"))
    assert set(errors) == {2, 3}
    assert f"rank 2 of mesh {grid.name!r} is not in AxisGroup(b: 2 ranks" in errors[2]
    assert "(ranks 0-1): only its members use it" in errors[2]


def test_a_timeout(grid):
    """For the members to meet, and for each collective; the last one that was said counts."""
    alone = "if rank == 0: "
    failed = ran(grid, f"{alone}mesh.group('gpus', timeout=0.5)")
    assert list(failed) == [0]
    assert "ranks 1, 2, 3 did not come to the group of ranks 0,1,2,3 within 0:00:00.5" in failed[0]
    grid.procs["g"] = grid.procs.group("b")
    assert not ran(grid, SUM.format("g", "[1, 1, 5, 5][rank]"))
    grid.procs["g"] = grid.procs.group("b", timeout=0.5)
    start = time.monotonic()
    failed = ran(grid, f"{HEAD}{alone}dist.all_reduce(torch.ones(1), group=g)")
    assert list(failed) == [0]
    assert "imed out" in failed[0]
    assert time.monotonic() - start < 20
    for wrong in (0, -1, float("inf")):
        with pytest.raises(ValueError, match="timeout=.*: seconds, more than none"):
            grid.procs.group("b", timeout=wrong)


@pytest.mark.slow
def test_a_device_mesh_is_usable(grid):
    code = HEAD + (
        "from torch.distributed.fsdp import fully_shard\n"
        "from torch.distributed.tensor import Shard, distribute_tensor\n"
        "from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module\n"
        "m = mesh.split(gpus=('dp', 'tp'), tp=2).device_mesh()\n"
        "assert m.mesh_dim_names == ('dp', 'tp') and m['dp'].size() == 2\n"
        "assert m is mesh.split(gpus=('dp', 'tp'), tp=2).device_mesh()\n"
        "x = torch.arange(16.).view(4, 4); d = distribute_tensor(x, m, [Shard(0), Shard(1)])\n"
        "torch.testing.assert_close((d @ d.T).full_tensor(), x @ x.T)\n"
        "torch.manual_seed(0); one = torch.nn.Linear(4, 4); w = one.weight.detach().clone()\n"
        "parallelize_module(one, m['tp'], ColwiseParallel()); fully_shard(one, mesh=m['dp'])\n"
        "torch.testing.assert_close(one.weight.full_tensor(), w)\n"
        "one(x).square().mean().backward()"
    )
    assert not ran(grid, code)


def test_a_device_mesh_is_made_on_ranks(grid):
    with pytest.raises(RuntimeError, match=r"the controller is no rank .*ranks 0-3.*%%mesh cell"):
        grid.procs.device_mesh()
    errors = ran(grid, "mesh.slice(gpus=0).device_mesh()")
    assert "rank 0 alone has no axes" in errors[0]
    assert "rank 1 of mesh" in errors[1]


@pytest.mark.fault
def test_a_dead_member_ends_the_wait_and_a_heal_makes_new_groups(grid):
    grid.procs["g"] = grid.procs.group()
    assert not ran(grid, SUM.format("g", "6"))
    run = grid.start("if rank != 3: dist.all_reduce(x, group=g)")
    os.kill(inside.pids(grid.procs)[3], signal.SIGKILL)
    assert run.wait(WITHIN_S)
    errors = {rank: str(each.error) for rank, each in run.outcomes.items() if rank != 3}
    assert all("rank 3" in error for error in errors.values()), errors
    grid.procs.heal()
    assert not ran(grid, SUM.format("mesh.group()", "6"))
    assert not ran(
        grid, SUM.format("mesh.split(gpus=('a', 'b'), b=2).group('b')", "[1,1,5,5][rank]")
    )


@pytest.mark.fault
def test_a_dead_member_in_an_endpoint(grid):
    members = grid.procs.spawn("members", Member)
    members.total.call(grid.procs.group()).get()
    call = members.slice(a=0).total.call(grid.procs.group())
    os.kill(inside.pids(grid.procs)[3], signal.SIGKILL)
    with pytest.raises(ActorError, match="rank 3"):
        call.get(timeout=WITHIN_S)


INSIDE_CPP = {
    "functional": "import torch.distributed._functional_collectives as f\n"
    "go = lambda: f.all_reduce(torch.ones(1), 'sum', mesh.group()).item()",
    "backward of fully_shard": "from torch.distributed.fsdp import fully_shard\n"
    "m = torch.nn.Linear(4, 4); fully_shard(m, mesh=mesh.device_mesh())\n"
    "go = lambda: m(torch.ones(1, 4)).sum().backward()",
    "recv": "g, peer = mesh.group(), 1 if rank != 1 else 2\n"
    "go = lambda: dist.recv(torch.ones(1), peer, group=g)",
}


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("what", INSIDE_CPP)
def test_a_dead_member_ends_waits_in_cpp_too(grid, what):
    code = HEAD + INSIDE_CPP[what] + ("" if what == "recv" else "\ngo()")
    assert not ran(grid, code)
    run = grid.start("if rank != 3: go()")
    os.kill(inside.pids(grid.procs)[3], signal.SIGKILL)
    assert run.wait(WITHIN_S), run
    assert {each.status for rank, each in run.outcomes.items() if rank != 3} == {"error"}
    grid.procs.heal()
    assert not ran(grid, SUM.format("mesh.group()", "6"))


@pytest.mark.fault
def test_nobody_waits_for_a_dead_rank_to_come(grid):
    assert not ran(grid, SUM.format("mesh.group()", "6"))
    run = grid.start("if rank != 3: mesh.slice(gpus=slice(2, 4)).group()")
    os.kill(inside.pids(grid.procs)[3], signal.SIGKILL)
    assert run.wait(WITHIN_S), run
    assert "rank 3 ended before the group of ranks 2,3" in str(run.outcomes[2].error)


def test_a_regroup_makes_new_groups_and_old_ones_say_so(grid):
    grid.procs["g"] = grid.procs.group()
    assert not ran(grid, SUM.format("g", "6"))
    found = Xray(grid.client.proc, grid.client.supervision).regroup(grid.procs)
    assert (found.backend, found.dropped) == ("", 1)
    errors = ran(grid, "dist.all_reduce(x, group=g)")
    assert len(errors) == 4
    assert all("healed or regrouped since. Ask for it again" in each for each in errors.values())
    assert not ran(grid, SUM.format("mesh.group()", "6"))


def test_who_has_not_come_is_known_of_such_groups(grid):
    assert not ran(grid, SUM.format("mesh.group()", "6"))
    run = grid.start("if rank: dist.all_reduce(x, group=mesh.group())")
    xray = Xray(grid.client.proc, grid.client.supervision)

    def told() -> str:
        seen = xray.examine(grid.procs, range(4))
        standings = {rank: each.standing for rank, each in seen.items()}
        waiting = [rank for rank, each in standings.items() if each.waits_in]
        return disagreement(standings) if waiting == [1, 2, 3] else ""

    words = eventually(told, WITHIN_S)
    assert words.startswith("ranks 1-3 wait in all_reduce #2 of group ranks 0,1,2,3 f32[1]; rank 0")
    run.interrupt()
    assert run.wait(WITHIN_S)


def test_a_wait_in_an_actors_own_thread_is_interrupted(grid):
    first = grid.procs.spawn("first", Member)  # has the main thread
    further = grid.procs.spawn("further", Member)
    further.total.call(grid.procs.group()).get()
    waiting = further.slice(a=0, b=0).receive.call_one(grid.procs.group())
    waits = lambda: grid.client.snapshot().meshes[-1].ranks[0].what == "recv"
    eventually(waits, WITHIN_S)
    waiting.cancel()
    assert first.slice(a=0, b=0).rank.call_one().get(timeout=WITHIN_S) == 0
    assert further.slice(a=0, b=0).rank.call_one().get(timeout=WITHIN_S) == 0


def test_an_own_init_beside_such_groups(grid):
    grid.procs["g"] = grid.procs.group("b")
    assert not ran(grid, SUM.format("g", "[1, 1, 5, 5][rank]") + "\ndist.barrier()")
    assert not ran(grid, "dist.init_process_group('gloo'); dist.barrier()")
    assert not ran(grid, SUM.format("g", "[1, 1, 5, 5][rank]"))
    errors = ran(grid, "dist.init_process_group('gloo')")
    assert "default process group twice! The mesh has one already: leave out" in errors[0]
    assert not ran(grid, "dist.destroy_process_group()")
    assert not ran(grid, SUM.format("mesh.group()", "6") + "\ndist.barrier()")
