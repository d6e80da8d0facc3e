"""send_tensor and recv_tensor: matched by peer and tag, in order; whoever waits is told of ends."""

import os
import signal
import time

import pytest
import torch

from monarch_nb import Actor, BrokenError, RankExited, concurrent_endpoint, recv_tensor, send_tensor
from monarch_nb.process import current
from tests.services.transfer.owners import BIG
from tests.support import eventually


class Peer(Actor):
    @concurrent_endpoint
    async def send(self, values, to, tag=0, within=60):
        for value in values:
            await send_tensor(value, to, tag=tag, timeout=within)

    @concurrent_endpoint
    async def receive(self, source, count=1, tag=0, within=60):
        return [await recv_tensor(source, tag=tag, timeout=within) for _ in range(count)]

    @concurrent_endpoint
    async def receive_into(self, out, source):
        found = await recv_tensor(source, out=out)
        assert found is out
        return out

    @concurrent_endpoint
    async def send_made(self, size, to):
        await send_tensor(torch.full((size,), 7, dtype=torch.uint8), to)

    @concurrent_endpoint
    async def receive_sum(self, source):
        return int((await recv_tensor(source)).sum())

    @concurrent_endpoint
    async def pid(self):
        return os.getpid()

    @concurrent_endpoint
    async def registered(self):
        return current.runtime().buffers.statistics()["buffers"]


@pytest.fixture
def peers(procs):
    made = procs.spawn("peers", Peer)
    yield made
    eventually(lambda: set(made.registered.call().get(5).values()) == {0})
    made.stop().get(5)


def one(peers, rank):
    return peers.slice(gpus=rank)


@pytest.mark.parametrize("first", ["send", "receive"])
def test_tensors_come_in_order_whoever_is_first(peers, first):
    values = [torch.arange(6).view(2, 3), torch.tensor(1.5), torch.zeros(0), torch.ones(2) > 0]
    calls = {
        "send": lambda: one(peers, 0).send.call_one(values, one(peers, 1)),
        "receive": lambda: one(peers, 1).receive.call_one(one(peers, 0), len(values)),
    }
    futures = {first: calls.pop(first)()}
    futures |= {name: call() for name, call in calls.items()}
    for found, value in zip(futures["receive"].get(10), values, strict=True):
        assert torch.equal(found, value)
        assert found.dtype == value.dtype
    futures["send"].get(5)


def test_tags_are_matched(peers):
    sends = [one(peers, 0).send.call_one([torch.tensor(tag)], 1, tag) for tag in (1, 2)]
    for tag in (2, 1):
        assert one(peers, 1).receive.call_one(0, 1, tag).get(5) == [torch.tensor(tag)]
    for each in sends:
        each.get(5)


def test_large_ones_and_strided_ones(peers):
    send = one(peers, 2).send_made.call_one(BIG, one(peers, 3))
    assert one(peers, 3).receive_sum.call_one(one(peers, 2)).get(10) == 7 * BIG
    send.get(5)
    strided = torch.arange(12.0).view(3, 4).T
    send = one(peers, 2).send.call_one([strided], 3)
    assert torch.equal(one(peers, 3).receive.call_one(2).get(5)[0], strided)
    send.get(5)


def test_into_a_tensor(peers):
    send = one(peers, 0).send.call_one([torch.ones(2, 3)], 1)
    found = one(peers, 1).receive_into.call_one(torch.zeros(3, 2).T, 0).get(5)
    assert torch.equal(found, torch.ones(2, 3))
    send.get(5)


def test_from_the_client(procs, peers):
    receive = one(peers, 1).send.call_one([torch.ones(3)], 0)
    with pytest.raises(TimeoutError, match=r"recv_tensor: no tensor with tag 0 came within 0.05 s"):
        recv_tensor(procs.slice(gpus=1), timeout=0.05).get(5)
    one(peers, 0).receive.call_one(1).get(5)
    receive.get(5)


def test_what_does_not_fit_is_told_to_both(peers):
    send = one(peers, 0).send.call_one([torch.ones(3)], 1)
    said = r"torch.float32 of shape \(3,\) was sent, out is torch.float64 of \(4,\)"
    with pytest.raises(Exception, match=said):
        one(peers, 1).receive_into.call_one(torch.zeros(4, dtype=torch.float64), 0).get(5)
    with pytest.raises(Exception, match=f"send_tensor: not received: {said}") as raised:
        send.get(5)
    assert isinstance(raised.value.exception, BrokenError)


def test_nobody_receives(peers):
    with pytest.raises(Exception, match=r"not received within 0.05 s \(tag 9\)"):
        one(peers, 0).send.call_one([torch.ones(3)], 1, 9, 0.05).get(5)


@pytest.mark.parametrize("peer", [9, -1, "one", None])
def test_a_peer_is_one_rank(peers, peer):
    with pytest.raises(Exception, match="not one of the 4 ranks|a peer is one rank"):
        one(peers, 0).receive.call_one(peer).get(5)


def test_a_mesh_is_no_peer(procs):
    with pytest.raises(ValueError, match=r"a peer is one rank; type mesh.slice\(gpus=0\)"):
        send_tensor(torch.ones(3), procs)


@pytest.mark.fault
@pytest.mark.parametrize("verb", ["send", "receive"])
def test_the_death_of_the_peer_ends_the_wait(spawn, failures, verb):
    mesh = spawn(per_host={"gpus": 2}, name="mortal")
    peers = mesh.spawn("peers", Peer)
    pid = one(peers, 1).pid.call_one().get(10)
    send = verb == "send"
    waiting = one(peers, 0).send.call_one([torch.ones(3)], 1) if send else (
        one(peers, 0).receive.call_one(1)
    )  # fmt: skip
    assert one(peers, 0).pid.call_one().get(5)
    os.kill(pid, signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(Exception, match="SIGKILL") as raised:
        waiting.get(10)
    assert time.monotonic() - start < 2
    assert isinstance(raised.value.exception, RankExited)
