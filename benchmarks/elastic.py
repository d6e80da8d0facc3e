"""Training that goes on when a rank is killed, as a Jupyter client sees it: how soon the next step
has been taken, and what the loop costs while nothing happens.
"""

import tempfile
from pathlib import Path
from typing import NamedTuple

from jupyter_client.blocking import BlockingKernelClient

from benchmarks.cells import Notebook, kernel, run
from benchmarks.measures import Figures, Scale
from benchmarks.timing import median

ROUNDS = 3
SETUP = """%%mesh
import os, signal, time, torch, torch.distributed as dist
from pathlib import Path
from torch.nn.parallel import DistributedDataParallel as DDP
from monarch_nb import elastic
dist.init_process_group("gloo")
def made(width, depth, **options):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(width, width, bias=False) for _ in range(depth)]
    model = DDP(torch.nn.Sequential(*layers), gradient_as_bucket_view=True)
    return model, torch.optim.SGD(model.parameters(), lr=1e-4, **options)
def train_step(model, optimizer, x):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()"""
WIDTH, DEPTH = 2048, 24
"""The parameters of one layer are the square of its width."""
KILL_AT = 4
KILL = """%%mesh
model, optimizer = made({width}, {depth}, momentum=0.9)
state, x = elastic.State(model=model, optimizer=optimizer), torch.ones(1, {width})
def dies(_):
    if rank == 2 and state.step == {at} and not Path({folder!r}, "died").exists():
        Path({folder!r}, "died").write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
handle = model.module[0].weight.register_hook(dies)
for state in elastic.run(state, until={at} + 2):
    began = time.monotonic()
    train_step(state.model, state.optimizer, x)
    Path({folder!r}, f"took-{{rank}}-{{state.step}}").write_text(str(time.monotonic() - began))
    Path({folder!r}, f"done-{{rank}}-{{state.step}}").write_text(str(time.monotonic()))
del model, optimizer, state, x, handle"""


class Model(NamedTuple):
    """Of layers of this width; how many steps are taken with it."""

    width: int
    depth: int
    steps: int


LARGE = Model(WIDTH, DEPTH, 12)
SMALL = Model(256, 8, 300)
COST = """%%mesh -o took
model, optimizer = made({width}, {depth}, momentum=0.9)
x = torch.ones(32, {width})
for _ in range(3): train_step(model, optimizer, x)
began = time.perf_counter()
{loop}
took = time.perf_counter() - began
del model, optimizer, x
took"""
PLAIN = "for _ in range({steps}): train_step(model, optimizer, x)"
ELASTIC = """state = elastic.State(model=model, optimizer=optimizer)
for state in elastic.run(state, until={steps}): train_step(state.model, state.optimizer, x)"""

SHARDED = """%%mesh
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
grid = init_device_mesh("cpu", (4,))
def made_in_parts(width, depth):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(depth)])
    for layer in model: fully_shard(layer, mesh=grid)
    fully_shard(model, mesh=grid)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)"""
SNAPSHOTS = """%%mesh -o took
model, optimizer = made_in_parts({width}, {depth})
state, x = elastic.State(model=model, optimizer=optimizer), torch.ones(32, {width})
for state in elastic.run(state, until={steps}, snapshot_every={every}):
    if state.step == 3: began = time.perf_counter()  # ranks have been compared
    train_step(state.model, state.optimizer, x)
took = time.perf_counter() - began
del model, optimizer, state, x
took"""
SNAPSHOT_WIDTH, SNAPSHOT_EVERY, SNAPSHOT_STEPS, NEVER = 1024, 20, 24, 10**6
"""One is taken while steps are measured."""


def kill(notebook: Notebook, _scale: Scale) -> Figures:
    """From SIGKILL of a rank in a backward pass until all have taken that step; and what a step
    takes."""
    recoveries, steps = [], []
    with kernel(notebook) as client:
        for code in (*notebook.setup, SETUP):
            run(client, code)
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory() as folder:
                run(client, KILL.format(width=WIDTH, depth=DEPTH, at=KILL_AT, folder=folder))
                died = _seconds(folder, "died")
                done = [_seconds(folder, f"done-{rank}-{KILL_AT}") for rank in range(4)]
                recoveries.append(max(done) - died)
                steps.append(_seconds(folder, f"took-0-{KILL_AT - 1}"))
        for code in notebook.teardown:
            run(client, code)
    return {"time": median(recoveries), "step": median(steps)}


def cost(notebook: Notebook, _scale: Scale) -> Figures:
    """Steps in an elastic loop, times those of a plain one: of the model above, and of one that
    takes some milliseconds."""
    with kernel(notebook) as client:
        for code in (*notebook.setup, SETUP):
            run(client, code)
        large, large_step = _ratio(client, LARGE)
        small, small_step = _ratio(client, SMALL)
        for code in notebook.teardown:
            run(client, code)
    return {"ratio": large, "step": large_step, "small": small, "small_step": small_step}


def snapshots(notebook: Notebook, _scale: Scale) -> Figures:
    """Steps of a model in four parts, with a snapshot after so many, times those without."""
    ratios, plain = [], []
    with kernel(notebook) as client:
        for code in (*notebook.setup, SETUP, SHARDED):
            run(client, code)
        for _ in range(ROUNDS):
            without, taken = (_with_snapshots(client, each) for each in (NEVER, SNAPSHOT_EVERY))
            ratios.append(taken / without)
            plain.append(without / (SNAPSHOT_STEPS - 3))
        for code in notebook.teardown:
            run(client, code)
    return {"ratio": median(ratios), "step": median(plain)}


def _with_snapshots(client: BlockingKernelClient, every: int) -> float:
    size = {"width": SNAPSHOT_WIDTH, "depth": DEPTH}
    run(client, SNAPSHOTS.format(steps=SNAPSHOT_STEPS, every=every, **size))
    return float(run(client, "print(max(took.result().values()))"))


def _ratio(client: BlockingKernelClient, model: Model) -> tuple[float, float]:
    ratios, plain = [], []
    for _ in range(ROUNDS):
        took = {loop: _took(client, model, loop) for loop in (PLAIN, ELASTIC)}
        ratios.append(took[ELASTIC] / took[PLAIN])
        plain.append(took[PLAIN] / model.steps)
    return median(ratios), median(plain)


def _took(client: BlockingKernelClient, model: Model, loop: str) -> float:
    body = loop.format(steps=model.steps)
    run(client, COST.format(width=model.width, depth=model.depth, loop=body))
    return float(run(client, "print(max(took.result().values()))"))


def _seconds(folder: str, name: str) -> float:
    return float(Path(folder, name).read_text())
