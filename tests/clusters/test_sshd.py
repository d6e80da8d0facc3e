"""ssh into machines, and hosts that are started and reached through it."""

import os
import subprocess
import sys

import pytest

from monarch_nb.control.jobs.status import JobStatus, Stage
from monarch_nb.job import SSHJob
from tests.clusters.actors import Where, names
from tests.clusters.namespaces import run
from tests.clusters.networks import LAN
from tests.clusters.offer import PORT
from tests.source import ROOT
from tests.support import describe_process, eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def front(machines, sshd):
    """On the network of the tests, and on that of `behind`."""
    return machines(networks=(LAN, "back"), home=True)[0]


@pytest.fixture
def behind(machines, front):
    """Reached through `front` only."""
    return machines(networks=("back",))[0]


def test_each_machine_is_entered_by_its_name(front, behind, sshd):
    servers = sshd([front, behind])
    show = 'hostname; echo "$TMPDIR" "$HOME"; cat'
    seen = run(servers.command(front, show), text="from stdin").split("\n")
    assert seen == ["node1", f"{front.tmpdir} {front.tmpdir}/home", "from stdin"]
    assert run(servers.command(behind, "hostname")) == "node2\n"
    client = behind.run(["sh", "-c", "ss -Htn state established '( sport = :22 )'"])
    assert front.addresses["back"] in client, "through the jump host"


def test_a_connection_is_shared(front, sshd):
    servers = sshd([front])
    check = [*servers.command(front), "-O", "check"]
    with pytest.raises(RuntimeError, match="No such file"):
        run(check)
    run(servers.command(front, "true"))
    run(check)


def test_a_host_key_that_changed_is_refused(front, sshd):
    servers = sshd([front])
    known = servers.config.with_name("known_hosts")
    known.write_text(known.read_text().replace("AAAAI", "AAAAB"))
    with pytest.raises(RuntimeError, match="Host key verification failed"):
        run(servers.command(front, "true"))


def test_hosts_are_started_and_reached_through_a_jump_host(
    machines, front, behind, sshd, attach, tmp_path
):
    servers = sshd([front, behind])
    keys = os.environ["MONARCH_NB_HOME"]
    worker = (
        f"cd {ROOT} && exec env MONARCH_NB_HOME={keys} {sys.executable} -m tests.clusters.offer"
    )
    here = tmp_path / "behind"
    places = [f"tcp://{front.address}:{PORT}", f"tcp://127.0.0.1:{PORT}"]
    forward = ["-L", f"{here}:127.0.0.1:{PORT}"]
    started = [
        subprocess.Popen(servers.command(front, worker, places[0])),
        subprocess.Popen(servers.command(behind, *forward, worker, places[1])),
    ]
    hosts = attach([front, behind], [places[0], f"ipc://{here}"])
    actors = hosts.spawn_procs().spawn("where", Where)
    assert names(actors) == ["node1", "node2"]
    assert actors.length.call(b"x" * 3_000_000).get(30).values() == [3_000_000] * 2
    hosts.shutdown().get(20)
    assert [each.wait(20) for each in started] == [0, 0]


def test_a_job_has_its_hosts_by_ssh_also_where_only_ssh_leads_back(
    front, behind, sshd, attach, monkeypatch
):
    """`behind` can reach this program through the connection of ssh alone."""
    servers = sshd([front, behind])
    job = SSHJob(sys.executable, ["-F", str(servers.config)], env={"FROM_THE_JOB": "yes"})
    job.add_mesh("trainers", [front.name, behind.name])
    actors = job.state(cached_path=None).trainers.spawn_procs().spawn("where", Where)
    assert names(actors) == ["node1", "node2"]
    assert actors.length.call(b"x" * 3_000_000).get(30).values() == [3_000_000] * 2
    first, second = (actors.slice(hosts=each) for each in range(2))
    assert first.machine_of.call_one(second).get(20) == "node2"
    assert second.variable.call_one("FROM_THE_JOB").get(20) == "yes"
    assert job.status() == JobStatus("ssh", Stage.UP, 2, 2)
    job.kill()
    eventually(lambda: not any(map(joined, (front, behind))), 10.0)


def test_a_host_that_ssh_does_not_reach_is_said_with_what_to_type(front, sshd, attach):
    servers = sshd([front])
    job = SSHJob(sys.executable, ["-F", str(servers.config)])
    job.add_mesh("trainers", [front.name, "nowhere"])
    hosts = job.state(cached_path=None).trainers
    with pytest.raises(RuntimeError, match="nowhere did not join: ssh ended with code 255") as said:
        hosts.initialized.get(30)
    assert job.status() == JobStatus("ssh", Stage.GONE, 1, 2, reason=str(said.value))
    assert f"ssh -o BatchMode=yes -F {servers.config} nowhere true" in str(said.value)
    job.kill()
    eventually(lambda: not joined(front), 10.0)


def joined(machine):
    """Processes of ours on a machine; sshd goes on."""
    return [pid for pid in machine.processes() if "monarch_nb" in describe_process(pid)]
