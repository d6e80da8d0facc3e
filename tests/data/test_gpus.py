"""Which GPUs there are, and which of them is meant for a rank."""

import pytest

from monarch_nb.control.hosts.gpus import check_here, command_for
from monarch_nb.core.wire.messages.agents import Spawn
from monarch_nb.data import gpus
from monarch_nb.host.agent import requests
from monarch_nb.host.launch import AgentBoot


@pytest.fixture
def two(monkeypatch):
    monkeypatch.setattr(gpus, "visible_gpus", lambda: ("4", "6"))


def ranks(count, **options):
    """The boot records that a host makes for so many ranks, and what all of them get."""
    boot = AgentBoot(run_dir="/run", agent=1, controller=2)
    procs = list(range(10, 10 + count))
    request = requests.fork_request(
        Spawn(procs, **options), [], boot, [("board", index) for index in range(count)]
    )
    return request["ranks"], request["common"]


def seen(rank):
    return rank["device"], rank["env"].get("CUDA_VISIBLE_DEVICES")


def test_a_rank_is_told_which_gpu_is_meant_for_it(two):
    found, common = ranks(3)
    assert [seen(each) for each in found] == [("cuda:0", None), ("cuda:1", None), ("cuda:0", None)]
    assert common["shares_gpus"]
    assert not ranks(2)[1]["shares_gpus"]
    assert ranks(1, host_size=3)[1]["shares_gpus"], "one that starts again has others beside it"


def test_each_rank_sees_one_gpu_of_its_own(two):
    found, common = ranks(3, own_gpu=[True] * 3)
    assert [seen(each) for each in found] == [("cuda:0", "4"), ("cuda:0", "6"), ("cuda:0", "4")]
    assert common["shares_gpus"]
    assert seen(ranks(1, slots=[1], own_gpu=[True])[0][0]) == ("cuda:0", "6")


def test_what_the_environment_says_counts(two):
    found, _ = ranks(2, env={"CUDA_VISIBLE_DEVICES": ""})
    assert [seen(each) for each in found] == [("cpu", "")] * 2
    found, _ = ranks(2, env={"CUDA_VISIBLE_DEVICES": "6"}, own_gpu=[True] * 2)
    assert [seen(each) for each in found] == [("cuda:0", "6")] * 2
    each_its_own = [{"CUDA_VISIBLE_DEVICES": "4"}, {"CUDA_VISIBLE_DEVICES": "6"}]
    assert not ranks(2, rank_env=each_its_own, shares_gpus=False, host_size=8)[1]["shares_gpus"]


def test_a_host_without_gpus(monkeypatch):
    monkeypatch.setattr(gpus, "visible_gpus", tuple)
    found, common = ranks(2)
    assert [seen(each) for each in found] == [("cpu", None)] * 2
    assert not common["shares_gpus"]
    with pytest.raises(ValueError, match=r"no GPU that a rank could use\. Type: --device cpu"):
        ranks(1, own_gpu=[True])
    with pytest.raises(ValueError, match="this host has no GPU that a rank could use"):
        check_here("cuda")
    check_here("auto")


def test_the_command_of_a_device():
    assert command_for("auto") is None
    assert command_for("cpu").env == {"CUDA_VISIBLE_DEVICES": ""}
    assert command_for("cuda").own_gpu
    assert not command_for("cpu").own_gpu


def test_those_that_nobody_has():
    assert gpus.free_slots({"4"}, ("4", "6")) == [1]
    assert gpus.chosen_gpus("0, 2,-1") == ("0", "2")
