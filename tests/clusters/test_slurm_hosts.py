"""Hosts of a `SlurmJob` that are lost, missing, or more and fewer than before, on a real Slurm."""

import os
import signal

import pytest

from monarch_nb import shutdown_context
from monarch_nb.control.jobs.status import Stage
from monarch_nb.job import SlurmJob
from tests import inside
from tests.clusters.actors import Where, names
from tests.source import ROOT
from tests.support import describe_process, eventually

pytestmark = pytest.mark.slow

NODES = 4


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A folder for keys and jobs, which the nodes share; nobody hears of failures."""
    monkeypatch.setenv("MONARCH_NB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr("monarch_nb.unhandled_fault_hook", lambda _: None, raising=False)
    return tmp_path / "home"


@pytest.fixture
def cluster(slurm, home):
    """It has no job before a test and none after it."""
    yield slurm
    shutdown_context().get(20)
    slurm.run("scancel", "--user=root")
    slurm.assert_idle()


def in_queue(cluster):
    return cluster.run("squeue", "-h", "-o", "%i").split()


def lose(node, procs, *ranks):
    """Kill our host on a node, and wait until its ranks are lost."""
    [joined] = [pid for pid in node.processes() if "-m monarch_nb.host.join" in said(pid)]
    os.kill(joined, signal.SIGKILL)
    eventually(lambda: inside.lost(procs) == list(ranks), 20, f"{ranks} are lost")


def said(pid):
    words = describe_process(pid)
    return words if "python" in words and "srun" not in words and "sh -c" not in words else ""


def counts(actors):
    return list(actors.count.call().get(60).values())


@pytest.mark.fault
def test_a_spare_takes_the_place_of_a_lost_host_then_its_own_node_does(cluster):
    job = SlurmJob({"trainers": 2}, spares=1)
    hosts = job.state(cached_path=None).trainers
    assert hosts.sizes == {"hosts": 2}
    assert job.status()[1:4] == (Stage.UP, 3, 3)
    procs = hosts.spawn_procs()
    where = procs.spawn("where", Where)
    assert names(where) == ["node1", "node2"]
    assert counts(where) == [1, 1]
    node2, node3 = cluster.nodes[1:3]
    cluster.drain(node2)
    lose(node2, procs, 1)
    procs.heal()
    assert names(where) == ["node1", "node3"]
    assert counts(where) == [2, 1]
    assert inside.state(procs).moves == ["rank 1 is on trainers 2 now"]
    cluster.resume(node2)
    lose(node3, procs, 1)
    procs.heal()
    found = names(where)
    assert found[0] == "node1"
    assert found[1] in ("node2", "node3"), "a step of the same job"
    assert len(in_queue(cluster)) == 1
    assert job.status().stage is Stage.UP
    assert counts(where) == [3, 1]
    job.kill()
    cluster.assert_idle()
