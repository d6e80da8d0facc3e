"""A Ray cluster of two nodes on this machine, as `ray start` starts them.

The nodes are processes of one machine, so they share its network and its files; Ray keeps them
apart by what they have: two processors and one `seat` each. It ends with `__exit__`.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

from tests.source import ROOT
from tests.support import descendants, describe_process, eventually

_START_S = 60.0  # of a node, on busy cores; Ray itself gives up before
_RAY = (sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats")
# so that what is left after a test is what the test has left
_NO_SPARE_WORKERS = {
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_num_workers_soft_limit": "0",
    "RAY_idle_worker_killing_time_threshold_ms": "100",
    "RAY_kill_idle_workers_interval_ms": "100",
}


class TooBusyError(Exception):
    """Ray waits 30 s for a part of itself, and no setting says more."""


class RayCluster:
    """`env` is for programs that are to find it. Also a context manager, which ends all of it."""

    def __init__(self, nodes: int = 2) -> None:
        self._nodes = nodes
        self._folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # a short path
        self._started: list[subprocess.Popen] = []
        self.address = f"127.0.0.1:{_free_port()}"
        self.env = {
            **os.environ,
            "RAY_ADDRESS": self.address,
            # a token that any `ray.init()` has left in the home folder would be asked of all nodes
            "RAY_AUTH_MODE": "disabled",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }

    @property
    def pids(self) -> list[int]:
        """Return the processes that have started the nodes; all else is below them."""
        return [each.pid for each in self._started]

    def hosts(self) -> list[str]:
        """Return the processes of hosts of ours on its nodes, a line each."""
        below = {pid for node in self.pids for pid in descendants(node)}
        said = [describe_process(pid) for pid in below]
        return [each for each in said if "monarch_nb.host" in each or "Seat" in each]

    def __enter__(self) -> Self:
        try:
            port = self.address.rpartition(":")[2]
            options = ["--include-dashboard=false", f"--temp-dir={self._folder}"]
            self._start("--head", f"--port={port}", *options)
            for _ in range(1, self._nodes):
                self._start(f"--address={self.address}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        for each in reversed(self._started):
            each.terminate()
        for each in reversed(self._started):
            each.wait(20)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, *options: str) -> None:
        log = self._folder / f"node-{len(self._started)}.log"
        kept = ["--num-cpus=2", '--resources={"seat": 1}', "--object-store-memory=100000000"]
        env = {**self.env, **_NO_SPARE_WORKERS, "RAY_ADDRESS": ""}
        with log.open("w") as out:
            node = subprocess.Popen([*_RAY, *kept, *options], env=env, stdout=out, stderr=out)
        self._started.append(node)
        eventually(lambda: _is_up(node, log), _START_S, "a node of Ray")


def _is_up(node: subprocess.Popen, log: Path) -> bool:
    text = log.read_text()
    if "timed out during startup" in text:
        raise TooBusyError("Ray has given up its start, as the machine is too busy")
    if node.poll() is not None:
        raise RuntimeError(f"ray start ended with {node.returncode}:\n{text[-2000:]}")
    return "Ray runtime started" in text


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
