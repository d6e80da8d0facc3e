"""`torch.distributed.checkpoint`: what four ranks have saved, two load."""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from monarch_nb import Actor, endpoint
from tests.control.conftest import WITHIN_S

CELL = """
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

part = mesh.slice(gpus=slice(0, {ranks}))
torch.manual_seed({seed})
model = torch.nn.Linear(3, 8)
wanted = model.weight.detach().clone()
fully_shard(model, mesh=part.device_mesh())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
model(torch.ones(2, 3)).sum().backward()
optimizer.step()
d = distribute_tensor(torch.arange(8.) * {scale}, part.device_mesh(), [Shard(0)])
state = {{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "d": d}}
"""
SAVE = CELL + "dcp.save(state, checkpoint_id={path!r}, process_group=part.group())\n"
LOAD = CELL + (
    "dcp.load(state, checkpoint_id={path!r}, process_group=part.group())\n"
    "assert torch.equal(d.full_tensor(), torch.arange(8.))\n"
    "assert d.to_local().shape == (8 // {ranks},)\n"
    "optimizer.load_state_dict(state['optimizer'])\n"
    "weights = model.weight.full_tensor()\n"
)


class Keeper(Actor):
    """Saves and loads in endpoints."""

    @endpoint
    def save(self, mesh, path) -> list:
        model = torch.nn.Linear(3, 8)
        fully_shard(model, mesh=mesh.device_mesh())
        dcp.save(model.state_dict(), checkpoint_id=path, process_group=mesh.group())
        weight = model.weight
        assert isinstance(weight, DTensor)
        return weight.full_tensor().tolist()

    @endpoint
    def load(self, mesh, path) -> list:
        state = {"weight": distribute_tensor(torch.zeros(8, 3), mesh.device_mesh(), [Shard(0)])}
        dcp.load(state, checkpoint_id=path, process_group=mesh.group())
        return state["weight"].full_tensor().tolist()


def ok(made, code: str, **where) -> None:
    run = made.start(code, **where)
    assert run.wait(WITHIN_S), run
    assert not [each.error for each in run.outcomes.values() if each.status != "ok"]


@pytest.mark.slow
def test_cells_save_on_four_ranks_and_load_on_two(mesh, tmp_path):
    made = mesh(4)
    ok(made, SAVE.format(ranks=4, seed=1, scale=1, path=str(tmp_path)))
    ok(made, "saved = model.weight.full_tensor()")
    saved = made.procs.slice(gpus=0)["saved"].item()
    two = {"gpus": slice(0, 2)}
    ok(made, LOAD.format(ranks=2, seed=2, scale=0, path=str(tmp_path)), **two)
    assert torch.equal(made.procs.slice(gpus=1)["weights"].item(), saved)
    ok(made, "assert optimizer.state_dict()['state'][0]['step'].item() == 1", **two)


@pytest.mark.slow
def test_endpoints_save_on_four_ranks_and_load_on_two(mesh, tmp_path):
    procs = mesh(4).procs
    keepers, half = procs.spawn("keepers", Keeper), {"gpus": slice(0, 2)}
    [saved, *_] = keepers.save.call(procs, str(tmp_path)).get().values()
    loaded = keepers.slice(**half).load.call(procs.slice(**half), str(tmp_path)).get().values()
    assert list(loaded) == [saved, saved]
