"""A world of its own: folders, environment and kernelspec of one soak, and what is left of it.

All that it starts is marked as tests mark theirs (`tests.support`), so that nothing hides.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from monarch_nb.testing.processes import SESSION
from tests import support
from tests.source import ROOT

OFFER = """
import sys, threading
from monarch_nb import start_worker_loop_forever
print(start_worker_loop_forever(address="tcp://127.0.0.1:*").get(), flush=True)
[offers] = [each for each in threading.enumerate() if each.name == "monarch-worker"]
while offers.is_alive():  # a client may end it; a signal just before a wait is not noticed by it
    offers.join(1)"""


class World:
    """Folders below `path`; `temp` has the run dirs, `keys` what is kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.temp = path / "t"
        self.keys = path / "keys"
        self.workers: list[Worker] = []
        self._before = support.Snapshot.take()

    def offer(self) -> "Worker":
        """Start a process that offers this machine as one more host."""
        self.workers.append(Worker())
        return self.workers[-1]

    def run_dirs(self) -> set[str]:
        """Return the names of the run dirs that are there."""
        return {each.name for each in self.temp.glob("mnb-*")}

    def end_workers(self) -> None:
        while self.workers:
            self.workers.pop().end()

    def left(self) -> list[str]:
        """Return what is here now and was not at the start; it is waited for."""
        try:
            self._before.assert_clean(within_s=20)
        except AssertionError as error:
            return str(error).splitlines()[1:]
        return [f"run dir {name}" for name in sorted(self.run_dirs())]


class Worker:
    """A process that offers a host, at `address`."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OFFER],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "MONARCH_NB_PRELOAD": "numpy"},  # torch takes three seconds
        )
        self.address = self.process.stdout.readline().strip()

    def end(self) -> None:
        """Ask it to end; it has to."""
        self.process.terminate()
        self.process.wait(60)
        self.process.stdout.close()

    def kill(self) -> None:
        """End it as a machine does that fails: with all that it has started."""
        below = support.descendants(self.process.pid)
        self.process.kill()
        self.process.wait(60)
        self.process.stdout.close()
        support.eventually(
            lambda: not any(map(support.is_running, below)), 60, "what the host had started to end"
        )


@contextlib.contextmanager
def world(preload: str) -> Iterator[World]:
    """Make one, let it be the environment of this process, and remove it."""
    path = Path(tempfile.mkdtemp(prefix="soak-"))
    shutil.copytree(ROOT / "kernel/spec", path / "jupyter/kernels/monarch")
    (path / "t").mkdir()
    variable, _, value = SESSION.partition("=")
    folders = ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")
    os.environ.pop("XDG_RUNTIME_DIR", None)
    os.environ |= {
        **{name: f"{path}/{name.lower()}" for name in folders},
        "TMPDIR": f"{path}/t",
        "MONARCH_NB_HOME": f"{path}/keys",
        "MONARCH_NB_PRELOAD": preload,
        "JUPYTER_PATH": f"{path}/jupyter",
        "JUPYTER_PLATFORM_DIRS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "kernel"), str(ROOT)]),
        "OMP_WAIT_POLICY": "PASSIVE",
        variable: value,
    }
    tempfile.tempdir = None
    made = World(path)
    try:
        yield made
    finally:
        made.end_workers()
        shutil.rmtree(path, ignore_errors=True)
