"""Programs of tensors on a mesh that is simulated: what they would do, without processes."""

import gc
import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from monarch_nb import Actor, context, endpoint, this_host
from monarch_nb.tensor import (
    DeviceMesh,
    Simulator,
    Stream,
    fetch_shard,
    get_active_mesh,
    grad_generator,
    inspect,
    remote,
)
from monarch_nb.tensor.simulation.actors import patch_tensor_engine
from tests.source import ROOT

KIB = 1024


def names(simulator: Simulator) -> list[str]:
    return [each.name for each in simulator.commands]


def test_commands_shapes_ranks_and_lines_are_those_of_the_program():
    simulator = Simulator(hosts=2, gpus=4)
    with simulator.mesh.activate():
        x = torch.zeros(8, 4)
    y = x @ x.T
    with simulator.mesh(host=1).activate():
        z = torch.ones(3, dtype=torch.int64)
    first, _, product, last = simulator.commands
    assert (first.name, first.makes, first.ranks) == (
        "aten.zeros.default",
        ("float32[8, 4]",),
        tuple(range(8)),
    )
    assert (product.name, product.makes) == ("aten.mm.default", ("float32[8, 8]",))
    assert (last.ranks, last.makes) == ((4, 5, 6, 7), ("int64[3]",))
    assert "y = x @ x.T" in product.site.words()
    assert y.shape == (8, 8)
    assert repr(z).startswith("Tensor(int64[3] on simulator")


def test_a_wrong_shape_is_an_error_at_its_line():
    with Simulator(gpus=2).mesh.activate():
        x = torch.zeros(3, 4)
        with pytest.raises(RuntimeError, match=r"same reduction dim, but got \[3, 4\] X \[3, 4\]"):
            x @ x


def test_memory_is_that_of_tensors_that_live_views_take_none():
    simulator = Simulator(hosts=1, gpus=3)
    mesh = simulator.mesh
    with mesh.activate():
        x = torch.zeros(256, KIB)
    view = x.view(-1)[7:]
    part = x.slice_mesh(gpu=0)
    assert {each.now for each in simulator.memory} == {KIB * KIB}
    with mesh(gpu=2).activate():
        more = torch.zeros(KIB)
    assert [each.now - KIB * KIB for each in simulator.memory] == [0, 0, 4 * KIB]
    del x, part
    assert simulator.memory[0].now == KIB * KIB
    del view, more
    gc.collect()
    assert [tuple(each) for each in simulator.memory] == [
        (0, KIB * KIB),
        (0, KIB * KIB),
        (0, KIB * KIB + 4 * KIB),
    ]


def test_what_autograd_keeps_counts_until_the_graph_is_gone():
    simulator = Simulator(gpus=2)
    with simulator.mesh.activate():
        w = torch.ones(KIB, requires_grad=True)
    loss = (w * 2).relu().exp().sum()
    before = simulator.memory[0].now
    assert before == 4 * KIB * 3 + 4  # w, what relu and exp keep, the loss; not w * 2
    loss.backward()
    del loss
    assert simulator.memory[0].now == 2 * 4 * KIB  # w and its gradient


def test_what_is_sent_between_ranks_is_estimated():
    simulator = Simulator(hosts=2, gpus=4)
    with simulator.mesh.activate():
        x = torch.zeros(4, KIB)
    size = 4 * KIB * 4
    x.reduce("gpu", "sum")
    x.reduce(("host", "gpu"), "avg")
    x.reduce("gpu", "stack")
    x.reduce("gpu", "stack", scatter=True)
    assert [each.sends for each in simulator.commands[1:]] == [
        2 * size * 3 // 4,
        2 * size * 7 // 8,
        size * 3,
        size * 3 // 4,
    ]
    assert simulator.commands[1].name == "reduce(gpu, sum)"
    one = x.slice_mesh(host=0)
    moved = one.to_mesh(simulator.mesh.procs)
    assert moved.mesh.sizes == {"host": 2, "gpu": 4}
    [sending, _] = [each for each in simulator.commands if each.name == "to_mesh"]
    assert (sending.ranks, sending.sends) == ((0, 1, 2, 3), 2 * size)


def test_streams_and_loans_are_as_on_ranks():
    simulator = Simulator(gpus=2)
    comms = Stream("comms")
    with simulator.mesh.activate():
        gradient = torch.ones(KIB)
    now = simulator.memory[0].now
    lent, loan = comms.borrow(gradient, mutable=True)
    with loan:
        lent.reduce_("gpu", "sum")
        with pytest.raises(ValueError, match="comms"):
            gradient + 1
    assert simulator.memory[0].now == now  # a loan is no copy
    streams = {each.name: each.stream for each in simulator.commands}
    assert (streams["aten.ones.default"], streams["reduce(gpu, sum)"]) == ("main", "comms")


def test_what_is_fetched_are_zeros_of_its_shape():
    simulator = Simulator(gpus=2)
    with simulator.mesh.activate():
        x = torch.ones(2, 3, dtype=torch.bfloat16)
        found = inspect({"x": x}, gpu=1, host=0)["x"]
    assert torch.equal(found, torch.zeros(2, 3, dtype=torch.bfloat16))
    with pytest.raises(IndexError, match="gpu=2"):
        fetch_shard(x, gpu=2, host=0)


def test_functions_of_the_user_are_noted_by_their_promise():
    @remote(propagate=lambda x: x.new_empty(x.shape[0]))
    def sums(x):
        raise AssertionError

    simulator = Simulator(gpus=2)
    with simulator.mesh.activate():
        found = sums(torch.ones(5, 4))
        assert found.shape == (5,)
        with pytest.raises(RuntimeError, match="simulated: nothing runs there"):
            sums.call(torch.ones(5, 4))
    assert [(each.name, each.makes) for each in simulator.commands[1:2]] == [
        ("sums", ("float32[5]",))
    ]


def test_a_training_step_is_shown_as_a_table_and_as_data(capsys):
    simulator = Simulator(hosts=1, gpus=4, trace_mode="stream_only")
    mesh = simulator.mesh.rename(gpu="dp")
    with mesh.activate():
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        loss = model(torch.rand(8, 64)).square().mean()
        parameters = list(reversed(list(model.parameters())))
        with torch.no_grad():
            for parameter, gradient in zip(
                parameters, grad_generator(loss, parameters), strict=True
            ):
                parameter.sub_(gradient.reduce("dp", "avg"))
    simulator.display()
    table = capsys.readouterr().out.splitlines()
    reductions = [line for line in table if "reduce(dp, avg)" in line]
    assert len(reductions) == 4
    assert "float32[64, 64]" in reductions[1]
    assert "ranks 0-3" in reductions[1]
    assert "24 KiB" in reductions[1]
    assert table[-1].startswith("ranks 0-3: ")
    data = json.loads(json.dumps(simulator.to_dict()))
    assert [each["name"] for each in data["commands"]] == names(simulator)
    assert data["memory"][3]["peak"] == simulator.memory[3].peak


def test_no_fake_tensor_is_made_on_ranks():
    simulator = Simulator(gpus=2)
    with simulator.mesh.activate():
        torch.ones(17, 3).reduce("gpu", "sum")  # its shape is asked for inside the block
    assert names(simulator) == ["aten.ones.default", "reduce(gpu, sum)"]


def test_gpus_can_be_simulated_where_there_are_none():
    simulator = Simulator(gpus=2)
    with simulator.mesh.activate():
        made = [
            torch.rand(3, device="cuda"),
            torch.rand(3).to("cuda"),
            torch.rand(3).cuda(),
            nn.Linear(2, 2).to("cuda").weight,
        ]
        (made[0] * made[1] + made[2]).sum()
    assert len({each.device for each in made}) == 1


def test_what_only_processes_can_do_says_that_there_are_none():
    simulator = Simulator(gpus=2)
    with pytest.raises(RuntimeError, match="it is simulated, and has no processes"):
        simulator.mesh.procs.spawn("trainer", Trainer, 4)
    with pytest.raises(TypeError, match="no setting 'speed'"):
        Simulator(gpus=2, speed=3)


def test_no_client_is_started_for_it():
    program = (
        "import torch\nfrom monarch_nb.tensor import Simulator, inspect\n"
        "with Simulator(gpus=1000).mesh.activate():\n"
        "    torch.manual_seed(3)\n"
        "    print(inspect(torch.rand(3).reduce('gpu', 'sum')).shape)\n"
        "from monarch_nb.control.client import running_client\nprint(running_client())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.stdout == "torch.Size([3])\nNone\n", done.stderr


# ------------------------------------------------------------------ actors with simulated tensors


class Trainer(Actor):
    def __init__(self, width: int) -> None:
        self.procs = context().actor_instance.proc_mesh
        with self.procs.activate():
            self.weight = torch.ones(width, width, device="cuda", requires_grad=True)

    @endpoint
    def step(self) -> tuple[float, str]:
        with self.procs.activate():
            loss = (self.weight @ self.weight).mean()
            loss.backward()
            return fetch_shard(loss.detach()).get().item(), get_active_mesh().name


def _named(mesh) -> DeviceMesh:
    return Simulator(hosts=1, gpus=len(mesh)).mesh


@pytest.mark.slow
def test_actors_find_a_simulated_mesh(mesh_runtime):
    procs = this_host().spawn_procs({"gpus": 2}, name="trainers")
    with patch_tensor_engine(Trainer):
        trainers = procs.spawn("trainer", Trainer, 4)
    assert trainers.step.call().get(30).values() == [(0.0, "trainers-simulated")] * 2
    assert trainers.step.call().get(30).values()[0][0] == 0.0  # the same mesh again
    with patch_tensor_engine(Trainer, _named):
        other = procs.spawn("other", Trainer, 4)
    assert other.slice(gpus=0).step.call_one().get(30)[1] == "simulator"
