"""Buffers on a GPU: between two ranks by CUDA IPC, to and from main memory through pinned pages."""

import pytest
import torch

from monarch_nb import Actor, RDMABuffer, endpoint
from monarch_nb.errors import ClosedError
from tests.services.transfer.owners import BIG

pytestmark = pytest.mark.gpu


class Device(Actor):
    """Holds bytes on a GPU or in main memory."""

    @endpoint
    def offer(self, size, value, device):
        self.bytes = torch.full((size,), value, dtype=torch.uint8, device=device)
        torch.cuda.synchronize()
        self.handle = RDMABuffer(self.bytes)
        return self.handle

    @endpoint
    def read(self, handle, size, device):
        room = torch.zeros(size, dtype=torch.uint8, device=device)
        handle.read_into(room).get()
        return handle.backend, int(room.long().sum())

    @endpoint
    def write(self, handle, size, value, device):
        handle.write_from(torch.full((size,), value, dtype=torch.uint8, device=device)).get()

    @endpoint
    def total(self):
        return int(self.bytes.long().sum())

    @endpoint
    def drop(self):
        self.handle.drop().get()


@pytest.fixture
def devices(spawn):
    return spawn(per_host={"gpus": 2}, name="pair").spawn("devices", Device)


@pytest.mark.parametrize("size", [64, BIG + 3])
@pytest.mark.parametrize("there, here", [("cuda", "cuda"), ("cuda", "cpu"), ("cpu", "cuda")])
def test_read_and_write(devices, size, there, here):
    owner, other = devices.slice(gpus=0), devices.slice(gpus=1)
    handle = owner.offer.call_one(size, 7, there).get(60)
    way = "cuda_ipc" if there == "cuda" else "cma"
    assert other.read.call_one(handle, size, here).get(60) == (way, 7 * size)
    other.write.call_one(handle, size, 9, here).get(60)
    assert owner.total.call_one().get(60) == 9 * size
    assert owner.read.call_one(handle, size, here).get(60) == ("memory", 9 * size)


def test_a_dropped_buffer_is_not_read(devices):
    owner, other = devices.slice(gpus=0), devices.slice(gpus=1)
    handle = owner.offer.call_one(64, 7, "cuda").get(60)
    other.read.call_one(handle, 64, "cuda").get(60)
    owner.drop.call_one().get(60)
    error = other.read.call_one(handle, 64, "cuda").exception(60)
    assert isinstance(error.exception, ClosedError)
