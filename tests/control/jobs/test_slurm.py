"""`SlurmJob` without a cluster: what is asked for, and what the words of Slurm mean.

The lines are recorded from Slurm 22.05. With a real one: `tests/clusters`.
"""

import shlex
import subprocess
import sys
import threading

import pytest

from monarch_nb.control.jobs.slurm.batch_script import batch_script, options_of
from monarch_nb.control.jobs.slurm.squeue import (
    Facts,
    advice,
    ended_tasks,
    facts_of,
    stage_of,
    why_over,
    why_queued,
    words_of,
)
from monarch_nb.control.jobs.slurm.submission import Keeper, sbatch_environment, squeue_environment
from monarch_nb.control.jobs.status import Stage
from monarch_nb.errors import LaunchError
from monarch_nb.job import SlurmJob, job_loads

QUEUE = """\
1|PENDING|N/A|N/A|UNLIMITED|PartitionConfig
2|PENDING|1795612700|1795612760|1:00|Priority
4|RUNNING|1795612691|1795612811|2:00|None
5|RUNNING|1795612691|1795699091|1-00:00:00|None
6|PENDING|N/A|N/A|1:00:00|(ReqNodeNotAvail, UnavailableNodes:node[1-2] a|b)
slurm_load_jobs error: something
"""
OUTPUT = """\
srun: cluster configuration lacks support for cpu binding
 0: monarch_nb: node1: fine
 1: /usr/bin/python3: No module named monarch_nb
11: another
srun: error: node[2,4-5]: tasks 1,3-4: Exited with exit code 1
srun: error: node6: task 5: Killed
"""


def test_the_queue_is_read():
    found = facts_of(QUEUE)
    assert found["1"] == Facts("1", "PENDING", "PartitionConfig", None, None, "UNLIMITED")
    assert found["2"].starts_at == 1795612700.0
    assert found["4"] == Facts("4", "RUNNING", "", 1795612691.0, 1795612811.0, "00:02:00")
    assert [found[each].limit for each in ("5", "6")] == ["1-00:00:00", "01:00:00"]
    assert found["6"].reason.endswith("a|b)")
    assert len(found) == 5


@pytest.mark.parametrize(
    "state, joined, stage",
    [
        ("PENDING", False, Stage.QUEUED),
        ("CONFIGURING", False, Stage.JOINING),
        ("RUNNING", False, Stage.JOINING),
        ("RUNNING", True, Stage.UP),
        ("COMPLETING", True, Stage.ENDING),
        ("CANCELLED", True, Stage.GONE),
        ("NODE_FAIL", False, Stage.GONE),
        ("what comes with a later version", False, Stage.GONE),
    ],
)
def test_states_are_stages(state, joined, stage):
    assert stage_of(Facts("1", state), all_joined=joined) is stage


@pytest.mark.parametrize(
    "facts, output, said",
    [
        (Facts("1", "TIMEOUT", "TimeLimit", limit="00:01:00"), "", "its time limit of 00:01:00 is"),
        (Facts("1", "COMPLETING", "TimeLimit", limit="00:01:00"), "", "its time limit of 00:01:00"),
        (Facts("1", "COMPLETING"), "*** STEP 4.0 ON n1 CANCELLED AT 20", "it was cancelled"),
        (Facts("1", "FAILED", "NonZeroExitCode"), "", "it failed (NonZeroExitCode)"),
        (Facts("1", "UNKNOWN"), "", "Slurm does not know it any more"),
    ],
)
def test_an_end_has_a_reason(facts, output, said):
    assert why_over(facts, output).startswith(said)


def test_reasons_are_said_with_what_they_mean():
    assert why_queued("Priority") == "Priority"
    assert why_queued("QOSMaxGRESPerUser").endswith("a limit of your qos or account is reached")
    assert "drained" in why_queued("ReqNodeNotAvail, UnavailableNodes:node1")


def test_tasks_that_have_ended_are_found_with_their_words():
    assert ended_tasks(OUTPUT) == {
        **dict.fromkeys([1, 3, 4], "Exited with exit code 1"),
        5: "Killed",
    }
    assert words_of(OUTPUT, 1) == "/usr/bin/python3: No module named monarch_nb"
    assert words_of(OUTPUT, 5) == ""


@pytest.mark.parametrize(
    "words, said",
    [
        ("/usr/bin/python3: No module named monarch_nb", "Install monarch_nb in that Python"),
        ("sbatch: error: invalid partition specified: nope", "sinfo --summarize"),
        ("sbatch: error: Batch job submission failed: Invalid account or account", "sacctmgr show"),
        ("sbatch: error: Unable to contact slurm controller (connect failure)", "scontrol ping"),
        ("slurmstepd: error: execve(): /opt/py: No such file or directory", "a Python that all"),
        ("monarch_nb: node1: nothing at tcp://h:1 answered within 30 s: either", "bind_to="),
        ("something new", ""),
    ],
)
def test_what_to_type_is_said(words, said):
    assert said in advice(words)
    assert bool(said) == bool(advice(words))


def test_what_was_not_asked_for_is_not_in_the_script():
    script = SlurmJob({"trainers": 2}, exclusive=False).script()
    options = [line.split()[1].split("=")[0] for line in script.splitlines()[1:-1]]
    always = "--job-name --nodes --ntasks-per-node --no-requeue --no-kill --output"
    assert options == always.split()


def test_what_was_asked_for_is_in_the_script():
    job = SlurmJob(
        {"a": 2, "b": 1}, "/opt/py thon", ["--constraint=ib&hdr"], partition="h100",
        time_limit="1:00:00", account="A", qos="Q", gpus_per_node=8, mem="0", cpus_per_task=4,
    )  # fmt: skip
    lines = job.script().splitlines()
    found = {line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")}
    wanted = (
        "--nodes=3 --partition=h100 --time=1:00:00 --account=A --qos=Q --gpus-per-node=8 --mem=0 "
        "--cpus-per-task=4 --exclusive '--constraint=ib&hdr'"
    )
    assert set(wanted.split()) <= found
    assert "'/opt/py thon'" in lines[-1]


def test_nothing_gets_out_of_its_word(tmp_path):
    evil = f"$(touch {tmp_path}/made); `touch {tmp_path}/made` 'x\" #"
    script = batch_script([f"--comment={evil}"], ["printf", "%s", evil])
    done = subprocess.run(["sh"], input=script, capture_output=True, text=True, check=True)
    assert done.stdout == evil
    assert shlex.split(script.splitlines()[1].removeprefix("#SBATCH ")) == [f"--comment={evil}"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["constraint=ib", "--comment=a\n#SBATCH --mem=0", ""])
def test_what_is_no_option_is_refused(option):
    with pytest.raises(ValueError, match="is no option of Slurm"):
        SlurmJob({"trainers": 1}, slurm_args=[option])


def test_bad_values_are_refused_before_anything_is_submitted():
    with pytest.raises(ValueError, match="trainers=0: a mesh has at least one host"):
        SlurmJob({"trainers": 0})
    with pytest.raises(ValueError, match="is no id of a job"):
        SlurmJob({"trainers": 1}, attach_to="tcp://login:1")
    with pytest.raises(ValueError, match="this job has no hosts"):
        SlurmJob({}).apply()
    with pytest.raises(ValueError, match="is no option of Slurm"):
        SlurmJob({"trainers": 1}, partition="a\n#SBATCH --mem=0")
    with pytest.raises(RuntimeError, match="not submitted yet"):
        SlurmJob({"trainers": 1}).status()


def test_without_slurm_it_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="there is no Slurm here"):
        SlurmJob({"trainers": 1}).apply()


def test_an_allocation_with_enough_nodes_is_used_unless_another_is_wanted(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    assert SlurmJob({"a": 1, "b": 1}).script().startswith("srun --jobid=12 --overlap ")
    for job in (SlurmJob({"a": 3}), SlurmJob({"a": 1}, partition="debug")):
        assert job.script().startswith("#!/bin/sh\n#SBATCH ")
    named = SlurmJob({"a": 3}, attach_to=7, partition="debug", gpus_per_node=8)
    assert named.script().startswith("srun --jobid=7 --overlap --gpus-per-node=8 --nodes=3 ")


def test_hosts_can_be_given_back_from_several_threads_at_once(monkeypatch):
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    monkeypatch.setattr(threading, "excepthook", lambda told: failed.append(told.exc_value))
    failed: list[BaseException] = []
    try:
        for _ in range(20):
            keeper = Keeper("read -r word", (), {})
            threads = [threading.Thread(target=keeper.release, args=(0.0,)) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            keeper.release(5)
            assert keeper.has_ended
            assert keeper.hear() == ""
    finally:
        sys.setswitchinterval(interval)
    assert not failed


def test_an_outer_job_and_variables_do_not_overrule_what_was_asked_for():
    environ = {
        "PATH": "/bin", "SLURM_CONF": "c", "SLURM_JOB_ID": "1", "SLURM_CPUS_PER_TASK": "4",
        "SBATCH_ACCOUNT": "mine", "SBATCH_PARTITION": "p", "SBATCH_TIMELIMIT": "1",
        "SBATCH_WAIT": "1", "SQUEUE_FORMAT": "%u",
    }  # fmt: skip
    found = sbatch_environment(environ, options_of({"partition": "h100", "time": "5"}, []))
    assert found.keys() == {"PATH", "SLURM_CONF", "SBATCH_ACCOUNT", "SQUEUE_FORMAT"}
    assert squeue_environment(environ)["SLURM_TIME_FORMAT"] == "%s"
    assert "SQUEUE_FORMAT" not in squeue_environment(environ)


def test_it_can_be_saved_and_its_hosts_are_not():
    job = SlurmJob({"trainers": 2}, partition="h100", env={"A": "1"})
    found = job_loads(job.dumps())
    assert not found.active
    assert not found.can_run(job)
    assert found.dumps() == job.dumps()


def test_a_host_without_the_ticket_says_so_and_ends(tmp_path):
    join = [sys.executable, "-m", "monarch_nb.host.join", "--index=0"]
    ticket = tmp_path / "ticket"
    done = subprocess.run(
        [*join, f"--ticket={ticket}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "the job is over, or this host does not share the folder of" in done.stderr
