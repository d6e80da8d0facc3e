"""Tensors on a GPU: copies between the processes that share one, calls that use it.

The floor is one process that copies on the GPU, and between it and main memory that is not pinned.
"""

import os
from collections.abc import Callable
from typing import Any

from benchmarks.measures import ARRAY_FLOATS, Figures, Scale
from benchmarks.processes import wait_gone
from benchmarks.timing import median_time, now, time_of
from monarch_nb import Actor, RDMABuffer, endpoint, this_host
from monarch_nb.tensor import inspect, to_mesh

SIZE = ARRAY_FLOATS * 4
SMALL = 64
RANKS = 8
NONE = "no GPU on this machine"


class Holder(Actor):
    """Owns bytes on a GPU or in main memory, and copies those of others."""

    @endpoint
    def offer(self, size: int, device: str) -> RDMABuffer:
        import torch

        self.bytes = torch.ones(size, dtype=torch.uint8, device=device)
        torch.cuda.synchronize()
        return RDMABuffer(self.bytes)

    @endpoint
    def read_s(self, buffer: RDMABuffer, size: int, device: str, count: int) -> float:
        """Seconds of one `read_into` of a buffer, into memory that was used before."""
        import torch

        room = torch.zeros(size, dtype=torch.uint8, device=device)
        seconds = median_time(lambda: buffer.read_into(room).get(), count)
        if not bool((room == 1).all()):
            raise AssertionError("the bytes that came are not those that were there")
        return seconds

    @endpoint
    def last(self, tensor: Any) -> float:
        if not tensor.is_cuda:
            raise AssertionError("the argument is not on the GPU")
        return float(tensor[-1])

    @endpoint
    def step(self) -> float:
        import torch

        return float(torch.ones(8, device="cuda").sum())

    @endpoint
    def pid(self) -> int:
        return os.getpid()


def copies(scale: Scale) -> Figures:
    """Reads between two processes, an argument and a tensor that moves to another rank, a step."""
    import torch

    if not torch.cuda.is_available():
        return dict.fromkeys(("read", "read_64", "down", "up", "argument", "moved", "step"), NONE)
    procs = this_host().spawn_procs(per_host={"gpus": 2})
    holders = procs.spawn("holders", Holder)
    owner, other = holders.slice(gpus=0), holders.slice(gpus=1)
    count = scale.arrays * 3
    figures: Figures = {}
    for name, there, here, size in (
        ("read", "cuda", "cuda", SIZE),
        ("down", "cuda", "cpu", SIZE),
        ("up", "cpu", "cuda", SIZE),
        ("read_64", "cuda", "cuda", SMALL),
    ):
        buffer = owner.offer.call_one(size, there).get()
        times = count if size == SIZE else scale.calls
        seconds = other.read_s.call_one(buffer, size, here, times).get()
        figures[name] = size / seconds if size == SIZE else seconds
        buffer.drop().get()
    array = torch.ones(ARRAY_FLOATS, device="cuda")
    figures["argument"] = SIZE / median_time(lambda: other.last.call_one(array).get(), count)
    figures["step"] = median_time(lambda: other.step.call_one().get(), scale.calls)
    figures["moved"] = SIZE / median_time(_mover(procs), count)
    procs.stop().get()
    return figures


def _mover(procs: Any) -> Callable[[], None]:
    import torch

    first, second = procs.slice(gpus=0), procs.slice(gpus=1)
    with first.activate():
        array = torch.ones(ARRAY_FLOATS, device="cuda")

    def move() -> None:
        with first.activate():
            last = to_mesh(array, second)[-1]
        if inspect(last).item() != 1:
            raise AssertionError("another number came")

    return move


def ranks(_scale: Scale) -> Figures:
    """Ranks that have used the GPU: how soon, and how soon its memory is free when all have ended.

    The host has loaded torch before, as for the ranks of a notebook.
    """
    import torch

    if not torch.cuda.is_available():
        return dict.fromkeys(("spawned", "ready", "freed"), NONE)
    first = this_host().spawn_procs(per_host={"gpus": 1})
    first.spawn("first", Holder).step.call().get()
    first.stop().get()
    free_before = torch.cuda.mem_get_info()[0]
    start = now()
    procs = this_host().spawn_procs(per_host={"gpus": RANKS})
    holders = procs.spawn("holders", Holder)
    pids = list(holders.pid.call().get().values())
    spawned = now() - start
    if list(holders.step.call().get().values()) != [8.0] * RANKS:
        raise AssertionError("a rank got another sum")
    ready = now() - start
    start = now()
    procs.stop().get()
    wait_gone(pids, within_s=30)
    while free_before - torch.cuda.mem_get_info()[0] > 100e6 and now() - start < 30:
        pass
    return {"spawned": spawned, "ready": ready, "freed": now() - start}


def raw_copies(scale: Scale) -> Figures:
    """Copies of one process: on the GPU, from it and to it; a step of it alone."""
    import torch

    if not torch.cuda.is_available():
        return dict.fromkeys(("read", "read_64", "down", "up", "step"), NONE)
    count = scale.arrays * 3
    gpu = torch.ones(SIZE, dtype=torch.uint8, device="cuda")
    room = torch.zeros_like(gpu)
    main = torch.zeros(SIZE, dtype=torch.uint8)
    figures: Figures = {}
    for name, target, source in (("read", room, gpu), ("down", main, gpu), ("up", room, main)):
        figures[name] = SIZE / median_time(_copied(target, source), count)
    small = _copied(room[:SMALL], gpu[:SMALL])
    figures["read_64"] = median_time(small, scale.calls)
    figures["step"] = median_time(lambda: float(torch.ones(8, device="cuda").sum()), scale.calls)
    return figures


def raw_ranks(_scale: Scale) -> Figures:
    """One process that uses the GPU for the first time, torch loaded."""
    import torch

    if not torch.cuda.is_available():
        return {"ready": NONE}
    return {"ready": time_of(lambda: float(torch.ones(8, device="cuda").sum()))}


def _copied(target: Any, source: Any) -> Callable[[], None]:
    import torch

    def copy() -> None:
        target.copy_(source)
        torch.cuda.synchronize()

    return copy
