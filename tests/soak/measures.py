"""What the processes of a kernel hold, seen from outside at a quiet moment.

Memory is what a process has in anonymous pages, shared with a fork or not: what others map and
unmap, and what forks copy, does not change it. Pages of shared memory are counted by descriptors.
"""

import os
import re
import threading
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from tests import support
from tests.soak.stage import STEADY, Stage

LENT = "/memfd:monarch_nb"  # kept warm: as many as were ever needed at a time, by their size
STILL_S = 0.3  # for so long nothing may change
SETTLES_S = 45.0  # a page that has gone without a word costs nothing after 30 s

QUIET_NOTEBOOK = """
import ctypes, gc, linecache, sys
sys.last_type = sys.last_value = sys.last_exc = sys.last_traceback = None
get_ipython().last_execution_result = None
linecache.clearcache()  # each cell's text, which IPython keeps for tracebacks: 5 kB a cell
get_ipython().history_manager.outputs.clear()  # it keeps all that was ever shown
get_ipython().history_manager.exceptions.clear()
Out.clear()  # of which it keeps a thousand, each also under a name, and that for ever as hidden
for kept in (globals(), get_ipython().user_ns_hidden):
    for name in [each for each in kept if each[0] == "_" and each[1:].isdecimal()]:
        del kept[name]
_ = gc.collect(), ctypes.CDLL(None).malloc_trim(0)"""
QUIET_RANKS = (
    "import ctypes, gc, linecache\nlinecache.clearcache()\n"
    "_ = gc.collect(), ctypes.CDLL(None).malloc_trim(0)"
)
BOUNDED = ("monarch_nb.control.output.tail.Line", "monarch_nb.control.output.tail._Piece")
"""Lines of logs: the last 20,000."""
KINDS = (
    "dict(__import__('collections').Counter(f'{type(each).__module__}.{type(each).__qualname__}'"
    " for each in gc.get_objects()))"
)


class Sample(NamedTuple):
    """`series`: a number for each `what of whom`; `kinds`: objects of the kernel, by their type."""

    at_s: float
    step: int
    series: dict[str, float]
    kinds: dict[str, int]


def take(stage: Stage, began: float, step: int) -> Sample:
    """Make it quiet, then look."""
    for mesh in ("main", "steady"):
        stage.ok(f"%mesh clear --name {mesh}")
        stage.ok(f"%%mesh @{mesh}\n{QUIET_RANKS}")
    stage.ok("%mesh up --gpus 1 --name fresh --new")
    [new] = stage.pids("fresh")
    stage.ok(QUIET_NOTEBOOK)
    kinds = stage.value(KINDS)
    who = _who(stage) | {"new rank": new}
    counts = _until_still(stage, who)
    series = {f"memory of {whom}": anonymous_mb(pid) for whom, pid in who.items()}
    stage.ok("%mesh down fresh\n%mesh use main")
    count = sum(number for kind, number in kinds.items() if kind not in BOUNDED)
    objects = {"objects of kernel": float(count)}
    return Sample(time.monotonic() - began, step, {**series, **objects, **counts}, kinds)


def _who(stage: Stage) -> dict[str, int]:
    kernel = stage.kernel.manager.provisioner.pid
    [agent] = psutil.Process(kernel).children()
    [zygote] = agent.children()
    steady = stage.pids("steady")
    ranks = {f"rank {rank} of steady": steady[rank] for rank in STEADY}
    return {"kernel": kernel, "agent": agent.pid, "zygote": zygote.pid, **ranks}


def _until_still(stage: Stage, who: dict[str, int]) -> dict[str, float]:
    """Count until nothing changes: threads end and sockets close a moment after their work."""
    deadline = time.monotonic() + SETTLES_S
    before, found = {}, _counts(stage, who)
    while found != before and time.monotonic() < deadline:
        threading.Event().wait(STILL_S)
        before, found = found, _counts(stage, who)
    return found


def _counts(stage: Stage, who: dict[str, int]) -> dict[str, float]:
    kernel = who["kernel"]
    below = support.descendants(kernel)
    opened = {whom: support.open_fds(pid).values() for whom, pid in who.items()}
    lent = {whom: [fd for fd in fds if fd.startswith(LENT)] for whom, fds in opened.items()}
    fds = {f"fds of {whom}": float(len(opened[whom]) - len(lent[whom])) for whom in who}
    threads = {
        f"threads of {whom}": float(len(os.listdir(f"/proc/{pid}/task")))
        for whom, pid in who.items()
    }
    ports = sum(len(support.listening_ports(pid)) for pid in {kernel, *below})
    dirs = list(stage.world.temp.glob("mnb-*"))
    own = [each for each in dirs if f"process {kernel} " in (each / "owner").read_text() + " "]
    shared = [name for name in os.listdir("/dev/shm") if name.startswith(("mnb-", "monarch"))]
    return {
        **fds,
        **threads,
        "segments that the kernel lends": float(len(lent["kernel"])),
        "processes": float(len(below)),
        "listening ports": float(ports),
        "run dirs": float(len(dirs) - len(stage.world.workers)),
        "files in the run dir": float(sum(1 for each in own for _ in each.rglob("*"))),
        "files of kept meshes": float(sum(1 for _ in stage.world.keys.rglob("*"))),
        "segments in /dev/shm": float(len(shared)),
    }


def anonymous_mb(pid: int) -> float:
    """Return the anonymous memory of a process."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(r"^Anonymous:\s+(\d+) kB", text, re.MULTILINE)
    assert found is not None, text
    return int(found[1]) / 1024
