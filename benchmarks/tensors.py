"""Tensors on ranks: operations that the controller issues, and the same work written as SPMD.

Each pair of times is taken in turns in one process, so that both see the same machine.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.measures import Figures, Scale, tensor_rate
from benchmarks.timing import median, time_of
from monarch_nb import Actor, distribute, endpoint, this_host
from monarch_nb.tensor import inspect, reduce_

OPERATIONS = 10_000
BATCH, WIDTH = 4096, 1024
SIDE = 4096
RANKS = 4
TURNS = 5


def operations(scale: Scale) -> Figures:
    """See `tensor_rate`."""
    mesh = this_host().spawn_procs(per_host={"gpus": RANKS})
    found = tensor_rate(mesh, inspect, OPERATIONS, scale.floods)
    mesh.stop().get()
    return found


class Spmd(Actor):
    """The same steps as a rank runs them by itself."""

    def __init__(self) -> None:
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("gloo")
        self.model = _mlp()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.x = torch.randn(BATCH // RANKS, WIDTH)

    @endpoint
    def step(self) -> float:
        """Forward, backward, gradients averaged, step."""
        import torch.distributed as dist

        loss = self.model(self.x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        for each in self.model.parameters():
            assert each.grad is not None
            dist.all_reduce(each.grad)
            each.grad /= RANKS
        self.optimizer.step()
        return loss.item()

    @endpoint
    def prepare(self) -> None:
        """What is multiplied, cut along its rows."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        torch.manual_seed(0)
        mesh = init_device_mesh("cpu", (RANKS,))
        self.left = distribute_tensor(torch.randn(SIDE, SIDE), mesh, [Shard(0)])
        self.right = distribute_tensor(torch.randn(SIDE, SIDE), mesh, [Shard(1)])

    @endpoint
    def product(self) -> float:
        """A product of the two, and one number of it."""
        found: Any = (self.left @ self.right).sum()
        return float(found.full_tensor())


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


def _in_turns(first: Callable[[], Any], second: Callable[[], Any]) -> tuple[float, float]:
    """Medians of both; neither is alone on a quiet moment."""
    first(), second()
    times = [(time_of(first), time_of(second)) for _ in range(TURNS)]
    return median([each for each, _ in times]), median([each for _, each in times])


def step(_scale: Scale) -> Figures:
    """A training step of two layers, data parallel on 4 ranks: issued here, and as SPMD."""
    mesh = this_host().spawn_procs(per_host={"gpus": RANKS})
    spmd = mesh.spawn("spmd", Spmd)
    with mesh.activate():
        model = _mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        x = torch.randn(BATCH // RANKS, WIDTH)

        def issued() -> None:
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            for each in model.parameters():
                reduce_(each.grad, "gpus", "avg")
            optimizer.step()
            inspect(loss.detach())

        ours, plain = _in_turns(issued, lambda: spmd.step.call().get())
    mesh.stop().get()
    return {"time": ours, "ratio": ours / plain}


def matmul(_scale: Scale) -> Figures:
    """A product of two distributed matrices: from here, and by DTensor on the ranks."""
    mesh = this_host().spawn_procs(per_host={"gpus": RANKS})
    spmd = mesh.spawn("spmd", Spmd)
    spmd.prepare.call().get()
    torch.manual_seed(0)
    left = distribute(torch.randn(SIDE, SIDE), mesh, ["gpus", None])
    right = distribute(torch.randn(SIDE, SIDE), mesh, [None, "gpus"])
    ours, plain = _in_turns(lambda: (left @ right).sum().item(), lambda: spmd.product.call().get())
    mesh.stop().get()
    return {"time": ours, "ratio": ours / plain}
