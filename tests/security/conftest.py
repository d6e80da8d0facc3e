"""A mesh whose processes are to be looked at from outside."""

import dataclasses
import os
from collections.abc import Iterator

import pytest

import monarch_nb
from monarch_nb import ProcMesh, this_host
from monarch_nb.testing.processes import read
from tests.faults.actors import Grouped, Worker
from tests.support import descendants, is_running


@dataclasses.dataclass
class Mesh:
    """Two ranks with a worker each, and the processes above them."""

    procs: ProcMesh
    workers: Worker
    grouped: Grouped
    ranks: list[int]
    agent: int
    zygote: int

    @property
    def all(self) -> dict[str, int]:
        named = {"client": os.getpid(), "agent": self.agent, "zygote": self.zygote}
        return {**named, **{f"rank {i}": pid for i, pid in enumerate(self.ranks)}}


@pytest.fixture(scope="module")
def mesh(mesh_runtime) -> Iterator[Mesh]:
    """Shared by the tests of a module: nothing they do may harm it."""
    monarch_nb.unhandled_fault_hook = lambda _failure: None
    procs = this_host().spawn_procs(per_host={"gpus": 2})
    workers = procs.spawn("workers", Worker)
    ranks = list(workers.pid.call().get(timeout=40).values())
    grouped = procs.spawn("grouped", Grouped)
    found = {
        name: pid
        for name in ("agent", "zygote")
        for pid in descendants(os.getpid()) - set(ranks)
        if f"monarch_nb.host.{name}".encode() in read(pid, "cmdline") and is_running(pid)
    }
    yield Mesh(procs, workers, grouped, ranks, found["agent"], found["zygote"])
    del monarch_nb.unhandled_fault_hook
