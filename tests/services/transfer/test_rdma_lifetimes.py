"""How long a buffer is there, and what is said when it is not."""

import os
import signal
import threading
import time

import pytest
import torch

from monarch_nb import RankExited, RDMABuffer
from monarch_nb.errors import ClosedError
from tests.services.transfer.owners import BIG, MB, Owner, here, offer
from tests.support import eventually, is_running


def test_a_dropped_buffer_is_not_found(owners):
    handle = offer(owners, size=64)
    room = torch.zeros(16)
    assert handle.drop().get(5) is None
    handle.drop().get(5)
    for future in (handle.read_into(room), handle.write_from(room)):
        with pytest.raises(ClosedError, match=r"buffer \d+ not found: owners\[0\] has dropped it"):
            future.get(5)
    assert not room.any()


def test_anybody_may_drop(owners):
    handle = offer(owners, size=64)
    owners.slice(gpus=3).drop.call_one(handle).get(5)
    with pytest.raises(ClosedError):
        handle.read_into(torch.zeros(16)).get(5)
    mine = RDMABuffer(torch.zeros(16))
    owners.slice(gpus=3).drop.call_one(mine).get(5)
    assert here()["buffers"] == 0
    with pytest.raises(ClosedError):
        mine.read_into(torch.zeros(16)).get(5)


def test_memory_is_kept_though_its_owner_forgets_it(owners):
    handle = offer(owners, size=4 * MB, value=7)
    offer(owners, size=4 * MB, value=8)  # the attribute of the actor is another tensor now
    owners.collect.call().get(5)
    room = torch.empty(4 * MB, dtype=torch.uint8)
    handle.read_into(room).get(5)
    assert set(room.tolist()[:: 1 << 16]) == {7}


def test_an_actor_that_stops_takes_its_buffers_along(owners, procs):
    short = procs.slice(gpus=1).spawn("short", Owner)
    handle = short.offer.call_one(64).get(5)["nested"][0]
    short.stop().get(5)
    with pytest.raises(ClosedError, match=r"short\[0\] has dropped it, or has ended"):
        handle.read_into(torch.zeros(16)).get(5)


def end(pid):
    """SIGKILL, and wait until the kernel has ended it: `kill` returns while the process may still
    run, and till then its memory can be read."""
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not is_running(pid))


@pytest.mark.fault
@pytest.mark.parametrize("size", [64, BIG])
def test_a_dead_owner_is_named_at_once(spawn, failures, size):
    mesh = spawn(per_host={"gpus": 1}, name="mortal")
    owner = mesh.spawn("owner", Owner)
    handle = owner.offer.call_one(size, 1).get(10)["nested"][0]
    end(owner.pid.call_one().get(5))
    start = time.monotonic()
    with pytest.raises(RankExited, match=r"of owner\[0\] cannot be read:.*SIGKILL") as raised:
        handle.read_into(torch.zeros(size, dtype=torch.uint8)).get(10)
    assert time.monotonic() - start < 2
    assert raised.value.signal == signal.SIGKILL
    with pytest.raises(RankExited, match="cannot be written"):
        handle.write_from(torch.zeros(4)).get(5)
    handle.drop().get(5)
    assert here()["buffers"] == 0


@pytest.mark.fault
def test_an_owner_that_dies_meanwhile_is_named(spawn, failures):
    mesh = spawn(per_host={"gpus": 1}, name="mortal")
    owner = mesh.spawn("owner", Owner)
    handle = owner.offer.call_one(BIG, 1).get(10)["nested"][0]
    pid = owner.pid.call_one().get(5)
    room = torch.zeros(BIG, dtype=torch.uint8)
    killer = threading.Thread(target=os.kill, args=(pid, signal.SIGKILL))

    def read_until_the_end():
        while True:
            handle.read_into(room).get(10)
            if not killer.is_alive() and killer.ident is None:
                killer.start()

    with pytest.raises(RankExited, match="SIGKILL"):
        read_until_the_end()
    killer.join()
