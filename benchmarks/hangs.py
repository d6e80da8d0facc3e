"""What a hang costs the person who looks at it, and what it costs when nobody hangs. Only of
monarch_nb.
"""

from __future__ import annotations

import re
import time
from functools import partial

from benchmarks import cells
from benchmarks.cells import ANSWER_S, Notebook, kernel, run, text_of
from benchmarks.measures import Figures, Scale
from benchmarks.timing import median, now, time_of

LOOKS = 10
BEGUN_S = 1.0
LINE = re.compile(r"ranks 0-2 in all_reduce #1 for \d+ s; rank 3 in .* load\(\)")
SPINNING = (
    "%%mesh --noblock\nimport time\n"
    "if rank == 3: sum(range(10**12))\nelse: time.sleep(600)"
)  # fmt: skip
MISMATCH = (
    "%%mesh\nimport time, torch\nimport torch.distributed as dist\n"
    "dist.init_process_group('gloo')\nprint('started', flush=True)\ndef load(): time.sleep(600)\n"
    "if rank == 3: load()\ndist.all_reduce(torch.ones(4))"
)
OPS = """%%mesh
import statistics, time, torch, torch.distributed as dist
from torch._C._distributed_c10d import Work
torch.set_num_threads(1)
dist.init_process_group('gloo')
x = torch.ones(1024)
ours, theirs = Work.wait, Work.wait.__wrapped__
def pair():
    if rank == 0: dist.send(x, 1)
    else: dist.recv(x, 0)
    dist.barrier()
def median_of(op, wait):
    Work.wait, times = wait, []
    for _ in range(200):
        start = time.perf_counter(); op(); times.append(time.perf_counter() - start)
    Work.wait = ours
    return statistics.median(times)
def ratio(op):
    median_of(op, theirs)
    return statistics.median([median_of(op, ours) / median_of(op, theirs) for _ in range(9)])
print('RATIOS', ratio(lambda: dist.all_reduce(x)), ratio(pair))"""


def stacks(notebook: Notebook, _scale: Scale) -> Figures:
    """`%mesh stacks` of 16 ranks while C code holds the interpreter of one."""
    with kernel(notebook) as client:
        run(client, "%mesh up --gpus 16")
        cells.check(client, notebook)
        run(client, SPINNING)
        time.sleep(BEGUN_S)
        shown = run(client, "%mesh stacks")
        if "rank 3 " not in shown or "sum(range" not in shown:
            raise AssertionError(f"the tree is {shown!r:.300}")
        times = [time_of(partial(run, client, "%mesh stacks")) for _ in range(LOOKS)]
        run(client, "%mesh interrupt --kill 0-15")
    return {"time": median(times), "worst": max(times)}


def mismatch(notebook: Notebook, _scale: Scale) -> Figures:
    """From a collective to which one rank does not come until the line that says so."""
    with kernel(notebook) as client:
        for code in notebook.setup:
            run(client, code)
        client.execute(MISMATCH)
        while "started" not in _next(client):
            continue
        start = now()
        while not LINE.search(_next(client)):
            continue
        told = now() - start
        for code in notebook.teardown:
            client.execute(code)
    return {"time": told}


def waits(notebook: Notebook, _scale: Scale) -> Figures:
    """Collectives of gloo whose wait can be interrupted, times those as PyTorch has them."""
    with kernel(notebook) as client:
        run(client, "%mesh up --gpus 2")
        shown = run(client, OPS)
        found = re.search(r"RATIOS (\S+) (\S+)", shown)
        if found is None:
            raise AssertionError(f"the cell shows {shown!r:.300}")
        for code in notebook.teardown:
            run(client, code)
    return {"all_reduce": float(found[1]), "send": float(found[2])}


def _next(client: cells.BlockingKernelClient) -> str:
    return text_of(client.get_iopub_msg(timeout=ANSWER_S)["content"])
