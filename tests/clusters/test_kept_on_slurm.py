"""Meshes on nodes of Slurm that outlive their kernel, with a real Slurm."""

import re

import pytest

from monarch_nb.control.keeping import kept_record
from tests.clusters.test_up_on_slurm import in_queue
from tests.kernel.client import KernelClient
from tests.kernel.conftest import kernelspec
from tests.kernel.test_kept import COUNTS, LINES, kill, lines_of
from tests.source import ROOT
from tests.support import eventually

__all__ = ["kernelspec"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

NODES = 3
UP = "%mesh up --on slurm --hosts 2 --gpus 2 --device cpu --keep {}"


@pytest.fixture(autouse=True)
def home(slurm, tmp_path, monkeypatch):
    """Keys and records of this test alone; the cluster has no job before and none after it."""
    monkeypatch.setenv("MONARCH_NB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    yield
    slurm.assert_idle()


def test_a_kernel_is_killed_and_its_mesh_on_two_nodes_comes_back(slurm, tmp_path):
    told = tmp_path / "told"
    with KernelClient("monarch") as kernel:
        assert "kept for 60 min" in kernel.ok(UP.format("1h"), timeout_s=90).text()
        running = kernel.start(COUNTS.format(str(told)))
        kernel.until(lambda: "line 5" in running.text())
        [job] = in_queue(slurm)
        kill(kernel)
    with KernelClient("monarch") as kernel:
        attach = kernel.ok("%mesh attach")
        assert "cell In[2] still runs on ranks 0-3" in attach.text()
        told.touch()
        assert "[0, 100, 200, 300]" in kernel.ok("cell2.result().values()").shown
        kernel.until(lambda: len(lines_of(attach.text())) == 4 * LINES)
        assert set(lines_of(attach.text()).values()) == {1}, "none lost, none doubled"
        assert re.search(rf"mesh0 +slurm +{job} +up +2/2", kernel.ok("%mesh jobs").shown)
        assert "--overlap --nodelist=node2" in kernel.ok("%mesh shell 3").text()
        assert "3 hosts now" in kernel.ok("%mesh scale --hosts 3", timeout_s=90).text()
        assert len(in_queue(slurm)) == 2
        kill(kernel)
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh attach")
        assert "[0-5] 1" in kernel.ok("%%mesh\n1").shown
        kernel.ok("%mesh down")
        eventually(lambda: not in_queue(slurm), 20)
    assert not kept_record.all_records()


@pytest.mark.nightly
def test_its_end_takes_the_job_out_of_the_queue(slurm):
    with KernelClient("monarch") as kernel:
        kernel.ok(UP.format("1h"), timeout_s=90)
        kill(kernel)
    with KernelClient("monarch") as kernel:
        assert in_queue(slurm)
        assert "mesh0 is ended" in kernel.ok("%mesh down --kept").text()
        eventually(lambda: not in_queue(slurm), 20)
        kernel.ok(UP.format("2s"), timeout_s=90)
        kill(kernel)
    eventually(lambda: not in_queue(slurm), 30)


@pytest.mark.nightly
def test_a_step_in_an_allocation_stays_and_ends(slurm, tmp_path, monkeypatch):
    allocation = slurm.sbatch("#!/bin/sh\nsleep 300", "--exclusive", "--nodes=2", "--time=10")
    eventually(lambda: "R" in slurm.run("squeue", "-h", "-o", "%t"), 30)
    monkeypatch.setenv("SLURM_JOB_ID", allocation)
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    with KernelClient("monarch") as kernel:
        kernel.ok(UP.format("1h"), timeout_s=90)
        kernel.ok("%%mesh\nx = rank")
        kill(kernel)
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh attach")
        assert "[0] 0\n[1] 1\n[2] 2\n[3] 3" in kernel.ok("%%mesh\nx").shown
        assert in_queue(slurm) == [allocation], "it is no job of its own"
        kernel.ok("%mesh down")
        steps = ("squeue", "-h", "--steps", "-j", allocation, "-o", "%j")
        eventually(lambda: "sh" not in slurm.run(*steps).split(), 20)
    assert in_queue(slurm) == [allocation]
    slurm.run("scancel", allocation)
    eventually(lambda: not in_queue(slurm), 20)
