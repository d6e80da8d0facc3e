"""Meshes that outlive their kernel, as a Jupyter client sees it: how soon after a restart a cell
has run on the ranks, and whether what they have printed meanwhile is all there, once.
"""

import os
import re
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel

from benchmarks.cells import ANSWER_S, run
from benchmarks.measures import Figures, Scale
from benchmarks.timing import median, now

KERNEL = "monarch"
HOME = "MONARCH_NB_HOME"
RESTARTS = 3
RANKS = 64
CELL = "%%mesh\nheld * 0"
LINES = 1_000_000
PRINTING = 4  # ranks
PRINTS = f"""%%mesh --noblock -o work
import pathlib, time
for i in range({LINES // PRINTING}):
    print("line", i)
    while i == 1000 and not pathlib.Path({{told!r}}).exists():
        time.sleep(0.01)
pathlib.Path({{told!r}} + str(rank)).touch()"""
ALONE_S = 0.2
LINE = re.compile(rb"line (\d+)$", re.MULTILINE)


def kept_restart(_scale: Scale) -> Figures:
    """From a restart of the kernel until a cell has shown what ranks have held all along."""
    with _home(), _kernel() as (manager, client):
        run(client, f"%mesh up --gpus {RANKS} --keep 10m")
        run(client, "%%mesh\nheld = rank")
        whole, attached = zip(*(_restarted(manager, client) for _ in range(RESTARTS)), strict=True)
        run(client, "%mesh down")
    return {"time": median(whole), "attach": median(attached)}


def _restarted(manager: KernelManager, client: BlockingKernelClient) -> tuple[float, float]:
    began = now()
    manager.restart_kernel(now=True)
    client.wait_for_ready(timeout=ANSWER_S)
    ready = now()
    run(client, "%mesh attach")
    shown = run(client, CELL)
    took = now() - began, now() - ready
    if not re.search(rf"\[0-{RANKS - 1}\] 0", shown):
        raise AssertionError(f"the cell shows {shown!r:.300}")
    return took


def kept_lines(_scale: Scale) -> Figures:
    """A million lines, of which nearly all are printed while no kernel is there: how many the next
    one has not, and how many more than once."""
    with _home() as home:
        told = home / "told"
        with _kernel() as (manager, client):
            run(client, f"%mesh up --gpus {PRINTING} --keep 10m")
            run(client, PRINTS.format(told=str(told)))
            time.sleep(ALONE_S)
            _kill(manager)
        told.touch()
        began = now()
        while not all((home / f"told{rank}").exists() for rank in range(PRINTING)):
            if now() - began > ANSWER_S:
                raise AssertionError("the ranks do not go on alone")
            time.sleep(0.05)
        with _kernel() as (_, client):
            run(client, "%mesh attach")
            run(client, "cell2.wait()")
            logs = run(client, "%mesh logs --tail 1")
            folder = Path(logs.rpartition("whole logs of mesh0: ")[2].strip())
            found = [_counted(log) for log in folder.glob("*.log")]
            run(client, "%mesh down")
    lost = LINES - sum(map(len, found))
    doubled = sum(count - 1 for lines in found for count in lines.values())
    return {"lost": lost, "doubled": doubled}


def _counted(log: Path) -> Counter[bytes]:
    return Counter(LINE.findall(log.read_bytes()))


def _kill(manager: KernelManager) -> None:
    manager.signal_kernel(signal.SIGKILL)
    while manager.is_alive():
        time.sleep(0.01)


@contextmanager
def _kernel() -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    manager, client = start_new_kernel(kernel_name=KERNEL, env=dict(os.environ))
    try:
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@contextmanager
def _home() -> Iterator[Path]:
    # Records of kept meshes, and nothing that a person keeps
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get(HOME)
        os.environ[HOME] = folder
        try:
            yield Path(folder)
        finally:
            os.environ.pop(HOME)
            if before is not None:
                os.environ[HOME] = before
