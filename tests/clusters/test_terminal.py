"""`monarch-nb` in a terminal, with a real sshd: a job, a command, a shell, the end."""

import subprocess
import sys

import pytest

from tests.clusters.test_sshd import joined
from tests.source import ROOT
from tests.support import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def test_hosts_of_ssh_are_kept_entered_and_given_back(machines, sshd, tmp_path, monkeypatch):
    monkeypatch.setenv("MONARCH_NB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    both = machines(2, home=True)
    config = sshd(both).config
    python = ["--python", sys.executable]

    def typed(*words, **options):
        command = [sys.executable, "-m", "monarch_nb.control.cli", *words]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=90, **options
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    up = typed("apply", "--on", "ssh:node1,node2", *python, "--", "-F", str(config))
    assert "1/2 hosts" in up or "0/2 hosts" in up
    assert up.endswith("default is up (hosts: 2 hosts). Type: monarch-nb exec hostname\n")
    assert all(map(joined, both))
    assert sorted(typed("exec", "hostname").splitlines()) == ["[0] node1", "[1] node2"]
    assert typed("shell", "1", input="hostname; exit\n").splitlines()[-1] == "node2"
    assert "2/2 hosts" in typed("context")
    typed("kill")
    eventually(lambda: not any(map(joined, both)), 20)
