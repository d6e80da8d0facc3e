"""`monarch-nb run --on slurm` and `--on ssh`, with a real Slurm and a real sshd."""

import shlex
import sys

import pytest

from tests.batch.story import notebook_on_hosts, tell_of_runs
from tests.batch.terminal import COMMAND, shown, until_shown
from tests.clusters.test_sshd import joined
from tests.clusters.test_up_on_slurm import in_queue
from tests.kernel.conftest import kernelspec
from tests.support import eventually

__all__ = ["kernelspec"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

NODES = 2
ON = ["--on", "slurm", "--hosts", 2]


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """Keys and runs of this test alone."""
    monkeypatch.setenv("MONARCH_NB_HOME", str(tmp_path / "home"))


@pytest.mark.nightly
def test_runs_on_nodes_of_slurm(slurm, tmp_path):
    tell_of_runs(tmp_path, ON, lambda: not in_queue(slurm))
    slurm.assert_idle()


def test_runs_on_machines_of_ssh(machines, sshd, tmp_path):
    both = machines(2, home=True)
    python = ["--python", sys.executable]
    on = ["--on", "ssh:node1,node2", *python, "--", "-F", sshd(both).config]
    tell_of_runs(tmp_path, on, lambda: not any(map(joined, both)))


@pytest.mark.nightly
def test_a_run_that_is_a_job_of_slurm_itself(slurm, tmp_path):
    path = notebook_on_hosts(tmp_path)

    def submitted(then):
        run = shlex.join([*COMMAND, *map(str, ["run", path, "-p", f"then={then}", *ON])])
        options = ("-N", "2", "--exclusive", "--output", f"{tmp_path}/{then}.out")
        return slurm.run("sbatch", "--parsable", *options, "--wrap", run).strip()

    failing = submitted("fail")
    eventually(lambda: slurm.state(failing) == "FAILED", 60, lambda: slurm.state(failing))
    assert "ExitCode=1:0" in slurm.run("scontrol", "show", "job", failing)
    assert "failed: AssertionError" in (tmp_path / "fail.out").read_text()
    assert shown(tmp_path / "far.run-1.ipynb", 3) == "[0] 0\n[1] 10\n"
    slurm.assert_idle()
    waiting = submitted("wait")
    until_shown(tmp_path / "far.run-2.ipynb", 4, "in")
    assert in_queue(slurm) == [waiting], "the hosts are a step of it"
    slurm.run("scancel", waiting)
    slurm.assert_idle()
