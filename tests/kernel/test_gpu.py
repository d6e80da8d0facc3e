"""A notebook whose ranks use a GPU: cells, errors, the stop button; nothing stays on the GPU."""

from collections.abc import Iterator

import pytest
import torch

from tests.kernel.client import KernelClient
from tests.support import eventually, listening_ports

pytestmark = pytest.mark.gpu

FIRST_CELLS = ("%mesh up --gpus 2",)
HOLD = "%%mesh\nimport torch\nheld = torch.ones(256 << 20, device='cuda')  # 1 GiB of each rank"
ASKS_FOR_TOO_MUCH = "%%mesh\ntorch.empty(1 << 45, device='cuda')"
WORKS_FOR_LONG = """%%mesh
print("running", flush=True)
x = torch.ones(4096, 4096, device="cuda")
while True:
    x = (x @ x).clamp(max=1)
"""


def used_bytes() -> int:
    """What is taken of the GPU, by whomever."""
    free, size = torch.cuda.mem_get_info()
    return size - free


def until_freed(limit: int) -> None:
    eventually(lambda: used_bytes() <= limit, 10, "free memory of the GPU")


def test_each_rank_uses_the_gpu(kernel):
    shown = kernel.ok("%%mesh\nimport torch\ntorch.ones(3, device='cuda').sum().item()").shown
    assert "[0-1] 3.0" in shown


def test_a_rank_that_has_no_memory_left_says_so_and_goes_on(kernel):
    kernel.ok("%%mesh\nimport torch")
    cell = kernel.run(ASKS_FOR_TOO_MUCH)
    assert "OutOfMemoryError" in cell.error
    assert "[0-1]" in kernel.ok("%%mesh\ntorch.ones(3, device='cuda').sum().item()").shown


def test_the_stop_button_while_the_gpu_works(kernel):
    kernel.ok("%%mesh\nimport torch\nkept = torch.full((3,), 7.0, device='cuda')")
    cell = kernel.start(WORKS_FOR_LONG)
    kernel.until(lambda: "running" in cell.text())
    assert kernel.stop_s(cell) < 1.0
    assert "KeyboardInterrupt" in cell.error
    assert "[0-1] 21.0" in kernel.ok("%%mesh\nkept.sum().item()").shown


def test_a_tensor_of_a_rank_comes_to_the_notebook_and_back(kernel):
    kernel.ok("%%mesh\nimport torch\nmine = torch.full((3,), float(rank), device='cuda')")
    assert "tensor([1., 1., 1.], device='cuda:0')" in kernel.ok("mesh0['mine'].item(gpus=1)").shown
    kernel.ok("import torch\nmesh0['theirs'] = torch.arange(3.0, device='cuda')")
    assert (
        "[0-1] ('cuda:0', 3.0)"
        in kernel.ok("%%mesh\n(str(theirs.device), theirs.sum().item())").shown
    )


GROUP = """%%mesh
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(rank)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1).to("cuda"))
model(torch.full((2, 4), 1.0 + rank, device="cuda")).sum().backward()
print(round(model.module.weight.grad[0, 0].item(), 3), model.module.bias.is_cuda)
"""
SHARDED = """%%mesh
import torch
from torch.distributed.fsdp import fully_shard
torch.manual_seed(0)
model = torch.nn.Linear(8, 8, device="cuda")
fully_shard(model, mesh=mesh.device_mesh())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.ones(4, 8, device="cuda")
for step in range(5):
    loss = model(x).pow(2).mean()
    first = loss if step == 0 else first
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
NCCL = """%%mesh
import torch, torch.distributed as dist
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(1, device="cuda"))
"""


@pytest.fixture
def own(request) -> Iterator[KernelClient]:
    """A kernel of the test's own, with as many ranks as it says."""
    with KernelClient("monarch") as kernel:
        kernel.ok(f"%mesh up {request.param}", timeout_s=60)
        yield kernel


@pytest.mark.parametrize("own", ["--gpus 2"], indirect=True)
def test_ddp_of_two_ranks_that_share_a_gpu(own):
    assert "[0-1] 3.0 True" in own.ok(GROUP, timeout_s=60).shown


@pytest.mark.parametrize("own", ["--gpus 2"], indirect=True)
def test_ranks_that_share_a_gpu_need_no_backend(own):
    """Gloo is chosen for them: in cells without any init, for groups of a mesh, by a plain init."""
    total = "x = torch.ones(3, device='cuda'); dist.all_reduce(x{}); x.sum().item()"
    cell = "%%mesh\nimport torch, torch.distributed as dist\n" + total.format("")
    assert "[0-1] 6.0" in own.ok(cell, timeout_s=60).shown
    cell = "%%mesh\n" + total.format(", group=mesh.group()")
    assert "[0-1] 6.0" in own.ok(cell, timeout_s=60).shown
    cell = "%%mesh\ndist.init_process_group()\n" + total.format("")
    assert "[0-1] 6.0" in own.ok(cell, timeout_s=60).shown


@pytest.mark.parametrize("own", ["--gpus 2"], indirect=True)
def test_a_model_sharded_over_ranks_that_share_a_gpu(own):
    own.ok(SHARDED, timeout_s=60)
    assert "[0-1] True" in own.ok("%%mesh\n(loss < first).item()", timeout_s=60).shown


@pytest.mark.parametrize("own", ["--gpus 2"], indirect=True)
def test_nccl_refuses_two_ranks_that_share_a_gpu_and_the_mesh_goes_on(own):
    error = own.run(NCCL, timeout_s=60).error
    assert "Duplicate GPU" in error
    assert "ranks that share one need init_process_group('gloo')" in error
    own.run("%%mesh\ndist.destroy_process_group()")
    assert "[0-1] 2" in own.ok("%%mesh\n1 + 1").shown


@pytest.mark.parametrize("own", ["--gpus 2"], indirect=True)
def test_a_rank_that_has_broken_its_gpu_is_started_again(own):
    own.ok("%%mesh\nimport torch; x = torch.zeros(3, device='cuda')")
    broken = own.run("%%mesh 1\nx[torch.tensor([5], device='cuda')].sum().item()", timeout_s=60)
    assert "device-side assert" in broken.error
    assert "rank 1 cannot use the GPU any more; %mesh restart 1 starts again" in broken.error
    own.ok("%mesh restart 1", timeout_s=60)
    again = own.ok("%%mesh\nimport torch; torch.ones(3, device='cuda').sum().item()", timeout_s=60)
    assert "[0-1] 3.0" in again.shown


@pytest.mark.parametrize("own", ["--gpus 1"], indirect=True)
def test_nccl_listens_on_the_loopback_only(own):
    own.ok(NCCL, timeout_s=60)
    pid = int(own.ok("%%mesh\nimport os; os.getpid()").shown.split()[-1])
    assert {each.split()[0] for each in listening_ports(pid)} <= {"127.0.0.1"}
    assert not {each for each in listening_ports(pid) if each.endswith("port 28028")}  # RAS


def test_what_a_mesh_held_is_free_when_it_is_down():
    with KernelClient("monarch") as kernel:
        before = used_bytes()
        kernel.ok("%mesh up --gpus 2", timeout_s=60)
        kernel.ok(HOLD, timeout_s=60)
        assert used_bytes() - before > 2 << 30
        kernel.ok("%mesh down")
        until_freed(before + (64 << 20))


def test_what_a_mesh_held_is_free_when_the_kernel_is_killed():
    before = used_bytes()
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh up --gpus 2", timeout_s=60)
        kernel.ok(HOLD, timeout_s=60)
        assert used_bytes() - before > 2 << 30
        kernel.manager.signal_kernel(9)
        until_freed(before + (64 << 20))


def test_cpu_ranks_see_no_gpu():
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh up --gpus 2 --device cpu", timeout_s=60)
        assert (
            "[0-1] False"
            in kernel.ok("%%mesh\nimport torch\ntorch.cuda.is_available()", timeout_s=60).shown
        )
