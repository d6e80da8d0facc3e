"""Meshes for tests of tensors, and what ranks still hold after each."""

import gc
from collections.abc import Iterator

import pytest
import torch

from monarch_nb import ProcMesh, this_host
from monarch_nb.tensor import call_on_shard_and_fetch, remote
from tests.support import eventually


def _held() -> int:
    from monarch_nb.tensor.ranks.interpreter import here

    return len(here.worker.interpreter.tensors)


@remote(propagate="inspect")
def held() -> int:
    """How many tensors a rank holds, that of this answer not counted."""
    return _held()


def tensors_on(mesh: ProcMesh) -> int:
    """How many tensors the first rank of a mesh holds for the controller."""
    with mesh.activate():
        found: int = call_on_shard_and_fetch(held).get()
    return found


def numbered(mesh: ProcMesh) -> torch.Tensor:
    """On each rank, its number."""
    with mesh.activate():
        return torch.ones(3) * mesh.rank_tensor("gpus")


@pytest.fixture(scope="module")
def mesh(procs: ProcMesh) -> ProcMesh:
    """After each test they hold nothing."""
    return procs


@pytest.fixture(scope="module")
def square(mesh_runtime) -> ProcMesh:
    """2 x 2 ranks, shared by the tests of a module."""
    return this_host().spawn_procs(per_host={"dp": 2, "tp": 2}, name="square")


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ranks hold what the controller holds: after a test, nothing."""
    yield
    for name in {"mesh", "square"} & set(request.fixturenames):
        shared = request.getfixturevalue(name)

        def is_empty(shared: ProcMesh = shared) -> bool:
            gc.collect()
            return tensors_on(shared) == 0

        eventually(is_empty, what=f"ranks of {name} hold no tensor of a test that has ended")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Each test draws the same numbers, here and on ranks."""
    torch.manual_seed(7)
