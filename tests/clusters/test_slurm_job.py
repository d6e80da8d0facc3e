"""`SlurmJob` on a real Slurm: from the queue to a mesh, and to the end in every way."""

import contextlib
import functools
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from monarch_nb import Actor, endpoint, shutdown_context
from monarch_nb.control.jobs.status import Stage
from monarch_nb.errors import LaunchError
from monarch_nb.host.rundir import sweep_all
from monarch_nb.job import SlurmJob
from tests import inside
from tests.clusters.actors import Where, names
from tests.source import ROOT
from tests.support import describe_process, eventually

pytestmark = pytest.mark.slow

NODES = 2
TOO_WIDE = "Partition(Config|NodeLimit): the partition"  # whichever Slurm looks at first


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A folder for keys and jobs, which the nodes share; a client that ends with the test."""
    monkeypatch.setenv("MONARCH_NB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    yield tmp_path / "home"
    shutdown_context().get(20)


@pytest.fixture
def cluster(slurm, home):
    """It has no job before a test and none after it."""
    yield slurm
    shutdown_context().get(20)
    slurm.run("scancel", "--user=root")
    slurm.assert_idle()


@pytest.fixture
def told(monkeypatch):
    """What fails and nobody waits for."""
    found = []
    monkeypatch.setattr("monarch_nb.unhandled_fault_hook", found.append, raising=False)
    return found


class Sums(Actor):
    """Adds over all ranks of a mesh."""

    @endpoint
    def sum(self) -> float:
        import torch

        torch.distributed.init_process_group("gloo")
        mine = torch.tensor([float(torch.distributed.get_rank())])
        torch.distributed.all_reduce(mine)
        return mine.item()


def stage(job):
    return job.status().stage


def in_queue(cluster):
    return cluster.run("squeue", "-h", "-o", "%i").split()


def steps(cluster):
    return cluster.run("squeue", "-h", "--steps", "-o", "%i").split()


def test_from_the_queue_to_a_sum_over_two_hosts(cluster, home):
    job = SlurmJob({"trainers": 2}, gpus_per_node=2, env={"FROM_THE_JOB": "yes, so"})
    hosts = job.state(cached_path=None).trainers
    assert stage(job) is Stage.UP
    procs = hosts.spawn_procs(per_host={"gpus": 2})
    actors = procs.spawn("where", Where)
    assert names(actors) == ["node1", "node1", "node2", "node2"]
    assert set(actors.variable.call("FROM_THE_JOB").get(20).values()) == {"yes, so"}
    assert procs.spawn("sums", Sums).sum.call().get(30).values() == [6.0] * 4
    eventually(lambda: not list(home.rglob("ticket")), what="the ticket is gone")
    status = job.status()
    assert (status.engine, status.joined, status.hosts, status.id) == (
        "slurm", 2, 2, *in_queue(cluster),
    )  # fmt: skip
    job.kill()
    assert job.status().stage is Stage.GONE
    cluster.assert_idle()
    assert not list(home.rglob("*-*")), "nothing is left of a job in which nothing went wrong"


def test_two_meshes_are_one_job(cluster):
    job = SlurmJob({"trainers": 1, "loaders": 1})
    state = job.state(cached_path=None)
    assert len(in_queue(cluster)) == 1
    both = [state.trainers, state.loaders]
    places = [names(hosts.spawn_procs().spawn("where", Where)) for hosts in both]
    assert sorted(places) == [["node1"], ["node2"]]
    job.kill()


def test_a_ticket_is_for_the_user_alone_and_a_path_in_the_script(cluster, home):
    job = SlurmJob({"trainers": 9})
    before = job.script()
    job.apply()
    [ticket] = home.rglob("ticket")
    assert [stat.S_IMODE(each.stat().st_mode) for each in (ticket, ticket.parent)] == [0o600, 0o700]
    script = cluster.run("scontrol", "write", "batch_script", *in_queue(cluster), "-")
    assert script.strip() == before.strip() == job.script().strip()
    assert "secret" in ticket.read_text()
    assert "--mem" not in script
    job.kill()
    assert not list(home.rglob("ticket"))
    assert not in_queue(cluster)


def test_a_job_that_cannot_start_says_why_and_is_not_left_there(cluster, caplog):
    job = SlurmJob({"trainers": 9}, job_start_timeout=3)
    with pytest.raises(LaunchError, match=f"has 0 of 9 hosts after 3 s: queued {TOO_WIDE}"):
        job.state(cached_path=None)
    assert re.search(f"is queued: {TOO_WIDE}", caplog.text)
    assert not in_queue(cluster)
    assert stage(job) is Stage.GONE


def test_a_job_that_waits_says_for_what(cluster):
    first = cluster.sbatch("#!/bin/sh\nsleep 60", "--exclusive", "--nodes=2", "--time=1")
    eventually(lambda: cluster.state(first) == "RUNNING")
    job = SlurmJob({"trainers": 2})
    job.apply()
    eventually(lambda: job.status().reason == "Resources")
    status = eventually(lambda: (now := job.status()).starts_at and now, what="it is planned")
    assert status.stage is Stage.QUEUED
    assert 0 < status.starts_at - time.time() <= 120
    cluster.run("scancel", first)
    job.state(cached_path=None)
    assert stage(job) is Stage.UP
    job.kill()


def test_the_stop_button_takes_it_out_of_the_queue(cluster):
    job = SlurmJob({"trainers": 9})

    def press() -> None:
        eventually(lambda: in_queue(cluster))
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        job.state(cached_path=None)
    thread.join()
    assert not job.active
    # where it came while sbatch still ran, the shell that holds the job cancels it on its own
    eventually(lambda: not in_queue(cluster))


def test_the_stop_button_may_come_at_any_moment_of_the_submission(cluster):
    press = functools.partial(signal.pthread_kill, threading.main_thread().ident, signal.SIGINT)
    inside.client()
    for milliseconds in range(1, 41):
        job = SlurmJob({"trainers": 9})
        pressing = threading.Timer(milliseconds / 1000, press)
        with pytest.raises(KeyboardInterrupt):
            pressing.start()
            job.state(cached_path=None)
        assert not job.active
    eventually(lambda: not in_queue(cluster))


def test_a_job_in_the_queue_ends_with_the_client(cluster):
    job = SlurmJob({"trainers": 9})
    job.apply()
    assert in_queue(cluster)
    shutdown_context().get(20)
    assert not in_queue(cluster)
    assert stage(job) is Stage.GONE


def test_drained_nodes_are_said_and_awaited(cluster):
    cluster.drain(cluster.nodes[0])
    job = SlurmJob({"trainers": 2})
    job.apply()
    eventually(lambda: "DRAINED" in job.status().reason or "NotAvail" in job.status().reason)
    cluster.resume(cluster.nodes[0])
    job.state(cached_path=None)
    assert stage(job) is Stage.UP
    job.kill()


def test_what_cancels_it_from_outside_is_told_with_the_host(cluster, told):
    job = SlurmJob({"trainers": 2})
    actors = job.state(cached_path=None).trainers.spawn_procs().spawn("where", Where)
    assert names(actors) == ["node1", "node2"]
    cluster.run("scancel", *in_queue(cluster))
    eventually(lambda: len({rank for each in told for rank in each.crashed_ranks}) == 2)
    text = "\n".join(str(each) for each in told)
    assert "trainers 1 (node2): it was ended: it was cancelled" in text
    eventually(lambda: stage(job) is Stage.GONE)
    assert job.status().reason == "it was cancelled"
    job.kill()


def test_a_job_that_is_cancelled_in_the_queue_ends_the_wait(cluster):
    job = SlurmJob({"trainers": 9})
    job.apply()
    [number] = in_queue(cluster)
    cluster.run("scancel", number)
    with pytest.raises(LaunchError, match=f"^Slurm job {number}: it was cancelled"):
        job.state(cached_path=None)


PROGRAM = """
from monarch_nb.job import SlurmJob
job = SlurmJob({{"trainers": {count}}}, attach_to={attach_to})
job.apply()
if {count} == 2:
    procs = job.state(cached_path=None).trainers.spawn_procs()
    procs.initialized.get()
print("there", flush=True)
input()
"""


@contextlib.contextmanager
def killed(count, attach_to=None):
    """A program that has such a job, and is killed in the end."""
    text = PROGRAM.format(count=count, attach_to=attach_to)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", text], **pipes) as program:
        assert program.stdout.readline() == b"there\n"
        yield
        program.kill()


@pytest.mark.parametrize("count", [9, 2], ids=["queued", "running"])
def test_a_program_that_is_killed_leaves_no_job(cluster, home, count):
    with killed(count):
        assert in_queue(cluster)
    cluster.assert_idle()
    eventually(lambda: not list(home.glob("jobs/*")), what="the ticket is gone, and the output")
    sweep_all()


def test_what_slurm_refuses_is_said_at_once(cluster, home):
    job = SlurmJob({"trainers": 2}, partition="nope")
    with pytest.raises(LaunchError) as said:
        job.apply()
    assert "sbatch: error: invalid partition specified: nope" in str(said.value)
    assert "See the partitions: sinfo --summarize" in str(said.value)
    assert not list(home.rglob("*-*"))


def python_that(tmp_path: Path, lines: str) -> str:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{lines}\n")
    program.chmod(0o755)
    return str(program)


def test_a_python_without_monarch_nb_is_said(cluster, tmp_path):
    job = SlurmJob({"trainers": 2}, python_that(tmp_path, 'exec /usr/bin/python3 -I -S "$@"'))
    with pytest.raises(LaunchError, match="No module named 'monarch_nb'") as said:
        job.state(cached_path=None)
    assert "Install monarch_nb in that Python, or name one" in str(said.value)
    cluster.assert_idle()


def test_one_host_that_fails_is_said_while_the_others_live(cluster, tmp_path):
    python = python_that(
        tmp_path,
        'if test "$SLURM_PROCID" = 1; then echo no luck >&2; exit 3; fi\n'
        f'exec {sys.executable} "$@"',
    )
    job = SlurmJob({"trainers": 2}, python)
    job.apply()
    with pytest.raises(LaunchError, match="trainers 1 did not join: Exited with exit code 3") as e:
        job.state(cached_path=None)
    assert "no luck" in str(e.value)
    cluster.assert_idle()


@pytest.fixture
def allocation(cluster):
    """The id of one that somebody has, of both nodes."""
    cluster.run("salloc", "--no-shell", "--nodes=2", "--gpus-per-node=2")
    return in_queue(cluster)[0]


@pytest.mark.parametrize("how", ["inside", "named"])
def test_an_allocation_is_used_and_stays(cluster, allocation, how, monkeypatch):
    if how == "inside":
        monkeypatch.setenv("SLURM_JOB_ID", allocation)
        monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    job = SlurmJob({"trainers": 2}, attach_to=allocation if how == "named" else None)
    assert job.script().startswith(f"srun --jobid={allocation} --overlap ")
    hosts = job.state(cached_path=None).trainers
    assert in_queue(cluster) == [allocation]
    actors = hosts.spawn_procs().spawn("where", Where)
    assert names(actors) == ["node1", "node2"]
    assert actors.variable.call("CUDA_VISIBLE_DEVICES").get(10).values() == ["0,1"] * 2
    assert job.status().id == allocation
    job.kill()
    assert cluster.state(allocation) == "RUNNING"
    eventually(lambda: f"{allocation}.0" not in steps(cluster))


def test_a_program_that_is_killed_leaves_an_allocation_as_it_was(cluster, allocation, home):
    with killed(2, allocation):
        assert f"{allocation}.0" in steps(cluster)
    eventually(lambda: f"{allocation}.0" not in steps(cluster))
    assert cluster.state(allocation) == "RUNNING"
    for node in cluster.nodes:
        eventually(lambda node=node: not ours(node))
    eventually(lambda: not list(home.glob("jobs/*")), what="the ticket is gone, and the output")
    sweep_all()


def ours(node):
    """Processes of ours on a node; the daemons of Slurm go on."""
    return [pid for pid in node.processes() if "monarch_nb" in describe_process(pid)]


def test_a_step_that_dies_in_an_allocation_is_told(cluster, allocation, told):
    job = SlurmJob({"trainers": 2}, attach_to=allocation)
    actors = job.state(cached_path=None).trainers.spawn_procs().spawn("where", Where)
    assert names(actors) == ["node1", "node2"]
    cluster.run("scancel", f"{allocation}.0")
    eventually(lambda: len({rank for each in told for rank in each.crashed_ranks}) == 2)
    eventually(lambda: stage(job) is Stage.GONE)
    assert job.status().reason == "srun has ended"
    job.kill()


def test_too_small_an_allocation_is_said(cluster, allocation):
    job = SlurmJob({"trainers": 9}, attach_to=allocation)
    with pytest.raises(LaunchError, match="srun has ended\n(.|\n)*nodes"):
        job.state(cached_path=None)


def test_the_end_of_its_time_is_known_ahead(cluster, caplog):
    called = threading.Event()
    job = SlurmJob({"trainers": 1}, time_limit="00:03:00", partition="debug")
    job.on_time_over(3600, called.set)
    job.state(cached_path=None)
    assert called.wait(10)
    eventually(lambda: "its time limit of 00:03:00 is over at " in caplog.text)
    assert 120 < job.status().ends_at - time.time() <= 181
    job.kill()


def test_paths_may_have_any_characters(cluster, tmp_path, monkeypatch):
    strange = tmp_path / "it's 100% $HOME #1"
    strange.mkdir()
    monkeypatch.setenv("MONARCH_NB_HOME", str(strange))
    monkeypatch.setenv("SBATCH_PARTITION", "nope")
    monkeypatch.setenv("SQUEUE_FORMAT", "%u")
    job = SlurmJob({"trainers": 1}, partition="debug", log_dir=str(strange / "logs"))
    assert names(job.state(cached_path=None).trainers.spawn_procs().spawn("where", Where))
    job.kill()
    assert list((strange / "logs").iterdir())
