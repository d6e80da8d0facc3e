"""Where a process cannot copy by itself, the owner of a buffer serves it."""

import os
import signal

import pytest
import torch

from monarch_nb import RankExited
from monarch_nb.errors import BrokenError, CallCancelled, ClosedError
from tests.services.transfer.owners import BIG, Owner, offer
from tests.support import stop


@pytest.fixture
def refused(monkeypatch):
    """The kernel allows no copy between processes: as with ptrace_scope 2, or in a sandbox."""
    from monarch_nb.data import onesided

    def refuse(*_, **__):
        raise onesided.Unreachable("Operation not permitted")

    monkeypatch.setattr(onesided, "_move", refuse)


@pytest.mark.parametrize("size", [64, BIG + 5])
def test_the_owner_serves_what_the_kernel_refuses(owners, refused, size):
    handle = offer(owners, size=size, value=7)
    room = torch.zeros(size, dtype=torch.uint8)
    handle.read_into(room).get(20)
    assert int(room.sum()) == 7 * size
    handle.write_from(torch.full((size,), 9, dtype=torch.uint8)).get(20)
    handle.read_into(room).get(20)
    assert int(room.sum()) == 9 * size


def test_a_busy_owner_serves(owners, refused):
    handle = offer(owners, size=BIG, value=7)
    busy = owners.slice(gpus=0).hold_the_interpreter.call_one(0.3)
    room = torch.zeros(BIG, dtype=torch.uint8)
    handle.read_into(room).get(20)
    assert int(room.sum()) == 7 * BIG
    busy.get(5)


def test_served_errors(owners, refused):
    handle = offer(owners, size=64)
    restore, (place, _, *rest) = handle.__reduce__()
    with pytest.raises(BrokenError, match="cannot be read: bytes 0 to 1024 of 64"):
        restore(place, 1024, *rest).read_into(torch.zeros(256)).get(5)
    constant = offer(owners, size=8, value=3, kind="memoryview")
    restore, (place, size, _, *rest) = constant.__reduce__()
    with pytest.raises(BrokenError, match="cannot be written: it is read-only"):
        restore(place, size, True, *rest).write_from(torch.zeros(2)).get(5)
    handle.drop().get(5)
    with pytest.raises(ClosedError, match="not found"):
        handle.read_into(torch.zeros(16)).get(5)


@pytest.mark.fault
def test_a_stopped_owner_serves_nothing_until_time_is_up(owners, refused):
    handle = offer(owners, size=BIG, value=7)
    pid = owners.slice(gpus=0).pid.call_one().get(5)
    room = torch.zeros(BIG, dtype=torch.uint8)
    stop(pid)
    try:
        with pytest.raises(
            TimeoutError, match=r"buffer \d+ of owners\[0\] was not read within 0.1"
        ):
            handle.read_into(room, timeout=0.1).get(5)
        waiting = handle.read_into(room)
        assert waiting.cancel() is True
        with pytest.raises(CallCancelled, match="half written"):
            waiting.get(5)
        assert waiting.cancel() is False
    finally:
        os.kill(pid, signal.SIGCONT)
    owners.slice(gpus=0).value.call_one().get(5)
    assert not room.any()


@pytest.mark.fault
def test_a_server_that_dies_is_named(spawn, failures, refused):
    mesh = spawn(per_host={"gpus": 1}, name="mortal")
    owner = mesh.spawn("owner", Owner)
    handle = owner.offer.call_one(BIG, 1).get(10)["nested"][0]
    pid = owner.pid.call_one().get(5)
    stop(pid)
    waiting = handle.read_into(torch.zeros(BIG, dtype=torch.uint8))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RankExited, match=r"of owner\[0\] cannot be read:.*SIGKILL"):
        waiting.get(10)
