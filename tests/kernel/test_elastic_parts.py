"""Training of models of which ranks have parts goes on when ranks are killed: who has the same
gives it back, else all go back to the last snapshot, and lose nothing but the time.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kernel.client import KernelClient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

IMPORTS = """%%mesh
import os, signal, struct, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from monarch_nb import elastic
from monarch_nb.elastic import loop, moving
dist.init_process_group("gloo")
on_recovery = None"""
MADE = """%%mesh
def net():
    return torch.nn.Sequential(*[
        torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Dropout(0.2))
        for _ in range(4)
    ])

def made(seed, shuffles=True):
    torch.manual_seed(seed)
    model = spread(net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = TensorDataset(torch.randn(96, 32), torch.randn(96, 32), torch.arange(96))
    torch.manual_seed(100 * seed + rank)
    sampler = DistributedSampler(data) if shuffles else None
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    return elastic.State(model=model, optimizer=optimizer, loader=loader)"""
SHARDED = """%%mesh
grid = init_device_mesh("cpu", {sizes}, mesh_dim_names={names})

def spread(model):
    for layer in model:
        fully_shard(layer, mesh=grid)
    return fully_shard(model, mesh=grid)"""
FLAT = SHARDED.format(sizes=(4,), names=("shard",))
HYBRID = SHARDED.format(sizes=(2, 2), names=("replicate", "shard"))
OWN = """%%mesh
def spread(model):
    return model"""
STEP = """%%mesh
def dies(point, state, when, who, path):
    if rank in who and (state.step, point) == when and not os.path.exists(f"{path}-died-{rank}"):
        open(f"{path}-died-{rank}", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)

def train_step(state, when, who, path):
    inputs, targets, numbers = state.batch
    dies("begun", state, when, who, path)
    found = state.model(inputs)
    dies("forward", state, when, who, path)
    loss = torch.nn.functional.mse_loss(found, targets)
    state.optimizer.zero_grad()
    loss.backward()
    dies("backed", state, when, who, path)
    state.optimizer.step()
    bits = struct.pack("<f", loss.item()).hex()
    with open(f"{path}-{rank}", "a") as file:
        file.write(f"{state.step} {bits} {sorted(numbers.tolist())}\\n")
    dies("stepped", state, when, who, path)"""
PIPELINE = """%%mesh
def spread(model):
    return model[rank]

def connect():
    global schedule
    stage = PipelineStage(state.model, rank, 4, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=torch.nn.functional.mse_loss)

on_recovery = connect

def train_step(state, when, who, path):
    inputs, targets, numbers = state.batch
    dies("begun", state, when, who, path)
    losses = []
    state.optimizer.zero_grad()
    schedule.step(*[inputs] * (rank == 0), target=targets, losses=losses)
    dies("backed", state, when, who, path)
    state.optimizer.step()
    bits = struct.pack("<f", sum(losses, torch.zeros(())).item()).hex()
    with open(f"{path}-{rank}", "a") as file:
        file.write(f"{state.step} {bits} {sorted(numbers.tolist())}\\n")
    dies("stepped", state, when, who, path)"""
TRAIN = """%%mesh
state = made(5, {shuffles})
if on_recovery is not None:
    on_recovery()
for state in elastic.run(state, until={until}, snapshot_every=4, on_recovery=on_recovery):
    train_step(state, {when!r}, {who!r}, {path!r})
print("done at", state.step)"""
DIES_MOVING = """%%mesh
def dies_moving(name, who, at, path):
    plain, count = getattr(moving, name), [0]
    def moves(*args):
        count[0] += 1
        if count[0] == at and not os.path.exists(f"{path}-died-{rank}"):
            open(f"{path}-died-{rank}", "w").close()
            if name == "begin_to_send":
                plain(*args)
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*args)
    if rank == who:
        setattr(moving, name, moves)"""
DIES_RECOVERING = """%%mesh
def dies_recovering(who, path):
    plain = loop.Run._go_back
    def goes_back(self, orders):
        if not os.path.exists(f"{path}-recovering"):
            open(f"{path}-recovering", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        plain(self, orders)
    if rank == who:
        loop.Run._go_back = goes_back"""
UNTIL = 14
NOBODY = (-1, "")


class Training:
    """Runs of the same training in one kernel, and what its ranks have written."""

    def __init__(self, kernel: KernelClient, folder: Path, *cells: str) -> None:
        self.kernel = kernel
        self.folder = folder
        self.shuffles = PIPELINE not in cells
        kernel.ok("%mesh up --gpus 4", timeout_s=60)
        for code in (IMPORTS, *cells, MADE):
            kernel.ok(code)
        self.run("plain")
        self.plain = self.once("plain")

    def code(self, name: str, when: tuple[int, str] = NOBODY, who: tuple[int, ...] = ()) -> str:
        path = str(self.folder / name)
        return TRAIN.format(until=UNTIL, when=when, who=who, path=path, shuffles=self.shuffles)

    def run(self, name: str, when: tuple[int, str] = NOBODY, who: tuple[int, ...] = ()) -> str:
        cell = self.kernel.ok(self.code(name, when, who), timeout_s=90)
        assert f"[0-3] done at {UNTIL}" in cell.text()
        return cell.text("stderr")

    def lines(self, name: str) -> list[list[str]]:
        return [(self.folder / f"{name}-{rank}").read_text().splitlines() for rank in range(4)]

    def once(self, name: str) -> list[list[str]]:
        """Return the lines without those of steps that ran again."""
        return [list(dict.fromkeys(each)) for each in self.lines(name)]

    def comes_back(self, when: tuple[int, str], who: tuple[int, ...]) -> int:
        """Train with a kill, assert that losses are the same, and return at which step all went
        on."""
        name = f"{when[0]}-{when[1]}"
        said = self.run(name, when, who)
        assert self.once(name) == self.plain, name
        return int(said.split("goes on at step")[-1])

    def goes_back(self, when: tuple[int, str], who: tuple[int, ...]) -> None:
        """Do so, and assert that all went on at the last snapshot, or at the one before while that
        was on its way."""
        step = when[0] // 4 * 4
        assert self.comes_back(when, who) in (step, max(step - 4, 0))


@pytest.fixture
def train(kernel: KernelClient, tmp_path: Path) -> Iterator[Callable[..., Training]]:
    """`train(*cells)` brings ranks up that have run these cells, and trains once."""
    yield lambda *cells: Training(kernel, tmp_path, *cells)
    kernel.ok("%mesh down")


def test_a_part_that_is_lost_comes_back_from_another_ranks_memory(train):
    training = train(FLAT, STEP)
    for step, point in [(0, "forward"), (1, "begun"), (5, "begun"), (10, "backed")]:
        training.goes_back((step, point), (2,))


def test_with_replicas_no_step_is_run_again(train):
    training = train(HYBRID, STEP)
    for step, point, who in [(5, "forward", (2,)), (9, "backed", (0,)), (7, "begun", (1, 2))]:
        assert training.comes_back((step, point), who) == step
        assert training.lines(f"{step}-{point}") == training.plain


def test_each_rank_may_train_a_model_of_its_own(train):
    """They begin alike, and are known to be different after the first step."""
    training = train(OWN, STEP)
    for step, point in [(0, "backed"), (1, "begun"), (2, "backed"), (6, "forward")]:
        training.goes_back((step, point), (1,))


def test_a_stage_of_a_pipeline_comes_back(train):
    training = train(STEP, PIPELINE)
    for step, point, who in [(0, "begun", (3,)), (6, "begun", (1,)), (9, "backed", (0,))]:
        training.goes_back((step, point), who)


def test_a_snapshot_that_was_on_its_way_when_a_rank_died_is_none(kernel, train, tmp_path):
    training = train(FLAT, STEP)
    kernel.ok(DIES_MOVING)
    # those of rank 2 go to rank 3
    for name, who in [("begin_to_send", 2), ("receive_copy", 3)]:
        path = str(tmp_path / name)
        code = training.code(name)
        at = f"dies_moving({name!r}, {who}, 3, {path!r})\n"
        cell = kernel.ok(code.replace("for state in", at + "for state in"), timeout_s=90)
        assert f"[0-3] done at {UNTIL}" in cell.text()
        assert "goes on at step" in cell.text("stderr")
        assert training.once(name) == training.plain


def test_a_rank_may_die_while_another_comes_back(kernel, train, tmp_path):
    training = train(FLAT, STEP)
    kernel.ok(DIES_RECOVERING)
    code = training.code("twice", (6, "forward"), (2,))
    dies = f"dies_recovering(0, {str(tmp_path / 'twice')!r})\n"
    cell = kernel.ok(code.replace("for state in", dies + "for state in"), timeout_s=90)
    assert cell.text("stderr").startswith("each of ranks 0,2 was killed by signal 9 (SIGKILL)")
    assert training.once("twice") == training.plain


def test_a_part_that_is_lost_with_all_its_copies_ends_the_loop(kernel, train):
    """Rank 1 keeps the snapshots of rank 0."""
    training = train(FLAT, STEP)
    cell = kernel.run(training.code("both", (6, "forward"), (0, 1)))
    assert "elastic: nobody has what rank 0 had in memory: who had a copy is lost too" in (
        cell.error
    )
