"""Ranks that a deadlock or an error leaves out of step, and the next cell, over real ranks."""

import re
import time

import pytest

from tests.kernel.client import Cell, KernelClient
from tests.support import eventually

HEAD = "%%mesh\nimport time, torch, torch.distributed as dist\n"
AGAIN = "mesh0: a new process group"
ON = {
    "the default group": "dist.init_process_group('gloo')\ndef reduce(x): dist.all_reduce(x)",
    "a group along an axis": "g = mesh.group('gpus')\ndef reduce(x): dist.all_reduce(x, group=g)",
    "a group of new_group": "g = dist.new_group([0, 1, 2, 3])\n"
    "def reduce(x): dist.all_reduce(x, group=g)",
    "DDP": "ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))\n"
    "def reduce(x):\n"
    "    ddp.zero_grad(); ddp(x).sum().backward(); x.copy_(ddp.module.weight.grad[0] * 4)",
    "a functional collective": "import torch.distributed._functional_collectives as fun\n"
    "g = mesh.group()\ndef reduce(x): x.copy_(fun.all_reduce(x, 'sum', g))",
    "a DeviceMesh": "from torch.distributed.tensor import Partial, Replicate, DTensor\n"
    "devices = mesh.device_mesh()\ndef reduce(x):\n"
    "    d = DTensor.from_local(x.clone(), devices, [Partial()])\n"
    "    x.copy_(d.redistribute(placements=[Replicate()]).to_local())",
}


def hangs(cell: Cell, ranks: str) -> bool:
    """Whether the line below the cell has said that these wait for others, or for three seconds
    that they have not ended: a wait in C++ is not seen."""
    shown = cell.contents("display_data", "update_display_data")
    said = "\n".join(each["data"].get("text/plain", "") for each in shown)
    return bool(re.search(rf"{ranks} in |waiting for {ranks} of 4, 3", said))


def waiting(kernel: KernelClient, cell: Cell, ranks: str) -> None:
    kernel.until(lambda: hangs(cell, ranks), timeout_s=10)


def values(cell: Cell) -> str:
    return cell.displays[-1]["text/plain"]


@pytest.mark.alone  # on a busy machine a rank is later than what the stop button waits for
@pytest.mark.parametrize("group", ON)
def test_after_a_deadlock_and_a_stop_the_fixed_cell_works(fresh, group):
    fresh.ok(f"{HEAD}{ON[group]}\nx = torch.full((1,), 1.0); reduce(x); x.item()", timeout_s=60)
    cell = fresh.start("%%mesh\nold = torch.full((1,), 100.0)\nif rank != 2: reduce(old)")
    waiting(fresh, cell, "ranks 0-1,3")
    fresh.stop_s(cell)
    assert "ranks 0-1,3 have left a collective before it had ended" in cell.error, cell.error
    assert "Error" not in cell.error, cell.error  # what torch says of a wait that was ended
    fixed = fresh.run("%%mesh\nx = torch.full((1,), float(rank)); reduce(x); x.item()")
    assert fixed.status == "ok", fixed.shown
    assert values(fixed) == "[0-3] 6.0"
    assert fixed.shown.count(AGAIN) == 1
    after = fresh.ok("%%mesh\nx = torch.full((1,), 2.0); reduce(x); x.item()")
    assert values(after) == "[0-3] 8.0"
    assert AGAIN not in after.shown


def test_a_rank_that_was_ahead_does_not_hand_on_old_data(fresh):
    """Nobody has left anything, and what rank 0 sends has no need of the others."""
    fresh.ok(f"{HEAD}dist.init_process_group('gloo')\ndist.barrier()", timeout_s=60)
    failed = fresh.run(
        "%%mesh\nfor step in range(3):\n"
        "    x = torch.full((1,), 100.0 + step)\n"
        "    if rank and step: raise ValueError('a slip')\n"
        "    dist.broadcast(x, 0)"
    )
    assert "a slip" in failed.error
    cell = fresh.ok("%%mesh\nx = torch.full((1,), float(rank + 7)); dist.broadcast(x, 0); x.item()")
    assert values(cell) == "[0-3] 7.0"
    assert AGAIN in cell.shown


def test_after_many_collectives_a_group_is_made_again_too(fresh):
    """PyTorch has room for 192 numbers of connections, and none of them is one of a wait."""
    fresh.ok(f"{HEAD}dist.init_process_group('gloo')\nfor _ in range(300): dist.barrier()")
    alone = fresh.start("%%mesh 0\nprint('alone', flush=True); dist.barrier()")
    fresh.until(lambda: "alone" in alone.text())
    waiting(fresh, alone, "rank 0")
    fresh.stop_s(alone)
    cell = fresh.ok("%%mesh\nx = torch.ones(1); dist.all_reduce(x); x.item()")
    assert values(cell) == "[0-3] 4.0"
    assert AGAIN in cell.shown


def test_a_slip_on_all_ranks_leaves_the_groups_as_they_are(fresh):
    fresh.ok(f"{HEAD}dist.init_process_group('gloo')\ndist.barrier()", timeout_s=60)
    fresh.run("%%mesh\nx = torch.ones(1); dist.all_reduce(x); nmae")
    cell = fresh.ok("%%mesh\ndist.all_reduce(x); x.item()")
    assert values(cell) == "[0-3] 16.0"
    assert AGAIN not in cell.shown


def test_a_slice_has_its_group_again_and_needs_nobody_else(fresh):
    half = "half = mesh.slice(gpus=slice(0, 2))\nx = torch.full((1,), rank + 1.0)\n"
    fresh.ok(f"{HEAD}dist.barrier()")
    fresh.ok(f"%%mesh 0-1\n{half}dist.all_reduce(x, group=half.group())")
    fresh.ok("%%mesh 2-3 -a -o job\ntime.sleep(60)")
    cell = fresh.start("%%mesh 0-1\nif rank == 0: dist.all_reduce(x, group=half.group())")
    waiting(fresh, cell, "rank 0")
    fresh.stop_s(cell)
    fixed = fresh.ok(f"%%mesh 0-1\n{half}dist.all_reduce(x, group=half.group()); x.item()")
    assert values(fixed) == "[0-1] 3.0"
    said = "mesh0: a new process group (ranks 0,1): rank 0 had left all_reduce before its end\n"
    assert said in fixed.shown
    fresh.ok("job.cancel()")


def test_endpoints_have_their_groups_again(fresh):
    fresh.ok(
        "from monarch_nb import Actor, endpoint\n"
        "class Member(Actor):\n"
        "    @endpoint\n"
        "    def total(self, x, stays_away=-1, fails=-1):\n"
        "        import time, torch, torch.distributed as dist\n"
        "        from monarch_nb import current_rank\n"
        "        rank = current_rank().rank\n"
        "        if rank == fails: raise ValueError('a slip')\n"
        "        x = torch.full((1,), float(x))\n"
        "        try:\n"
        "            if rank != stays_away: dist.all_reduce(x)\n"
        "        finally:\n"
        "            if stays_away >= 0 and rank == 1: time.sleep(1)  # it leaves a moment later\n"
        "        return x.item()\n"
        "members = mesh0.spawn('members', Member)\n"
        "members.total.call(1).get().values()",
        timeout_s=60,
    )
    cell = fresh.start("members.total.call(100, stays_away=2).get()")
    waiting(fresh, cell, "ranks 0-1,3")
    fresh.stop_s(cell)
    fixed = fresh.ok("members.total.call(2).get().values()")
    assert fixed.displays[-1]["text/plain"] == "[8.0, 8.0, 8.0, 8.0]"
    assert AGAIN in fixed.shown
    failed = fresh.run("members.total.call(100, fails=2).get()")
    assert "a slip" in failed.error
    fixed = fresh.ok("members.total.call(3).get().values()")
    assert fixed.displays[-1]["text/plain"] == "[12.0, 12.0, 12.0, 12.0]"
    assert AGAIN in fixed.shown


def test_while_a_member_is_busy_the_group_is_refused_on_all_others(fresh):
    fresh.ok(f"{HEAD}dist.init_process_group('gloo')\nones = torch.ones(1)", timeout_s=60)
    fresh.ok("%%mesh 3 -a -o job\ntime.sleep(60)")
    cell = fresh.start("%%mesh 0-2\nif rank != 2: dist.all_reduce(ones)")
    waiting(fresh, cell, "ranks 0-1")
    fresh.stop_s(cell)
    refused = fresh.run("%%mesh 0-2\ndist.all_reduce(ones)")
    assert refused.finished_s
    assert "ranks 0-2" in refused.error
    why = "ranks 0-1 had left all_reduce before its end, and rank 3 is still at work"
    assert f"the process group cannot be used any more: {why}" in refused.error
    fresh.ok("job.cancel()")
    fresh.ok("job.wait(timeout=2)")
    assert values(fresh.ok("%%mesh\ndist.all_reduce(ones); ones.item()")) == "[0-3] 4.0"


FAST_S = 10.0


def test_ranks_that_wait_for_one_that_has_failed_are_freed(fresh):
    fresh.ok(f"{HEAD}dist.init_process_group('gloo')\nones = torch.ones(1)", timeout_s=60)
    began = time.monotonic()
    cell = fresh.run("%%mesh\nif rank == 2: raise ValueError('a slip')\ndist.all_reduce(ones)")
    assert time.monotonic() - began < FAST_S
    assert "rank 2: ValueError: a slip" in cell.error.replace("[2] ", "rank 2: ")
    assert "RuntimeError: all_reduce: rank 2 failed, it will not come" in cell.error
    assert cell.error.index("a slip") < cell.error.index("it will not come")
    fixed = fresh.ok("%%mesh\nones.fill_(1); dist.all_reduce(ones); ones.item()")
    assert values(fixed) == "[0-3] 4.0"


def test_peers_of_a_failed_endpoint_are_freed_while_nobody_asks_them(fresh, tmp_path):
    """Rank 3 comes to the collective some seconds later."""
    fresh.ok(
        "from monarch_nb import Actor, endpoint\n"
        "class Member(Actor):\n"
        "    @endpoint\n"
        "    def total(self, folder, fails=-1):\n"
        "        import pathlib, time, torch, torch.distributed as dist\n"
        "        from monarch_nb import current_rank\n"
        "        rank = current_rank().rank\n"
        "        if rank == fails: raise ValueError('a slip')\n"
        "        if rank == 3 and fails >= 0: time.sleep(4)\n"
        "        try:\n"
        "            dist.all_reduce(torch.ones(1))\n"
        "        except RuntimeError as error:\n"
        "            pathlib.Path(folder, str(rank)).write_text(str(error))\n"
        "members = mesh0.spawn('members', Member)\n"
        f"folder = {str(tmp_path)!r}\n"
        "len(members.total.call(folder).get())",
        timeout_s=60,
    )
    failed = fresh.run("members.total.call(folder, fails=2).get()")
    assert "a slip" in failed.error
    words = "all_reduce: rank 2 failed, it will not come"

    def told():
        return {each.name: each.read_text() for each in tmp_path.iterdir()}

    eventually(lambda: told() == dict.fromkeys("013", words), FAST_S)
    assert fresh.ok("len(members.total.call(folder).get())").displays[-1]["text/plain"] == "4"


def test_ranks_that_compute_go_on_and_who_can_still_be_served_waits(fresh):
    """Rank 3 comes late, and rank 2 had begun its part before it failed."""
    fresh.ok(
        f"{HEAD}dist.init_process_group('gloo')\npair = dist.new_group([0, 1])\n"
        "ones = torch.ones(1)",
        timeout_s=60,
    )
    cell = fresh.run(
        "%%mesh\nif rank == 3: time.sleep(6)\n"
        "work = dist.all_reduce(ones, async_op=True)\n"
        "if rank == 2: raise ValueError('a slip')\n"
        "work.wait()\n"
        "if rank < 2: dist.all_reduce(ones, group=pair)\n"
        "print('got', ones.item())"
    )
    assert "[0-1] got 8.0" in cell.text()
    assert "[3] got 4.0" in cell.text()
    assert "will not come" not in cell.error


def test_who_waits_for_a_group_to_be_made_is_freed_too(fresh):
    fresh.ok(f"{HEAD}ones = torch.ones(1)")
    began = time.monotonic()
    cell = fresh.run("%%mesh\nif rank == 2: raise ValueError('a slip')\ndist.all_reduce(ones)")
    assert time.monotonic() - began < FAST_S
    assert "rank 2 failed, it will not come" in cell.error
    assert values(fresh.ok("%%mesh\ndist.all_reduce(ones); ones.item()")) == "[0-3] 4.0"


@pytest.mark.parametrize(
    "wait",
    ["dist.recv(x, 2)", "dist.irecv(x, 2).wait()",
     "dist.isend(torch.ones(30_000_000), 2).wait()", "dist.send(torch.ones(30_000_000), 2)",
     "ddp(x).sum().backward()", "fun.all_reduce(x, 'sum', dist.group.WORLD).item()"],
)  # fmt: skip
def test_waits_in_cpp_are_freed_too(fresh, wait):
    fresh.ok(
        f"{HEAD}import torch.distributed._functional_collectives as fun\n"
        "ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))\n"
        "x = torch.ones(1)",
        timeout_s=60,
    )
    began = time.monotonic()
    cell = fresh.run(f"%%mesh\nif rank == 2: raise ValueError('a slip')\nif rank == 0: {wait}")
    assert time.monotonic() - began < FAST_S
    assert re.search(r"rank 2 failed, it will not come", cell.error), cell.error


def test_with_no_fail_fast_they_wait(fresh):
    fresh.ok(f"{HEAD}dist.init_process_group('gloo')\nones = torch.ones(1)", timeout_s=60)
    fresh.ok(
        "%%mesh --no-fail-fast -a -o job\n"
        "if rank == 2: raise ValueError('a slip')\ndist.all_reduce(ones); ones.item()"
    )
    assert fresh.ok("job.wait(timeout=6)").displays[-1]["text/plain"] == "False"
    came = fresh.ok("%%mesh 2\ndist.all_reduce(ones); ones.item()")
    assert values(came) == "[2] 4.0"
    assert fresh.ok("job.wait(timeout=2)").displays[-1]["text/plain"] == "True"


def test_run_all_ends_by_itself(fresh):
    cells = [
        f"{HEAD}dist.init_process_group('gloo')\nones = torch.ones(1)",
        "%%mesh\nif rank == 2: raise ValueError('a slip')\ndist.all_reduce(ones)",
        "%%mesh\n'never'",
    ]
    began = time.monotonic()
    sent = [fresh.start(each) for each in cells]
    for each in sent:
        fresh.finish(each)
    assert time.monotonic() - began < 2 * FAST_S
    assert [each.status for each in sent] == ["ok", "error", "aborted"]
