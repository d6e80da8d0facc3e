"""Hosts that are processes of this host: what runs there, and that nothing is left of them."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from monarch_nb import current_rank, shutdown_context
from monarch_nb.control.jobs.status import JobStatus, Stage
from monarch_nb.errors import LaunchError
from monarch_nb.host.rundir import sweep_all
from monarch_nb.job import DEFAULT_JOB_PATH, ProcessJob, hosts_from_config, job_load
from tests.source import ROOT
from tests.support import descendants, eventually, is_running

NOT_APPLIED = "it has no hosts; job.apply()"


@pytest.fixture(autouse=True)
def _client():
    yield
    shutdown_context().get(20)
    sweep_all()  # what those that were killed had no time to remove


def saved_pids():
    workers = json.loads(Path(DEFAULT_JOB_PATH).read_text())["fields"]["_workers"]
    return [pid for some in workers.values() for pid, _, _ in some]


def below_here():
    return {pid for pid in descendants(os.getpid()) if is_running(pid)}


def program(folder, source, *words):
    path = folder / "program.py"
    path.write_text(textwrap.dedent(source))
    return subprocess.Popen(
        [sys.executable, str(path), *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_each_mesh_has_its_hosts(folder):
    job = ProcessJob({"trainers": 2, "loaders": 1}, env={"COLOUR": "green"})
    state = job.state(cached_path=None)
    assert (state.trainers.sizes, state.loaders.sizes) == ({"hosts": 2}, {"hosts": 1})
    procs = state.trainers.spawn_procs(per_host={"gpus": 2})
    found = procs.execute(lambda: (dict(current_rank()), os.environ["COLOUR"], os.getppid()))
    places, colours, parents = zip(*found.values(), strict=True)
    assert list(places) == [{"hosts": h, "gpus": g} for h in range(2) for g in range(2)]
    assert set(colours) == {"green"}
    assert len(set(parents)) == 2
    again = job.state(cached_path=None)
    assert again.trainers.spawn_procs().execute(os.getppid).values() == [parents[0], parents[2]]
    job.kill()
    assert below_here() == set()
    assert list(folder.iterdir()) == [folder / "keys"]


@pytest.mark.slow
@pytest.mark.fault
def test_a_spare_takes_the_place_of_a_host_that_was_killed(monkeypatch):
    monkeypatch.setattr("monarch_nb.unhandled_fault_hook", lambda _: None, raising=False)
    job = ProcessJob({"trainers": 2}, spares=1)
    hosts = job.state(cached_path=None).trainers
    assert hosts.sizes == {"hosts": 2}
    procs = hosts.spawn_procs()
    before = procs.execute(os.getpid).values()
    workers = [each[0] for each in json.loads(job.dumps())["fields"]["_workers"]["trainers"]]
    assert [bool(descendants(pid) & set(before)) for pid in workers] == [True, True, False]
    os.kill(workers[0], signal.SIGKILL)
    eventually(lambda: "lost ranks [0]" in repr(procs), 10)
    procs.heal()
    after = procs.execute(os.getpid).values()
    assert after[1] == before[1]
    assert after[0] in descendants(workers[2])
    job.kill()
    eventually(lambda: below_here() == set(), 10)


def test_it_tells_how_many_of_its_hosts_are_alive():
    job = ProcessJob({"trainers": 2})
    assert job.status() == JobStatus("processes", Stage.GONE, 0, 2, reason=NOT_APPLIED)
    assert job.script().splitlines()[1].endswith("monarch_nb.control.hosts.worker  # trainers 1")
    job.apply()
    assert job.status() == JobStatus("processes", Stage.UP, 2, 2)
    first, second = descendants(os.getpid())
    os.kill(first, signal.SIGKILL)
    eventually(lambda: job.status().joined == 1)
    assert job.status()[1:] == (Stage.UP, 1, 2, "", "1 of its hosts have ended", None, None)
    os.kill(second, signal.SIGKILL)
    eventually(lambda: job.status().stage is Stage.GONE)
    assert job.status().reason == "its hosts have ended"
    job.kill()
    assert job.status().reason == NOT_APPLIED
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in (first, second)))


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="spares=-1"):
        ProcessJob({"trainers": 1}, spares=-1)
    with pytest.raises(ValueError, match="trainers=0: a mesh has at least one host"):
        ProcessJob({"trainers": 0})
    with pytest.raises(RuntimeError, match="cannot run a client script; a LocalJob can"):
        ProcessJob({"trainers": 1}).apply("train.py")


def test_a_host_that_cannot_start_says_why():
    job = ProcessJob({"trainers": 1}, env={"MONARCH_NB_HOME": "/proc/none"})
    with pytest.raises(LaunchError, match="ended with code 1\n(?s:.*)/proc/none"):
        job.state(cached_path=None)
    assert not job.active


@pytest.mark.slow
def test_hosts_that_a_program_lets_go_of_stay():
    hosts = hosts_from_config("trainers")
    assert hosts.sizes == {"hosts": 2}
    assert hosts.spawn_procs().execute(lambda: 7).values() == [7, 7]
    hosts.shutdown().get(20)


OWNER = """
    import sys
    from monarch_nb.job import ProcessJob
    job = ProcessJob({"trainers": 1})
    state = job.state(sys.argv[1] or None)
    print(state.trainers.spawn_procs().execute(lambda: 1).values(), job.apply_id, flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.fault
def test_hosts_end_with_a_program_that_is_killed(folder):
    owner = program(folder, OWNER, "")
    assert owner.stdout.readline().startswith("[1] ")
    below = descendants(owner.pid)
    assert len(below) >= 3
    owner.kill()
    owner.wait()
    owner.stdout.close()
    eventually(lambda: not any(is_running(pid) for pid in below))


@pytest.mark.slow
def test_the_next_program_finds_the_hosts_of_the_first(folder):
    first = program(folder, OWNER, DEFAULT_JOB_PATH).communicate("")[0]
    [pid] = saved_pids()
    assert is_running(pid)
    assert eventually(lambda: not descendants(pid)), "an idle host keeps no rank"
    second = program(folder, OWNER, DEFAULT_JOB_PATH).communicate("")[0]
    assert first == second
    assert re.fullmatch(r"\[1\] [0-9a-f-]{36}\n", second)
    job_load().kill()
    assert not is_running(pid)


@pytest.mark.slow
def test_hosts_of_another_size_replace_those_that_were_saved():
    ProcessJob({"trainers": 1}).state()
    [pid] = saved_pids()
    job = ProcessJob({"trainers": 2})
    job.state()
    assert not is_running(pid)
    assert len(saved_pids()) == 2
    job.kill()


@pytest.mark.slow
@pytest.mark.fault
def test_a_saved_job_never_kills_a_stranger():
    job = ProcessJob({"trainers": 1})
    job.state()
    [pid] = saved_pids()
    record = json.loads(job.dumps())
    stranger = subprocess.Popen(["sleep", "60"])
    record["fields"]["_workers"]["trainers"][0][0] = stranger.pid
    Path("changed.pkl").write_text(json.dumps(record))
    job_load("changed.pkl").kill()
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not is_running(pid))
    with pytest.raises(RuntimeError, match="hosts of this job have ended"):
        job.state()
    job.kill()
