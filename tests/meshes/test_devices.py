"""Which GPUs ranks see."""

import pytest

from monarch_nb.control.hosts.gpus import command_for
from monarch_nb.core.shape.extent import Extent, Point
from monarch_nb.meshes import devices


@pytest.fixture
def gpus(monkeypatch):
    monkeypatch.setattr(devices, "visible_gpus", lambda: ("4", "6"))


def envs(device, ranks, per_host):
    extent = Extent(["gpus"], [ranks])
    command = command_for(device, per_host)
    commands = [command(Point(r, extent)) if callable(command) else command for r in range(ranks)]
    return [each.env["CUDA_VISIBLE_DEVICES"] for each in commands]


def test_each_rank_is_given_one_gpu_of_its_host(gpus):
    assert envs("cuda", 4, 2) == ["4", "6", "4", "6"]
    assert envs("cuda", 3, 3) == ["4", "6", "4"], "more ranks than GPUs share them"
    assert devices.device_of(1, devices.gpus_seen({"CUDA_VISIBLE_DEVICES": "6"})) == "cuda:0"


def test_no_rank_sees_a_gpu(gpus):
    assert envs("cpu", 2, 2) == ["", ""]
    assert devices.device_of(0, devices.gpus_seen({"CUDA_VISIBLE_DEVICES": ""})) == "cpu"


def test_auto_changes_nothing(gpus):
    assert command_for("auto", 2) is None
    assert [devices.device_of(rank, devices.gpus_seen({})) for rank in range(3)] == [
        "cuda:0",
        "cuda:1",
        "cuda:0",
    ]
    assert devices.device_of(1, devices.gpus_seen({"CUDA_VISIBLE_DEVICES": None})) == "cuda:1"


def test_a_host_without_gpus_is_a_sentence(monkeypatch):
    monkeypatch.setattr(devices, "visible_gpus", tuple)
    with pytest.raises(ValueError, match="this host has no GPU that a rank could use"):
        command_for("cuda", 2)
