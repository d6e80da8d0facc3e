"""Meshes whose ranks are asked what they do, in this process, without a notebook."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

import monarch_nb
from monarch_nb import ProcMesh, this_host
from monarch_nb.control import cells
from monarch_nb.control.cells import CellRun
from monarch_nb.control.client import Client, client
from tests import inside
from tests.faults.actors import Worker

WITHIN_S = 20.0


@dataclass
class Mesh:
    """Ranks, with a `Worker` each where it was asked for."""

    procs: ProcMesh
    workers: Worker | None
    runs: list[CellRun] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.procs.name

    @property
    def processes(self) -> list[int]:
        return inside.processes(self.procs)

    @property
    def client(self) -> Client:
        return client()

    def start(self, code: str, tag: int = 0, **where: int) -> CellRun:
        """A cell that runs on all ranks, or a slice."""
        part = self.procs.slice(**where) if where else self.procs
        run = cells.run_cell(part, code, filename="<cell>", first_line=1, tag=tag)
        self.runs.append(run)
        return run

    def cell(self, code: str, tag: int = 0, **where: int) -> dict[int, str]:
        """Run it to its end; how it ended by rank."""
        run = self.start(code, tag, **where)
        assert run.wait(WITHIN_S), run
        return {rank: outcome.status for rank, outcome in sorted(run.outcomes.items())}


@pytest.fixture
def mesh(mesh_runtime, capfd) -> Iterator[Callable[..., Mesh]]:
    """`mesh(4)` brings up ranks; `mesh(4, Worker)` with an actor each."""
    made: list[Mesh] = []
    monarch_nb.unhandled_fault_hook = lambda _failure: None

    def up(ranks: int, cls: type | None = None, name: str | None = None) -> Mesh:
        procs = this_host().spawn_procs(per_host={"gpus": ranks}, name=name)
        procs.initialized.get(timeout=40)
        workers = None
        if cls is not None:
            workers = procs.spawn("workers", cls)
            workers.initialized.get(timeout=40)
        made.append(Mesh(procs, workers))
        return made[-1]

    yield up
    for each in made:
        for run in each.runs:
            run.interrupt()
        each.procs.stop().get(timeout=20)
    del monarch_nb.unhandled_fault_hook
