"""A mesh for each module, and programs in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

import monarch_nb
from monarch_nb import ProcMesh, this_host

ROOT = Path(__file__).parents[2]
Program = Callable[..., "subprocess.CompletedProcess[str]"]


class Failures(list[monarch_nb.MeshFailure]):
    """In the order in which they came. `only_one`: a second until the test's end is an error."""

    only_one = False


@pytest.fixture(scope="session", autouse=True)
def pyzmq_keeps_a_thread() -> None:
    """It starts one, with descriptors, at the first large send, for the life of the process."""
    with zmq.Context() as context:
        sender, receiver = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        with sender, receiver:
            receiver.bind("inproc://large")
            sender.connect("inproc://large")
            sender.send(bytes(1 << 20), copy=False)
            receiver.recv()


@pytest.fixture(scope="module")
def procs(mesh_runtime) -> ProcMesh:
    """Four ranks on one axis, shared by the tests of a module."""
    return this_host().spawn_procs(per_host={"gpus": 4}, name="four")


@pytest.fixture
def spawn(mesh_runtime) -> Iterator[Callable[..., ProcMesh]]:
    """`this_host().spawn_procs`, stopped in the end."""
    made: list[ProcMesh] = []

    def start(*args, **kwargs):
        made.append(this_host().spawn_procs(*args, **kwargs))
        return made[-1]

    yield start
    for mesh in made:
        mesh.stop().get()


@pytest.fixture(autouse=True)
def failures(request: pytest.FixtureRequest) -> Iterator[list[monarch_nb.MeshFailure]]:
    """What reaches the root while the test runs. Who does not ask for it expects nothing."""
    found = Failures()
    monarch_nb.unhandled_fault_hook = found.append
    yield found
    del monarch_nb.unhandled_fault_hook
    assert len(found) == 1 or not found.only_one, found
    expected = "failures" in request.node.function.__code__.co_varnames
    assert expected or not found, "\n".join(each.report() for each in found)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """`program(source)` runs a script to its end and returns how it ended."""

    def run(source: str, *, within_s: float = 30.0) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "program.py"
        path.write_text(source)
        return subprocess.run(
            [sys.executable, str(path)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=within_s,
        )

    return run


@pytest.fixture(scope="session")
def other_python(tmp_path_factory) -> str:
    """The interpreter of another environment, which has what this one has."""
    folder = tmp_path_factory.mktemp("other")
    venv.create(folder, symlinks=True, with_pip=False)
    [packages] = folder.glob("lib/python3*/site-packages")
    paths = [str(ROOT), *(each for each in sys.path if "site-packages" in each)]
    (packages / "all.pth").write_text("\n".join(paths))
    return str(folder / "bin/python")
