"""Meshes to break, and a watch on whether this process stays responsive."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from monarch_nb import MeshFailure, ProcMesh, this_host
from tests.faults.actors import Worker


@pytest.fixture(scope="module")
def mesh_runtime(own_client: None) -> None:
    """A client with the limits that fixtures here set, which may not survive the faults."""


@pytest.fixture(autouse=True)
def failures(failures: list[MeshFailure]) -> list[MeshFailure]:
    """For every test here."""
    return failures


@dataclasses.dataclass
class Made:
    """A mesh of ranks with one worker each."""

    procs: ProcMesh
    workers: Worker
    pids: list[int]

    def one(self, rank: int) -> Worker:
        return self.workers.slice(gpus=rank)


@pytest.fixture
def mesh(mesh_runtime) -> Iterator[Callable[..., Made]]:
    """`mesh(4)` brings up ranks with a `Worker` each."""
    made: list[ProcMesh] = []

    def up(ranks: int, cls: type = Worker, **options) -> Made:
        procs = this_host().spawn_procs(per_host={"gpus": ranks}, **options)
        made.append(procs)
        workers = procs.spawn("workers", cls)
        pids = list(workers.pid.call().get(timeout=40).values())
        return Made(procs, workers, pids)

    yield up
    for procs in made:
        procs.stop().get(timeout=20)


@contextlib.contextmanager
def watched_gaps(out: list[float]) -> Iterator[None]:
    over = threading.Event()

    def tick() -> None:
        last = time.perf_counter()
        while not over.wait(0.005):
            now = time.perf_counter()
            out.append(now - last)
            last = now

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture
def responsive(goal) -> Iterator[None]:
    """P5: another thread of this process gets its turn all the time, so a kernel would answer."""
    gaps: list[float] = [0.0]
    with watched_gaps(gaps):
        yield
    goal("longest pause of the controller", max(gaps), 0.3)
