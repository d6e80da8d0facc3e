"""What programs of Monarch's tensor engine ask of a `DeviceMesh` and of a tensor."""

import pytest
import torch

from monarch_nb import this_host
from monarch_nb.tensor import fetch_shard, spawn_tensor_engine
from monarch_nb.tensor.remote_functions.builtins import set_manual_seed_remote

pytestmark = [pytest.mark.usefixtures("mesh_runtime"), pytest.mark.slow]


def test_the_numbers_of_ranks():
    devices = spawn_tensor_engine(this_host().spawn_procs({"hosts": 2, "gpus": 2}))
    assert torch.equal(devices.to_tensor(), torch.tensor([[0, 1], [2, 3]], dtype=torch.int))
    part = devices.slice(gpus=1)
    assert part.to_tensor().tolist() == [1, 3]
    with part.activate():
        number = part.process_idx()
    assert fetch_shard(number, hosts=1).get().item() == 3
    with devices.activate():
        assert devices.to_tensor().tolist() == [[0, 1], [2, 3]]


def test_a_tensor_tells_whether_it_was_dropped():
    devices = spawn_tensor_engine(this_host().spawn_procs({"gpus": 1}))
    with devices.activate():
        x = torch.ones(2)
    assert not x.dropped
    x.drop()
    assert x.dropped


def test_ranks_are_seeded_one_by_one():
    devices = spawn_tensor_engine(this_host().spawn_procs({"gpus": 2}))
    with devices.activate():
        drawn = []
        for _ in range(2):
            set_manual_seed_remote(7, devices.process_idx())
            drawn.append(torch.rand(3))
    first, again = ([fetch_shard(x, gpus=i).get() for i in range(2)] for x in drawn)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], first[1])
