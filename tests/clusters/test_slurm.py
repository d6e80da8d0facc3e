"""The Slurm cluster, from the test's side; hosts that it starts end with their job."""

import sys

import pytest

from tests.clusters.actors import Where, names
from tests.clusters.offer import PORT
from tests.clusters.slurm import GPUS
from tests.support import eventually

pytestmark = pytest.mark.slow


NODES = 2
SLEEP = "#!/bin/sh\nsleep 60"


@pytest.fixture
def cluster(slurm):
    """It has no job before a test and none after it."""
    yield slurm
    slurm.run("scancel", "--user=root")
    slurm.assert_idle()


def test_commands_of_the_test_reach_the_nodes(cluster):
    names = cluster.run("srun", "--nodes=2", "sh", "-c", "hostname; echo $TMPDIR").split()
    assert sorted(names) == sorted(["node1", "node2", *[str(cluster.head.tmpdir)] * 2])
    partitions = cluster.run("sinfo", "-h", "-o", "%P %l %D").split("\n")
    assert partitions[:3] == ["debug* infinite 2", "short 1:00 2", "single infinite 1"]


def test_a_job_has_the_gpus_it_asked_for(cluster):
    show = 'printf "$SLURM_NODEID $SLURM_GPUS_ON_NODE $CUDA_VISIBLE_DEVICES\\n"'
    seen = cluster.run("srun", "--nodes=2", f"--gpus-per-node={GPUS}", "sh", "-c", show)
    assert sorted(seen.splitlines()) == [f"{node} 8 0,1,2,3,4,5,6,7" for node in range(2)]


def test_what_cannot_start_says_why(cluster):
    wide = cluster.sbatch(SLEEP, "--nodes=2", "--partition=single")
    long = cluster.sbatch(SLEEP, "--partition=short", "--time=2")
    assert [cluster.state(each) for each in (wide, long)] == ["PENDING"] * 2
    eventually(lambda: cluster.reason(wide) == "PartitionConfig")
    eventually(lambda: cluster.reason(long) == "PartitionTimeLimit")


def test_a_drained_node_gets_no_job_until_it_is_resumed(cluster):
    first = cluster.nodes[0]
    cluster.drain(first)
    job = cluster.sbatch(SLEEP, "--partition=single")
    eventually(lambda: "ReqNodeNotAvail" in cluster.reason(job))
    cluster.resume(first)
    eventually(lambda: cluster.state(job) == "RUNNING", 20)
    cluster.run("scancel", job)
    eventually(lambda: cluster.state(job) == "CANCELLED")


def test_hosts_of_a_job_are_one_mesh_and_end_with_it(cluster, attach, monkeypatch):
    told = []
    monkeypatch.setattr("monarch_nb.unhandled_fault_hook", told.append, raising=False)
    worker = f"{sys.executable} -m tests.clusters.offer tcp://$(hostname -i):{PORT}"
    script = f"#!/bin/sh\nsrun --ntasks-per-node=1 sh -c 'exec {worker}'"
    job = cluster.sbatch(script, "--nodes=2", "--gpus-per-node=2")
    actors = attach(cluster.nodes).spawn_procs(per_host={"gpus": 2}).spawn("where", Where)
    assert names(actors) == ["node1", "node1", "node2", "node2"]
    assert actors.length.call(b"x" * 3_000_000).get(30).values() == [3_000_000] * 4
    cluster.run("scancel", job)
    cluster.assert_idle()
    assert cluster.state(job) == "CANCELLED"
    eventually(lambda: told, what="the end of the hosts is told")
    assert {rank for each in told for rank in each.crashed_ranks} == {0, 1, 2, 3}
