"""Buffers of another host: served by the owner's inbox thread over the links that are there."""

import os
import signal

import pytest
import torch

from monarch_nb import RankExited, attach_to_workers
from monarch_nb.process import current
from monarch_nb.rdma import RDMATcpFallbackWarning
from tests.services.transfer.owners import BIG, Owner, offer
from tests.support import stop

pytestmark = pytest.mark.filterwarnings("ignore:buffer:monarch_nb.rdma.RDMATcpFallbackWarning")


@pytest.fixture
def two_hosts(workers):
    addresses, _ = workers(2)
    procs = attach_to_workers(workers=addresses).spawn_procs(per_host={"gpus": 1})
    yield procs.spawn("owners", Owner).flatten("gpus")
    assert current.runtime().buffers.statistics()["buffers"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("size", [64, BIG + 3])
def test_read_and_write_between_hosts(two_hosts, size):
    handle = offer(two_hosts, 0, size=size, value=7)
    assert handle.backend == "tcp"
    room = torch.zeros(size, dtype=torch.uint8)
    with pytest.warns(RDMATcpFallbackWarning, match=r"of owners\[0\] is on another host"):
        handle.read_into(room).get(30)
    assert int(room.sum()) == 7 * size
    use = two_hosts.slice(gpus=1).use.call_one(handle, size)
    assert use.get(30) == (7 * size, "tcp")
    handle.read_into(room).get(30)
    assert int(room.sum()) == 8 * size


@pytest.mark.slow
def test_the_owner_computes_meanwhile(two_hosts):
    handle = offer(two_hosts, 0, size=BIG, value=7)
    sleep = two_hosts.slice(gpus=0).sleep.call_one(30.0)
    room = torch.zeros(BIG, dtype=torch.uint8)
    handle.read_into(room).get(10)
    assert int(room.sum()) == 7 * BIG
    assert not sleep.done()
    sleep.cancel()


@pytest.mark.slow
@pytest.mark.fault
def test_an_owner_on_another_host_dies(two_hosts, monkeypatch):
    monkeypatch.setattr("monarch_nb.unhandled_fault_hook", lambda _: None, raising=False)
    handle = offer(two_hosts, 0, size=BIG, value=7)
    pid = two_hosts.slice(gpus=0).pid.call_one().get(10)
    room = torch.zeros(BIG, dtype=torch.uint8)
    stop(pid)
    waiting = handle.read_into(room)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RankExited, match=r"of owners\[0\] cannot be read:.*SIGKILL"):
        waiting.get(10)
