"""RDMABuffer and RDMAAction between the processes of a host."""

import asyncio
import os
import pickle
import signal

import pytest
import torch

from monarch_nb import Actor, RDMAAction, RDMABuffer, endpoint
from monarch_nb.errors import BrokenError, ClosedError, RemoteProtocolError
from monarch_nb.rdma import get_rdma_backend, is_ibverbs_available, is_rdma_available
from tests.services.transfer.owners import BIG, MB, offer
from tests.support import stop


class Reader(Actor):
    """Reads in an event loop."""

    @endpoint
    async def read(self, handle, size):
        room = torch.zeros(size, dtype=torch.uint8)
        ticks = asyncio.create_task(self.tick())
        await handle.read_into(room)
        ticks.cancel()
        return int(room.sum())

    async def tick(self):
        while True:  # noqa: ASYNC110  the loop is to be busy
            await asyncio.sleep(0)


# --------------------------------------------------------------------------------- the plain way


@pytest.mark.parametrize("size", [64, BIG])
def test_read_and_write(owners, size):
    handle = offer(owners, size=size)
    assert handle.size() == size
    room = torch.empty(size // 4 + 1)
    room[-1] = 5
    handle.read_into(room).get(10)
    assert torch.equal(room[:-1], torch.arange(size // 4, dtype=torch.float32))
    assert room[-1] == 5
    assert handle.write_from(torch.zeros(size // 4)).get(10) is None
    handle.read_into(room).get(10)
    assert not room[:-1].any()


def test_memoryviews(owners):
    handle = offer(owners, size=16)
    room = bytearray(20)
    handle.read_into(memoryview(room)).get(5)
    assert room == bytes(torch.arange(4, dtype=torch.float32).view(torch.uint8).tolist()) + bytes(4)
    handle.write_from(memoryview(bytes(8))).get(5)
    assert owners.slice(gpus=0).value.call_one().get(5) == [0, 0, 2, 3]
    constant = offer(owners, 1, size=8, value=3, kind="memoryview")
    constant.read_into(memoryview(room)[:8]).get(5)
    assert room[:8] == bytes([3] * 8)


def test_handles_travel_to_others_and_back_to_the_owner(owners):
    handle = offer(owners, size=32, value=1)
    assert owners.slice(gpus=1).use.call_one(handle, 32).get(10) == (32, "cma")
    assert owners.slice(gpus=0).use.call_one(handle, 32).get(10) == (64, "memory")
    assert owners.slice(gpus=0).value.call_one().get(5) == [3] * 32
    mine = RDMABuffer(torch.full((32,), 2, dtype=torch.uint8))
    assert owners.slice(gpus=2).use.call_one(mine, 32).get(10) == (64, "cma")
    assert mine.backend == "memory"
    assert "root" in mine.owner
    room = torch.zeros(32, dtype=torch.uint8)
    mine.read_into(room).get(5)
    assert room.tolist() == [3] * 32
    assert len(pickle.dumps(handle)) < 400
    mine.drop().get(5)


@pytest.mark.parametrize("size", [64, BIG])
def test_in_an_event_loop(owners, procs, size):
    handle = offer(owners, size=size, value=1)
    readers = procs.slice(gpus=1).spawn("readers", Reader)
    assert readers.read.call_one(handle, size).get(10) == size
    readers.stop().get(5)


def test_words():
    assert get_rdma_backend() == "tcp"
    assert not is_ibverbs_available()
    assert not is_rdma_available()


def test_the_repr_says_whose_it_is(owners):
    handle = offer(owners, 2, size=64)
    assert repr(handle).startswith("<RDMABuffer ")
    assert repr(handle).endswith("/owners[2]: 64 bytes>")


# ------------------------------------------------------------------------------ nobody is asked


@pytest.mark.fault
def test_the_owner_is_stopped(owners):
    handle = offer(owners, size=BIG, value=7)
    pid = owners.slice(gpus=0).pid.call_one().get(5)
    room = torch.empty(BIG, dtype=torch.uint8)
    stop(pid)
    try:
        handle.read_into(room).get(2)
        handle.write_from(room + 1).get(2)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert int(room.sum()) == 7 * BIG
    assert owners.slice(gpus=0).value.call_one().get(5) == 8


def test_the_owner_holds_the_interpreter(owners):
    handle = offer(owners, size=MB, value=7)
    busy = owners.slice(gpus=0).hold_the_interpreter.call_one(1.5)
    room = torch.empty(MB, dtype=torch.uint8)
    handle.read_into(room).get(1)
    assert not busy.done()
    assert int(room.sum()) == 7 * MB
    busy.get(10)


# ------------------------------------------------------------------------------------- batches


def test_a_batch_over_several_owners_submitted_twice(owners):
    sources = [offer(owners, rank, size=MB * 3, value=rank) for rank in range(4)]
    rooms = [torch.full((MB * 3,), 9, dtype=torch.uint8) for _ in sources]
    action = RDMAAction()
    for room, source in zip(rooms, sources, strict=True):
        assert action.read_remote(room, source) is action
    for _ in range(2):
        action.submit().get(10)
        assert [int(room[-1]) for room in rooms] == [0, 1, 2, 3]
        for room in rooms:
            room[:] = 9


def test_operations_on_one_owner_follow_one_another(owners):
    handle = offer(owners, size=BIG, value=1)
    source, room = torch.full((BIG,), 2, dtype=torch.uint8), torch.empty(BIG, dtype=torch.uint8)
    RDMAAction().write_remote(handle, source).read_remote(room, handle).submit().get(10)
    assert torch.equal(room, source)


def test_an_empty_batch_is_done():
    assert RDMAAction().submit().get(1) is None


def test_one_source_goes_to_many(owners):
    handles = [offer(owners, rank, size=64, value=0) for rank in range(4)]
    action, source = RDMAAction(), torch.ones(64, dtype=torch.uint8)
    for handle in handles:
        action.write_remote(handle, source)
    action.submit().get(5)
    assert list(owners.value.call().get(5).values()) == [[1] * 64] * 4


def test_a_race_in_a_batch_is_refused(owners):
    handle, other = offer(owners, 0, size=64), offer(owners, 1, size=64)
    room = torch.zeros(32)
    action = RDMAAction().read_remote(room[:16], handle).read_remote(room[16:], other)
    with pytest.raises(ValueError, match="use two actions"):
        action.read_remote(room[8:24], handle)
    with pytest.raises(ValueError, match="use two actions"):
        action.write_remote(handle, room[:4])
    action.submit().get(5)


def test_the_first_error_is_that_of_the_batch(owners):
    good, bad = offer(owners, 0, size=64), offer(owners, 1, size=64)
    bad.drop().get(5)
    action = RDMAAction().read_remote(torch.zeros(16), good).read_remote(torch.zeros(16), bad)
    with pytest.raises(ClosedError, match=r"not found: owners\[1\]"):
        action.submit().get(5)


@pytest.mark.parametrize("name", ["fetch_add", "compare_and_swap"])
def test_no_atomic_operations(name):
    with pytest.raises(NotImplementedError, match=name):
        getattr(RDMAAction(), name)(None, None, *[1] * (1 if name == "fetch_add" else 2))


# ------------------------------------------------------------------------------------ bad input


def test_wrong_arguments_are_raised_at_the_call(owners):
    handle = offer(owners, size=64)
    with pytest.raises(ValueError, match="dst has 60 bytes and buffer .* 64"):
        handle.read_into(torch.zeros(15))
    with pytest.raises(ValueError, match="src has 68 bytes"):
        handle.write_from(torch.zeros(17))
    with pytest.raises(ValueError, match="dst is read-only"):
        handle.read_into(memoryview(bytes(64)))
    with pytest.raises(ValueError, match="dst is not contiguous"):
        handle.read_into(torch.zeros(64)[::2])
    with pytest.raises(ValueError, match="src has 2 dimensions"):
        handle.write_from(torch.zeros(4, 4))
    with pytest.raises(TypeError, match="an RDMABuffer is needed here, not int"):
        RDMAAction().read_remote(torch.zeros(4), 3)
    for timeout in (-1, 1 << 64):
        with pytest.raises(OverflowError):
            handle.read_into(torch.zeros(16), timeout=timeout)


def test_wrong_buffers(mesh_runtime):
    for data, said in [
        (torch.zeros(0), "no bytes"),
        (memoryview(b""), "no bytes"),
        (torch.zeros(2, 2), "type t.view"),
        (torch.zeros(4)[::2], "not contiguous"),
        ("text", "not str"),
    ]:
        with pytest.raises(ValueError, match=said):
            RDMABuffer(data)


def test_a_buffer_of_read_only_memory_is_not_written(owners):
    handle = offer(owners, size=8, value=3, kind="memoryview")
    with pytest.raises(ValueError, match="read-only"):
        handle.write_from(torch.zeros(2))
    assert owners.slice(gpus=0).value.call_one().get(5) == [3] * 8


@pytest.mark.parametrize("change", ["size", "serial", "negative", "text"])
def test_a_forged_handle_reads_nothing(owners, change):
    handle = offer(owners, size=64)
    restore, (place, size, *rest) = handle.__reduce__()
    place = list(place)
    if change == "size":
        forged = restore(tuple(place), 1 << 20, *rest)
        with pytest.raises(BrokenError, match="cannot be read: bytes 0 to 1048576 of 64"):
            forged.read_into(torch.zeros(1 << 18)).get(5)
    elif change == "serial":
        place[-1] += 1000
        with pytest.raises(ClosedError, match="not found"):
            restore(tuple(place), size, *rest).read_into(torch.zeros(16)).get(5)
    else:
        place[1] = -1 if change == "negative" else "1"
        with pytest.raises(RemoteProtocolError):
            restore(tuple(place), size, *rest)
