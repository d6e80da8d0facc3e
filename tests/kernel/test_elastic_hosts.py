"""Training goes on when a host is lost: its ranks come back beside the others, or the others have
what they need to go on as fewer.
"""

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.client import Cell, KernelClient
from tests.support import descendants, eventually, session_processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

OFFER = """
import sys, threading
from monarch_nb import start_worker_loop_forever
print(start_worker_loop_forever(address="tcp://127.0.0.1:*").get(), flush=True)
threading.Event().wait()"""
ATTACH = """from monarch_nb import attach_to_workers
hosts = attach_to_workers(workers={addresses})
trainers = hosts.spawn_procs(per_host={{"gpus": 2}}, name="trainers")
%mesh use trainers"""
MODEL = """%%mesh
import os, signal, struct, time, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from monarch_nb import elastic
dist.init_process_group("gloo")

def loader(data):
    return DataLoader(data, batch_size=4, sampler=DistributedSampler(data))

def made():
    torch.manual_seed(5)
    model = spread(torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(4)]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = TensorDataset(torch.randn(96, 32), torch.randn(96, 32))
    return elastic.State(model=model, optimizer=optimizer, loader=loader(data))

def dies(state, path):
    pass

def train_step(state, path):
    dies(state, path)
    inputs, targets = state.batch
    loss = torch.nn.functional.mse_loss(state.model(inputs), targets)
    state.optimizer.zero_grad()
    loss.backward()
    state.optimizer.step()
    bits = struct.pack("<f", loss.item()).hex()
    with open(f"{path}-{rank}", "a") as file:
        file.write(f"{state.step} {bits}\\n")
    if state.step == 9:
        while not os.path.exists(f"{path}-go"): time.sleep(0.01)"""
SHARDED = """%%mesh
def spread(model):
    return fully_shard(model)"""
COPIED = """%%mesh
def spread(model):
    return DDP(model)"""
ON_FEWER = """%%mesh
def fewer(group):
    print("fewer:", group.size())
    sampler = DistributedSampler(state.loader.dataset, group.size(), dist.get_rank(group))
    state.model = DDP(state.model.module, process_group=group)
    state.loader = DataLoader(state.loader.dataset, batch_size=4, sampler=sampler)"""
TRAIN = """%%mesh
state = made()
for state in elastic.run(state, until={until}, snapshot_every=4, on_fewer={on_fewer}):
    train_step(state, {path!r})
print("done at", state.step)"""
DIES_AS_FEWER = """%%mesh
def dies(state, path):
    if rank == 1 and state.step == 12 and not os.path.exists(f"{path}-died"):
        open(f"{path}-died", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)"""
FEWER = """%%mesh
dist.init_process_group("gloo")
state.model = DDP(state.model.module)
state.loader = loader(state.loader.dataset)"""
GOES_ON = """%%mesh
print("from", state.step)
for state in elastic.run(state, until={until}):
    train_step(state, {path!r})
print("done at", state.step)"""
LATE = """from monarch_nb.net.hosts import link
link._REFUSED_S = 2.5"""
UNTIL = 14


class Offered:
    """Two hosts that are offered, and their processes."""

    def __init__(self) -> None:
        self.workers = [
            subprocess.Popen([sys.executable, "-c", OFFER], stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        self.addresses = [each.stdout.readline().strip() for each in self.workers]

    def kill(self, index: int) -> None:
        """End a host and all that it has started, which dies with it: none does a step more."""
        worker = self.workers[index]
        died = descendants(worker.pid)
        worker.kill()
        eventually(lambda: not died & session_processes(), 10, "the host's processes to be gone")

    def end(self) -> None:
        for each in self.workers:
            each.terminate()
            each.wait(10)
            each.stdout.close()


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("MONARCH_NB_HOME", str(tmp_path / "keys"))


@contextlib.contextmanager
def training(*cells: str) -> Iterator[tuple[KernelClient, Offered]]:
    hosts = Offered()
    try:
        with KernelClient("monarch") as kernel:
            kernel.ok(ATTACH.format(addresses=hosts.addresses), timeout_s=60)
            for code in cells:
                kernel.ok(code, timeout_s=60)
            yield kernel, hosts
    finally:
        hosts.end()


def loses_a_host(
    kernel: KernelClient, hosts: Offered, path: Path, on_fewer: str | None = None
) -> Cell:
    """Train; the second host is lost while all do something else behind the optimizer of step 9."""
    cell = kernel.start(TRAIN.format(until=UNTIL, path=str(path), on_fewer=on_fewer))
    eventually(lambda: all(reaches(path, rank, 9) for rank in range(4)), 60, "step 9")
    hosts.kill(1)
    path.with_name(f"{path.name}-go").touch()
    return kernel.finish(cell, 60)


def reaches(path: Path, rank: int, step: int) -> bool:
    written = path.with_name(f"{path.name}-{rank}")
    return written.exists() and any(
        line.startswith(f"{step} ") for line in written.read_text().splitlines()
    )


def losses(path: Path, rank: int) -> list[str]:
    lines = path.with_name(f"{path.name}-{rank}").read_text().splitlines()
    return list(dict.fromkeys(lines))


def test_parts_of_a_lost_host_come_from_the_memory_of_another(tmp_path, home):
    plain, lost = tmp_path / "plain", tmp_path / "lost"
    (tmp_path / "plain-go").touch()
    with training(MODEL, SHARDED) as (kernel, hosts):
        kernel.ok(TRAIN.format(until=UNTIL, path=str(plain), on_fewer=None), timeout_s=60)
        cell = loses_a_host(kernel, hosts, lost)
        assert f"[0-3] done at {UNTIL}" in cell.text(), cell.shown
        # at the last snapshot, or at the one before while that was on its way
        assert re.search("and the loop goes on at step [84]\n", cell.text("stderr"))
        assert [losses(lost, rank) for rank in range(4)] == [
            losses(plain, rank) for rank in range(4)
        ]


@pytest.mark.nightly
def test_where_no_process_can_be_had_the_living_have_the_step_and_go_on_as_fewer(
    tmp_path, home, monkeypatch
):
    """For want of devices: hosts count those that their environment names."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    path = tmp_path / "fewer"
    with training(MODEL, COPIED) as (kernel, hosts):
        cell = loses_a_host(kernel, hosts, path)
        assert "elastic: the mesh could not be healed: trainers cannot be healed" in cell.error
        assert "%mesh heal --shrink" in cell.error
        kernel.ok("%mesh heal --shrink")
        kernel.ok(FEWER)
        cell = kernel.ok(GOES_ON.format(until=UNTIL, path=str(path)))
        assert cell.text() == f"[0-1] from 10\n[0-1] done at {UNTIL}\n"
        steps = [line.split()[0] for line in losses(path, 0)]
        assert steps == [str(step) for step in range(UNTIL)]


def test_no_error_is_a_rank_s_own_while_a_host_cannot_be_heard(tmp_path, home, monkeypatch):
    """The kernel learns of the death long after the ranks have lost their connections."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    path = tmp_path / "late"
    with training(MODEL, COPIED, ON_FEWER) as (kernel, hosts):
        kernel.ok(LATE)
        cell = loses_a_host(kernel, hosts, path, on_fewer="fewer")
        assert f"[0-1] done at {UNTIL}" in cell.text(), cell.shown
        assert "no place is left for them" in cell.text("stderr")


def test_the_living_go_on_as_fewer_in_the_same_cell(tmp_path, home, monkeypatch):
    """And one of them that is killed then comes back, as there is a place for it."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    path = tmp_path / "fewer"
    with training(MODEL, COPIED, ON_FEWER, DIES_AS_FEWER) as (kernel, hosts):
        cell = loses_a_host(kernel, hosts, path, on_fewer="fewer")
        assert f"[0-1] done at {UNTIL}" in cell.text(), cell.shown
        assert (
            "no place is left for them, and the loop goes on at step 10 with ranks 0-1\n"
            in cell.text("stderr")
        )
        assert cell.text("stderr").startswith("each of ranks 2-3 is gone")
        assert "rank 1 was killed by signal 9 (SIGKILL): it is back" in cell.text("stderr")
        steps = [line.split()[0] for line in losses(path, 0)]
        assert steps == [str(step) for step in range(UNTIL)]
