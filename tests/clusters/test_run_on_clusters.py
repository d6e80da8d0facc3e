"""`monarch-nb run --on slurm` and `--on ssh`, with a real Slurm and a real sshd."""

import sys

import pytest

from tests.batch.story import tell_of_runs
from tests.clusters.test_sshd import joined
from tests.clusters.test_up_on_slurm import in_queue
from tests.kernel.conftest import kernelspec

__all__ = ["kernelspec"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

NODES = 2


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """Keys and runs of this test alone."""
    monkeypatch.setenv("MONARCH_NB_HOME", str(tmp_path / "home"))


def test_runs_on_nodes_of_slurm(slurm, tmp_path):
    tell_of_runs(tmp_path, ["--on", "slurm", "--hosts", 2], lambda: not in_queue(slurm))
    slurm.assert_idle()


def test_runs_on_machines_of_ssh(machines, sshd, tmp_path):
    both = machines(2, home=True)
    python = ["--python", sys.executable]
    on = ["--on", "ssh:node1,node2", *python, "--", "-F", sshd(both).config]
    tell_of_runs(tmp_path, on, lambda: not any(map(joined, both)))
