"""Training goes on when ranks are killed, in the same cell, with the same losses: real kernels and
kills, `DistributedDataParallel` with several buckets on four ranks.
"""

import re
from pathlib import Path

import pytest

from tests.kernel.client import KernelClient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

MODEL = """%%mesh
import os, signal, struct, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from monarch_nb import elastic
dist.init_process_group("gloo")

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(6))
        self.norm = torch.nn.BatchNorm1d(32)
        self.drop = torch.nn.Dropout(0.3)
    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.drop(self.norm(x))"""
MAKE = """%%mesh
def made(seed):
    torch.manual_seed(seed)
    model = DDP(Net(), bucket_cap_mb=0.01)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    torch.manual_seed(seed + 1)
    data = TensorDataset(torch.randn(96, 32), torch.randn(96, 32), torch.arange(96))
    sampler = DistributedSampler(data, shuffle=True)
    torch.manual_seed(100 * seed + rank)
    return elastic.State(
        model=model, optimizer=optimizer, schedule=schedule, seen=[],
        loader=DataLoader(data, batch_size=4, sampler=sampler),
    )

def written(state, loss, path):
    bits = struct.pack("<f", loss.item()).hex()
    with open(f"{path}-{rank}", "a") as file:
        file.write(f"{state.step} {bits} {sorted(state.batch[2].tolist())}\\n")"""
DIES = """%%mesh
def dies(point, state, when, who, path):
    if rank in who and (state.step, point) == when and not os.path.exists(f"{path}-died-{rank}"):
        open(f"{path}-died-{rank}", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)

def train_step(state, when, who, path):
    inputs, targets, _ = state.batch
    dies("forward", state, when, who, path)
    found = state.model(inputs)
    handle = state.model.module.layers[2].weight.register_hook(
        lambda _: dies("backward", state, when, who, path))
    loss = torch.nn.functional.mse_loss(found, targets)
    state.optimizer.zero_grad()
    loss.backward()
    handle.remove()
    dies("backed", state, when, who, path)
    state.optimizer.step()
    state.schedule.step()
    written(state, loss, path)
    dies("stepped", state, when, who, path)
    return loss"""
TRAIN = """%%mesh
state = made({seed})
for state in elastic.run(state, until={until}{options}):
    loss = train_step(state, {when!r}, {who!r}, {path!r})
print("done at", state.step)"""
DIES_AGREEING = """%%mesh
from monarch_nb.worker.groups import c10d
def dies_in(path, at, before):
    count = [0]
    def counted(agree):
        def agrees(*args):
            count[0] += 1
            if before and count[0] == at: os.kill(os.getpid(), signal.SIGKILL)
            found = agree(*args)
            if count[0] == at: os.kill(os.getpid(), signal.SIGKILL)
            return found
        return agrees
    if rank == 2 and not os.path.exists(path):
        open(path, "w").close()
        c10d.barrier, c10d.gathered = counted(c10d.barrier), counted(c10d.gathered)"""
TRAIN_AGREEING = """%%mesh
state = made({seed})
dies_in({path!r} + "-died", {at}, {before})
for state in elastic.run(state, until={until}):
    loss = train_step(state, (-1, ""), (), {path!r})
print("done at", state.step)"""
IMPATIENT = """%%mesh
import datetime
dist.destroy_process_group()
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=6))"""
HANGS = """%%mesh
import time
def dies(point, state, when, who, path):
    if rank in who and (state.step, point) == when and not os.path.exists(f"{path}-hung"):
        open(f"{path}-hung", "w").close()
        time.sleep(1000)
    if point == "forward":
        dist.barrier()"""
SLEEPS = """%%mesh
import time
def dies(point, state, when, who, path):
    if rank in who and (state.step, point) == when and not os.path.exists(f"{path}-hung"):
        open(f"{path}-hung", "w").close()
        time.sleep(1000)"""
STICKS = """%%mesh
from monarch_nb.worker.groups import process_groups
pair = dist.new_group([1, 3])
closes = process_groups.abort_groups
process_groups.abort_groups = lambda groups: closes([each for each in groups if each is not pair])

def sticks(path):
    def wait(path, bucket):
        if os.path.exists(f"{path}-stuck"):  # for rank 1, which does not come
            group, found = pair, torch.ones(1)
        else:
            group, found = None, bucket.buffer().div_(4)
        work = dist.all_reduce(found, group=group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])
    if rank == 3 and not os.path.exists(f"{path}-stuck"):
        state.model.register_comm_hook(path, wait)"""
TRAIN_STUCK = """%%mesh
state = made(5)
sticks({path!r})
for state in elastic.run(state, until={until}):
    if rank == 3 and state.step == 5:
        open({path!r} + "-stuck", "w").close()
    loss = train_step(state, (5, "backward"), (2,), {path!r})
print("done at", state.step)"""
UNTIL = 12
NOBODY = (-1, "")


class Training:
    """Runs of the same training in one kernel, and what its ranks have written."""

    def __init__(self, kernel: KernelClient, folder: Path) -> None:
        self.kernel = kernel
        self.folder = folder
        for cell in (MODEL, MAKE, DIES):
            kernel.ok(cell, timeout_s=60)

    def run(
        self,
        name: str,
        when: tuple[int, str] = NOBODY,
        who: tuple[int, ...] = (),
        options: str = "",
    ) -> str:
        path = str(self.folder / name)
        code = TRAIN.format(seed=5, until=UNTIL, when=when, who=who, path=path, options=options)
        cell = self.kernel.ok(code, timeout_s=90)
        assert f"[0-3] done at {UNTIL}" in cell.text()
        return cell.text("stderr")

    def lines(self, name: str) -> list[list[str]]:
        return [(self.folder / f"{name}-{rank}").read_text().splitlines() for rank in range(4)]


@pytest.fixture
def training(kernel, tmp_path):
    kernel.ok("%mesh up --gpus 4", timeout_s=60)
    made = Training(kernel, tmp_path)
    assert made.run("plain") == ""
    yield made
    kernel.ok("%mesh down")


@pytest.mark.parametrize("step", [0, 1, 2, 7])
def test_losses_after_kills_are_those_without_one(training, step):
    plain = training.lines("plain")
    for point in ("forward", "backward", "backed", "stepped"):
        said = training.run(point, (step, point), (2,))
        assert re.fullmatch(
            r"rank 2 was killed by signal 9 \(SIGKILL\): it is back after \d+\.\d s, "
            r"and the loop goes on at step \d+\n",
            said,
        )
        killed = training.lines(point)
        if step < 2 and "goes on at step 0" in said:  # all went back: some lines stand twice
            killed = [list(dict.fromkeys(lines)) for lines in killed]
        assert killed == plain, point


def test_any_ranks_may_die(training):
    for who in [(0,), (0, 3), (0, 1, 2)]:
        name = f"killed-{len(who)}"
        training.run(name, (6, "backward"), who)
        assert training.lines(name) == training.lines("plain"), who


@pytest.mark.parametrize("before", [True, False])
def test_one_dies_while_ranks_agree_on_a_step(training, before):
    """If it had heard that all are there, the others take the step, and it has not lived to write
    it down. If not, they may: those that came later than its death do not, and then nobody does."""
    training.kernel.ok(DIES_AGREEING)
    for at in (1, 2, 6, UNTIL):
        path = str(training.folder / f"agreeing-{at}")
        code = TRAIN_AGREEING.format(seed=5, until=UNTIL, path=path, at=at, before=before)
        cell = training.kernel.ok(code, timeout_s=90)
        assert f"[0-3] done at {UNTIL}" in cell.text()
        plain, killed = training.lines("plain"), training.lines(f"agreeing-{at}")
        went_back = killed[0].count(plain[0][0]) == 2  # all of them to the first step
        killed = [list(dict.fromkeys(lines)) for lines in killed]
        was_taken = plain[2][at - 1] not in killed[2]
        assert went_back or was_taken or before, at
        if was_taken:
            del plain[2][at - 1]
        assert killed == plain, at


PAIRS = """%%mesh
pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
def dies(point, state, when, who, path):
    if point == "forward":
        dist.all_reduce(torch.ones(1), group=pair)
    if rank in who and (state.step, point) == when and not os.path.exists(f"{path}-died-{rank}"):
        open(f"{path}-died-{rank}", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1 and (state.step, point) == when and not os.path.exists(f"{path}-waited"):
        open(f"{path}-waited", "w").close()
        dist.all_reduce(torch.ones(1), group=pair)  # for rank 0, which waits elsewhere"""


def test_a_wait_in_a_group_without_the_dead_one_ends(training):
    training.kernel.ok(PAIRS)
    training.run("pairs", (5, "forward"), (2,))
    assert training.lines("pairs") == training.lines("plain")


def test_a_rank_that_cannot_leave_a_collective_is_ended(training):
    """A backward pass waits in C++ for gloo, which loses the error of a message that it was about
    to send when the connection was closed. Here nothing closes that connection."""
    training.kernel.ok(STICKS)
    path = str(training.folder / "stuck")
    cell = training.kernel.ok(TRAIN_STUCK.format(path=path, until=UNTIL), timeout_s=60)
    assert re.fullmatch(
        r"rank 2 was killed by signal 9 \(SIGKILL\); rank 3 could not leave a collective, and was "
        r"ended: they are back after \d+\.\d s, and the loop goes on at step 5\n",
        cell.text("stderr"),
    )
    assert training.lines("stuck") == training.lines("plain")


def test_a_rank_that_hangs_is_ended(training):
    training.kernel.ok(IMPATIENT)
    training.kernel.ok(HANGS)
    said = training.run("hung", (5, "forward"), (1,))
    assert said.startswith("rank 1 came to no collective in time, and was ended: it is back after")
    assert training.lines("hung") == training.lines("plain")


def test_a_rank_that_hangs_while_others_wait_in_a_backward_pass_is_ended(training):
    training.kernel.ok(SLEEPS)
    said = training.run("hung", (5, "forward"), (1,), ", timeout=4")
    assert said.startswith("rank 1 came to no collective in time, and was ended: it is back after")
    assert training.lines("hung") == training.lines("plain")


def test_an_error_of_the_users_ends_the_cell_as_ever(training):
    cell = training.kernel.run(
        "%%mesh\nfor state in elastic.run(made(1), until=4):\n    if state.step == 2: 1 / 0"
    )
    assert "ranks 0-3: ZeroDivisionError" in cell.error
    cell = training.kernel.run(
        "%%mesh\nfor state in elastic.run(made(1), until=4):\n    torch.ones(2) @ torch.ones(3)"
    )
    assert "RuntimeError" in cell.error
    assert "elastic" not in cell.error.replace("elastic.run", "")


def test_the_stop_button_ends_a_loop(training):
    kernel = training.kernel
    cell = kernel.start(
        "%%mesh\nimport time\nfor state in elastic.run(made(1), until=10_000):\n"
        "    train_step(state, (-1, ''), (), '/dev/null'); print(state.step)"
    )
    kernel.until(lambda: "5" in cell.text())
    kernel.interrupt()
    kernel.finish(cell)
    assert "KeyboardInterrupt" in cell.error
    assert "[0-3] 3" in kernel.ok("%%mesh\n3").shown
