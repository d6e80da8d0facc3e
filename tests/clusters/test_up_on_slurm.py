"""`%mesh up --on slurm` in a kernel, with a real Slurm: from the queue to nothing left in it."""

import re

import pytest

from tests.clusters.test_slurm_hosts import lose_host
from tests.kernel.client import KernelClient
from tests.kernel.conftest import kernelspec
from tests.source import ROOT
from tests.support import eventually

__all__ = ["kernelspec"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

NODES = 3


@pytest.fixture
def kernel(slurm, tmp_path, monkeypatch):
    """A kernel on the login node; the cluster has no job before and none after it."""
    monkeypatch.setenv("MONARCH_NB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with KernelClient("monarch") as client:
        yield client
    slurm.assert_idle()


def in_queue(slurm):
    return slurm.run("squeue", "-h", "-o", "%i").split()


def test_ranks_on_nodes_lost_healed_more_and_nothing_is_left(kernel, slurm):
    cell = kernel.ok("%mesh up --on slurm --hosts 2 --gpus 2 --spares 1", timeout_s=90)
    assert re.search(r"3/3 hosts -> ranks up in [\d.]+ s\n", cell.shown)
    assert "mesh0 is up: 4 ranks (hosts=2 gpus=2) in " in cell.text()
    [job] = in_queue(slurm)
    assert re.search(rf"mesh0 +slurm +{job} +up +3/3", kernel.ok("%mesh jobs").shown)
    [data] = kernel.ok("%%mesh\nimport os, socket; kept = rank; socket.gethostname()").displays
    stays, lost = re.findall(r"'(node\d)'", data["text/plain"])
    [spare] = {each.name for each in slurm.nodes} - {stays, lost}
    assert data["text/plain"] == f"[0-1] '{stays}'\n[2-3] '{lost}'"
    assert (
        kernel.ok("%mesh shell 3")
        .text()
        .endswith(f"srun --jobid={job} --overlap --nodelist={lost} --pty bash\n")
    )
    assert lost in kernel.ok("%mesh shell 3 -- hostname").text()
    lose_host(next(each for each in slurm.nodes if each.name == lost))
    kernel.until(lambda: "lost ranks [2, 3]" in kernel.ok("print(repr(mesh0))").text())
    assert "ranks 2-3 are on mesh0 2 now" in kernel.ok("%mesh heal", timeout_s=60).text()
    [data] = kernel.ok("%%mesh\nimport socket; socket.gethostname(), 'kept' in globals()").displays
    assert data["text/plain"] == f"[0-1] ('{stays}', True)\n[2-3] ('{spare}', False)"
    assert kernel.ok("%mesh down").text() == "mesh0 is down, the hosts of mesh0 are given back\n"
    eventually(lambda: not in_queue(slurm), 20)


def test_more_hosts_come_from_the_queue_and_go(kernel, slurm):
    kernel.ok("%mesh up --on slurm --hosts 2 gpus=1 --device cpu", timeout_s=90)
    kernel.ok("%%mesh\nkept = rank")
    cell = kernel.ok("%mesh scale --hosts 3", timeout_s=90)
    assert "3/3 hosts -> ranks up in " in cell.shown
    assert (
        "mesh0 has 3 hosts now: 3 ranks (hosts=3 gpus=1). variables of ranks 0-1 are kept"
        in cell.text()
    )
    assert len(in_queue(slurm)) == 2
    assert kernel.ok("%%mesh 0,1\nkept").shown
    cell = kernel.start("%mesh scale --hosts 9")
    kernel.until(lambda: "queued (" in cell.shown)
    kernel.stop_s(cell)
    assert cell.error == "KeyboardInterrupt: mesh0 was not scaled: it is as it was"
    eventually(lambda: len(in_queue(slurm)) == 2, 20)
    assert (
        "rank 2 ended; variables of ranks 0-1 are kept" in kernel.ok("%mesh scale --hosts 2").text()
    )
    eventually(lambda: len(in_queue(slurm)) == 1, 20)
    kernel.ok("%mesh down")


def test_the_stop_button_takes_a_job_out_of_the_queue(kernel, slurm):
    cell = kernel.start("%mesh up --on slurm --hosts 9 --gpus 1")
    kernel.until(lambda: re.search(r"queued \(Partition", cell.shown))
    assert in_queue(slurm)
    kernel.stop_s(cell)
    assert "mesh0 was not started: its hosts were given back (slurm)" in cell.error
    assert not in_queue(slurm)
