"""Actors that register memory, and what a test looks at from outside."""

import ctypes
import gc
import os
import time

import torch

from monarch_nb import Actor, RDMABuffer, endpoint
from monarch_nb.process import current
from tests import inside

MB = 1 << 20
BIG = 40 * MB  # several pieces


class Owner(Actor):
    """Holds a tensor and offers it."""

    def __init__(self):
        self.tensor = torch.arange(16, dtype=torch.float32)
        self.handles = {}

    @endpoint
    def offer(self, size=64, value=None, kind="tensor"):
        if value is None:
            self.tensor = torch.arange(size // 4, dtype=torch.float32)
        else:
            self.tensor = torch.full((size,), value, dtype=torch.uint8)
        data = self.tensor if kind == "tensor" else memoryview(bytes(self.tensor.tolist()))
        handle = RDMABuffer(data)
        self.handles[handle.owner] = handle
        return {"nested": [handle]}

    @endpoint
    def value(self):
        return self.tensor.tolist() if len(self.tensor) < 100 else float(self.tensor.float().mean())

    @endpoint
    def use(self, handle, size):
        """Read another actor's buffer here, and write it back with each byte one more."""
        room = torch.zeros(size, dtype=torch.uint8)
        handle.read_into(room).get()
        handle.write_from(room + 1).get()
        return int(room.sum()), handle.backend

    @endpoint
    def drop(self, handle):
        handle.drop().get()

    @endpoint
    def hold_the_interpreter(self, seconds):
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))

    @endpoint
    def sleep(self, seconds):
        time.sleep(seconds)

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def registered(self):
        return current.runtime().buffers.statistics()

    @endpoint
    def collect(self):
        gc.collect()
        return inside.leased_bytes()


def here():
    return current.runtime().buffers.statistics()


def offer(owners, rank=0, **how):
    return owners.slice(gpus=rank).offer.call_one(**how).get(10)["nested"][0]
