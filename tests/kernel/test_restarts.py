"""Actors that come back by themselves, as a notebook tells it: real kernels and kills."""

import os
import re
import signal

import pytest

from monarch_nb.control.keeping import kept_record
from tests import support
from tests.kernel.client import KernelClient

pytestmark = [pytest.mark.slow, pytest.mark.fault, pytest.mark.timeout(120)]

DEFINE = """
import os, signal
from monarch_nb import Actor, SupervisionError, current_rank, elastic, endpoint

class Generator(Actor):
    def __init__(self):
        self.count = 0
    @endpoint
    def generate(self):
        self.count += 1
        return self.count
    @endpoint
    def pid(self):
        return os.getpid()
"""
SPAWN = 'generators = mesh0.spawn("generators", Generator, supervise=elastic.restart(max=2))'
TRAIN = """
first = generators.slice(gpus=1)
os.kill(first.pid.call_one().get(), signal.SIGKILL)
came = []
while sum(came) < 20 and len(came) < 25:
    try:
        generators.generate.call().get()
        came.append(True)
    except SupervisionError:
        came.append(False)
print(f"{came.count(False)} failed")
"""


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """Of this test alone: others would be offered its meshes. It leaves none, should it fail."""
    monkeypatch.setenv("MONARCH_NB_HOME", str(tmp_path / "keys"))
    yield
    for record in kept_record.all_records():
        record.end()


@pytest.fixture
def kernel():
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh up --gpus 2", timeout_s=60)
        kernel.ok(DEFINE)
        kernel.ok(SPAWN)
        yield kernel
        kernel.ok("%mesh down")


def test_the_cell_goes_on_and_says_so_in_one_line(kernel):
    cell = kernel.run(TRAIN)
    assert cell.text() in ("0 failed\n", "1 failed\n")
    next_one = kernel.ok("0")  # where it is told if the cell was faster
    said = cell.text("stderr") + next_one.text("stderr")
    assert re.fullmatch(
        r"generators: rank 1 was killed by signal 9 \(SIGKILL\); restarted in \d+\.\d+ s\n", said
    )


def test_a_rank_that_fails_too_often_is_told_as_without(kernel):
    for _ in range(3):
        kernel.run(TRAIN)
    cell = kernel.run("generators.generate.call().get()")
    assert "rank 1 was restarted 2 times within 60 s" in cell.error


def test_the_next_controller_of_a_kept_mesh_restarts_too():
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh up --gpus 2 --keep 1h", timeout_s=60)
        kernel.ok(DEFINE)
        kernel.ok(SPAWN)
        before = kernel.ok("print(*generators.pid.call().get().values())").text().split()
        os.kill(kernel.manager.provisioner.pid, signal.SIGKILL)
        kernel.manager.provisioner.process.wait()
    os.kill(int(before[1]), signal.SIGKILL)  # nobody is there
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh attach")
        after = kernel.ok("print(*generators.pid.call().get().values())").text().split()
        assert after[0] == before[0]
        assert after[1] != before[1]
        os.kill(int(after[1]), signal.SIGKILL)
        support.eventually(lambda: not support.is_running(int(after[1])))
        kernel.run("generators.pid.call().get()")  # it may have been sent before
        again = kernel.ok("print(*generators.pid.call().get().values())").text().split()
        assert again[0] == before[0]
        assert again[1] not in (before[1], after[1])
        kernel.ok("%mesh down")


def test_a_rank_that_the_user_restarts(kernel):
    assert "rank 1" in kernel.ok("%mesh restart 1").shown
    assert "2 ranks" in kernel.ok("%mesh status").shown
    assert kernel.ok("print(*generators.generate.call().get().values())").text() == "1 1\n"
