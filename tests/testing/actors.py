"""An actor that passes every point of a rank, and one of its own."""

import os
import time

from monarch_nb import Actor, RDMABuffer, endpoint
from monarch_nb.testing import faults


class Planned(Exception):
    """Raised by a fault."""


class Trainer(Actor):
    """Sync: it lives on the main thread of its rank."""

    def __init__(self) -> None:
        self.steps = 0

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def echo(self, value):
        return value

    @endpoint
    def train(self, steps: int) -> int:
        for _ in range(steps):
            faults.point("step")
            self.steps += 1
        return self.steps

    @endpoint
    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    @endpoint
    def offer(self) -> RDMABuffer:
        self.memory = bytearray(b"weights" * 100)
        return RDMABuffer(memoryview(self.memory))

    @endpoint
    def pull(self, weights: RDMABuffer) -> bytes:
        copy = bytearray(weights.size())
        weights.read_into(memoryview(copy)).get()
        return bytes(copy[:7])

    @endpoint
    def reduce(self) -> int:
        import torch
        from torch import distributed

        if not distributed.is_initialized():
            distributed.init_process_group("gloo")
        one = torch.ones(1)
        distributed.all_reduce(one)
        return int(one.item())


class AsyncTrainer(Actor):
    """Async: a thread with an event loop."""

    @endpoint
    async def echo(self, value):
        return value
