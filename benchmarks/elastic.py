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


class Cost(NamedTuple):
    """What an elastic loop costs beside a plain one."""

    ratio: float
    """The time of its steps, divided by that of as many plain ones."""
    step_s: float
    """One plain step."""
    begin_s: float
    """How much later the first step begins that is measured."""


LARGE = Model(WIDTH, DEPTH, 12)
SMALL = Model(256, 8, 300)
COST = """%%mesh -o took
model, optimizer = made({width}, {depth}, momentum=0.9)
x, state = torch.ones(32, {width}), elastic.State(model=model, optimizer=optimizer)
begins = time.perf_counter()
for {each} in {loop}:
    if state.step == {first}: began = time.perf_counter()
    train_step(model, optimizer, x)
    {count}
took = began - begins, time.perf_counter() - began
del model, optimizer, x, state
took"""
FIRST = 3
"""The step from which on steps are measured: before, buckets are made, and ranks compared."""
PLAIN = {"each": "_", "loop": "range({until})", "count": "state.step += 1"}
ELASTIC = {"each": "state", "loop": "elastic.run(state, until={until})", "count": ""}

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
    """Steps in an elastic loop, times those of a plain one, and its begin: of the model above, and
    of one that takes some milliseconds."""
    with kernel(notebook) as client:
        for code in (*notebook.setup, SETUP):
            run(client, code)
        large, small = _compared(client, LARGE), _compared(client, SMALL)
        for code in notebook.teardown:
            run(client, code)
    return {
        "ratio": large.ratio,
        "step": large.step_s,
        "begin": large.begin_s,
        "small": small.ratio,
        "small_step": small.step_s,
    }


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


def _compared(client: BlockingKernelClient, model: Model) -> Cost:
    ratios, plain, begins = [], [], []
    for _ in range(ROUNDS):
        plain_begin, plain_steps = _took(client, model, PLAIN)
        begin, steps = _took(client, model, ELASTIC)
        ratios.append(steps / plain_steps)
        plain.append(plain_steps / model.steps)
        begins.append(begin - plain_begin)
    return Cost(median(ratios), median(plain), median(begins))


def _took(client: BlockingKernelClient, model: Model, loop: dict[str, str]) -> tuple[float, float]:
    # seconds until the first step that is measured, and of all that are
    words = {name: text.format(until=FIRST + model.steps) for name, text in loop.items()}
    run(client, COST.format(width=model.width, depth=model.depth, first=FIRST, **words))
    begin, steps = run(client, "print(*map(max, zip(*took.result().values())))").split()
    return float(begin), float(steps)


def _seconds(folder: str, name: str) -> float:
    return float(Path(folder, name).read_text())
