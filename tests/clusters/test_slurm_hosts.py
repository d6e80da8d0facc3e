"""Hosts of a `SlurmJob` that are lost, missing, or more and fewer than before, on a real Slurm."""

import os
import signal
import sys

import pytest

from monarch_nb import shutdown_context
from monarch_nb.control.jobs.status import Stage
from monarch_nb.errors import LaunchError
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


def on_nodes(cluster):
    """The nodes of the job in the queue, in order."""
    short = cluster.run("squeue", "-h", "-o", "%N").strip()
    return cluster.run("scontrol", "show", "hostnames", short).split()


def lose_host(node):
    """Kill our host on a node."""
    [joined] = [pid for pid in node.processes() if "-m monarch_nb.host.join" in said(pid)]
    os.kill(joined, signal.SIGKILL)


def lose(node, procs, *ranks):
    """Kill our host on a node, and wait until its ranks are lost."""
    lose_host(node)
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
    stays, lost = names(where)
    [spare] = set(on_nodes(cluster)) - {stays, lost}
    nodes = {node.name: node for node in cluster.nodes}
    assert counts(where) == [1, 1]
    cluster.drain(nodes[lost])
    lose(nodes[lost], procs, 1)
    procs.heal()
    assert names(where) == [stays, spare]
    assert counts(where) == [2, 1]
    assert inside.state(procs).moves == ["rank 1 is on trainers 2 now"]
    cluster.resume(nodes[lost])
    lose(nodes[spare], procs, 1)
    procs.heal()
    found = names(where)
    assert found[0] == stays
    assert found[1] in (lost, spare), "a step of the same job"
    assert len(in_queue(cluster)) == 1
    assert job.status().stage is Stage.UP
    assert counts(where) == [3, 1]
    job.kill()
    cluster.assert_idle()


def python_that(tmp_path, lines):
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\n{lines}\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return str(program)


def test_hosts_that_come_are_used_where_they_are_enough(cluster, tmp_path):
    fails = python_that(tmp_path, 'if test "$SLURM_PROCID" = 1; then echo no luck >&2; exit 3; fi')
    job = SlurmJob({"trainers": 3}, fails, min_hosts=2)
    hosts = job.state(cached_path=None).trainers
    assert hosts.sizes == {"hosts": 2}
    assert job.status()[1:4] == (Stage.UP, 2, 3)
    first, third = names(hosts.spawn_procs().spawn("where", Where))
    assert first < third
    job.kill()
    cluster.assert_idle()
    many = SlurmJob({"trainers": 3}, fails, min_hosts=3)
    with pytest.raises(
        LaunchError, match="trainers: 2 of 3 hosts are here, 3 are wanted\n(.|\n)*luck"
    ):
        many.state(cached_path=None)
    assert not many.active
    cluster.assert_idle()


def test_more_hosts_are_a_job_of_their_own_which_goes_with_them(cluster):
    job = SlurmJob({"trainers": 2}, gpus_per_node=2)
    hosts = job.state(cached_path=None).trainers
    procs = hosts.spawn_procs()
    where = procs.spawn("where", Where)
    assert counts(where) == [1, 1]
    more = job.scale("trainers", 4)
    procs = procs.resize(more)
    assert procs.initialized.get(60)
    assert job.status()[1:4] == (Stage.UP, 4, 4)
    assert len(in_queue(cluster)) == 2
    everywhere = procs.spawn("everywhere", Where)
    assert sorted(names(everywhere)) == ["node1", "node2", "node3", "node4"]
    assert counts(where) == [2, 2]
    assert everywhere.variable.call("CUDA_VISIBLE_DEVICES").get(20).values() == ["0,1"] * 4
    procs = procs.resize(more.slice(hosts=slice(2)))
    job.scale("trainers", 2)
    eventually(lambda: len(in_queue(cluster)) == 1, 20, "the second job is over")
    assert job.status()[1:4] == (Stage.UP, 2, 2)
    assert counts(where) == [3, 3]
    procs = procs.resize(more.slice(hosts=slice(1)))
    job.scale("trainers", 1)
    eventually(lambda: cluster.run("squeue", "-h", "-o", "%N").strip() == "node1", 20)
    assert counts(where.slice(hosts=slice(1))) == [4]
    assert job.status()[1:4] == (Stage.UP, 1, 1)
    job.kill()
    cluster.assert_idle()


def test_the_way_into_a_host_is_a_step_of_the_job(cluster):
    job = SlurmJob({"trainers": 2})
    procs = job.state(cached_path=None).trainers.spawn_procs()
    assert procs.initialized.get(60)
    host = inside.state(procs).agents[1] >> 48
    command = job.shell_command(host)
    [number] = in_queue(cluster)
    _, second = on_nodes(cluster)
    assert command == f"srun --jobid={number} --overlap --nodelist={second} --pty bash"
    without = [word for word in command.split()[:-2] if word != "--pty"]
    assert cluster.run(*without, "hostname") == f"{second}\n"
    job.kill()


def test_what_slurm_has_not_is_the_end_of_the_wait_for_it_alone(cluster):
    job = SlurmJob({"trainers": 2})
    procs = job.state(cached_path=None).trainers.spawn_procs()
    assert procs.initialized.get(60)
    more = job.scale("trainers", 20)
    eventually(lambda: job.status().stage is Stage.QUEUED, 20)
    assert job.status().joined == 2
    eventually(lambda: job.status().reason, 20, "why it waits")
    job.scale("trainers", 2)
    assert len(in_queue(cluster)) == 1
    assert job.status()[1:4] == (Stage.UP, 2, 2)
    with pytest.raises(RuntimeError, match="trainers 2 did not join: it was let go"):
        more.initialized.get(10)
    job.kill()
