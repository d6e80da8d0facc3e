"""Programs for torchrun on the ranks of a mesh; checkpoints that other numbers of ranks read."""

import asyncio
import os

import pytest

from monarch_nb import Actor, ActorError, endpoint
from monarch_nb.spmd import SPMDActor, setup_torch_elastic_env, setup_torch_elastic_env_async

NAMES = [
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR"),
]
SCRIPT = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1); dist.all_reduce(x); dist.destroy_process_group()
open(f"{sys.argv[1]}/{os.environ['RANK']}", "w").write(f"{__name__} {x.item()}")
"""


@pytest.fixture
def up(spawn):
    def ranks(**axes: int):
        return spawn(per_host=axes)

    return ranks


def environment() -> dict[str, str]:
    return {name: os.environ[name] for name in (*NAMES, "MASTER_PORT")}


def check(procs) -> None:
    found = list(procs.execute(environment).values())
    assert [[each[name] for name in NAMES] for each in found] == [
        [str(r), str(r % 2), "4", "2", str(r // 2), "2", str(r), "4", "rank", "127.0.0.1"]
        for r in range(4)
    ]
    assert len({each["MASTER_PORT"] for each in found}) == 1


def test_the_environment_of_torchrun(up):
    procs = up(rows=2, gpus=2)
    setup_torch_elastic_env(procs)
    check(procs)


def test_the_environment_of_torchrun_awaited(up):
    procs = up(rows=2, gpus=2)
    asyncio.run(setup_torch_elastic_env_async(procs))
    check(procs)


def test_an_address_of_ones_own(up):
    procs = up(gpus=2)
    setup_torch_elastic_env(procs, "127.0.0.1", 29511)
    assert {each["MASTER_PORT"] for each in procs.execute(environment).values()} == {"29511"}
    with pytest.raises(ValueError, match="master_addr and master_port, or neither"):
        setup_torch_elastic_env(procs, "127.0.0.1")
    with pytest.raises(ActorError, match="from 1 to 65535, not 0"):
        setup_torch_elastic_env(procs, "127.0.0.1", 0)


@pytest.mark.parametrize("as_module", [False, True])
def test_a_script_runs_as_under_torchrun(up, tmp_path, monkeypatch, as_module):
    (tmp_path / "trainer.py").write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    procs = up(gpus=2)
    actors = procs.spawn("spmd", SPMDActor)
    _, port = actors.slice(gpus=0).get_host_port.call_one(None).get()
    program = ["-m", "trainer"] if as_module else [str(tmp_path / "trainer.py")]
    if as_module:
        procs.execute(lambda path: __import__("sys").path.insert(0, path), str(tmp_path))
    ended = actors.main.call("127.0.0.1", port, [*program, str(tmp_path)]).get(timeout=40)
    assert list(ended.values()) == [True, True]
    assert [(tmp_path / str(rank)).read_text() for rank in (0, 1)] == ["__main__ 2.0"] * 2


def test_a_script_that_fails_is_an_error_with_its_code(up, tmp_path):
    (tmp_path / "bad.py").write_text("import sys; sys.exit(3)")
    actors = up(gpus=1).spawn("spmd", SPMDActor)
    with pytest.raises(ActorError, match=r"bad.py ended with exit code 3"):
        actors.main.call("127.0.0.1", 29511, [str(tmp_path / "bad.py")]).get(timeout=20)
    with pytest.raises(ActorError, match="nothing to run"):
        actors.main.call("127.0.0.1", 29511, ["-m"]).get(timeout=20)


# ------------------------------------------------------------------------- checkpoints, first use


class Trainer(Actor):
    """A model that is sharded over all ranks, and a DTensor."""

    def __init__(self, mesh, seed: int) -> None:
        import torch
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import Shard, distribute_tensor

        torch.manual_seed(seed)
        self.model = torch.nn.Linear(8, 8)
        devices = mesh.device_mesh()
        fully_shard(self.model, mesh=devices)
        self.table = distribute_tensor(torch.randn(8, 4), devices, [Shard(0)])

    def _state(self):
        from torch.distributed.checkpoint.state_dict import get_model_state_dict

        return {"model": get_model_state_dict(self.model), "table": self.table}

    @endpoint
    def save(self, path: str) -> None:
        import torch.distributed.checkpoint as dcp

        dcp.save(self._state(), checkpoint_id=path)

    @endpoint
    def load(self, path: str) -> None:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import set_model_state_dict

        state = self._state()
        dcp.load(state, checkpoint_id=path)
        set_model_state_dict(self.model, state["model"])

    @endpoint
    def whole(self):
        return self.model.weight.full_tensor().detach(), self.table.full_tensor()


@pytest.mark.slow
def test_a_checkpoint_of_four_ranks_is_read_by_two(up, tmp_path):
    import torch

    four = up(gpus=4)
    first = four.spawn("trainers", Trainer, four, 0)
    first.save.call(str(tmp_path)).get(timeout=60)
    two = up(gpus=2)
    second = two.spawn("trainers", Trainer, two, 1)
    wanted = first.whole.call().get(timeout=60).values()
    other = second.whole.call().get(timeout=60).values()
    second.load.call(str(tmp_path)).get(timeout=60)
    found = second.whole.call().get(timeout=60).values()
    wanted, [other, *_], found = next(iter(wanted)), list(other), list(found)
    assert not torch.equal(other[0], wanted[0])
    for each in found:
        torch.testing.assert_close(each, wanted)


def test_an_endpoint_and_a_function_use_the_default_group_at_once(up):
    class Summer(Actor):
        @endpoint
        def sum(self) -> float:
            return total()

    procs = up(gpus=4)
    assert list(procs.spawn("summers", Summer).sum.call().get(timeout=40).values()) == [4.0] * 4
    assert list(procs.execute(total).values()) == [4.0] * 4


def total() -> float:
    import torch
    import torch.distributed as dist

    x = torch.ones(1)
    dist.all_reduce(x)
    return float(x)
