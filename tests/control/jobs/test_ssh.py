"""`SSHJob` without a host: what is refused before ssh is run, and what is said of one that failed.

With real sshd: `tests/clusters`.
"""

import pytest

from monarch_nb.control.jobs.ssh import advice
from monarch_nb.errors import LaunchError
from monarch_nb.job import SSHJob, job_loads


def test_a_job_without_hosts_says_how_to_add_some():
    with pytest.raises(ValueError, match=r"job.add_mesh\('trainers', \['node1', 'node2'\]\)"):
        SSHJob().apply()
    with pytest.raises(ValueError, match="mesh 'trainers' has no host"):
        SSHJob().add_mesh("trainers", [])


@pytest.mark.parametrize("host", ["", "-oProxyCommand=touch /tmp/x", "--"])
def test_no_name_of_a_host_is_an_option_of_ssh(host):
    with pytest.raises(ValueError, match="no name of a host"):
        SSHJob().add_mesh("trainers", ["node1", host])


@pytest.mark.parametrize("spares", [-1, 2])
def test_not_all_hosts_are_spares(spares):
    with pytest.raises(ValueError, match=f"spares={spares} of 2 hosts: there is at least one"):
        SSHJob().add_mesh("trainers", ["node1", "node2"], spares=spares)


def test_without_an_ssh_it_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    job = SSHJob()
    job.add_mesh("trainers", ["node1"])
    with pytest.raises(LaunchError, match="no ssh here: install the OpenSSH client"):
        job.apply()


def test_it_can_be_saved_and_its_hosts_are_not():
    job = SSHJob(python_exe="py", ssh_args=["-F", "x"], env={"A": "1"})
    job.add_mesh("trainers", ["node1", "node2"], spares=1)
    found = job_loads(job.dumps())
    assert not found.active
    assert not found.can_run(job)
    assert found.dumps() == job.dumps()


@pytest.mark.parametrize(
    "code, words, said",
    [
        (1, "No module named 'monarch_nb'", "Install monarch_nb there"),
        (127, "bash: python9: command not found", "Name the Python of that host"),
        (255, "Permission denied (publickey).", "ssh -o BatchMode=yes -F 'my config' node1 true"),
        (1, "monarch_nb: node1: this is no ticket", ""),
    ],
)
def test_what_to_do_is_said(code, words, said):
    found = advice(["-F", "my config", "node1"], code, words)
    assert said in found
    assert bool(said) == bool(found)
