"""`%mesh up --on ssh:...` in a kernel, with a real sshd in each machine."""

import re
import sys

import pytest

from tests.clusters.test_sshd import joined
from tests.kernel.client import KernelClient
from tests.kernel.conftest import kernelspec
from tests.support import eventually

__all__ = ["kernelspec"]

pytestmark = pytest.mark.slow


HOSTS = """
from monarch_nb.control.client import client
seen = client().snapshot()
print([seen.hosts[rank.host].name for mesh in seen.meshes if not mesh.ended for rank in mesh.ranks])
"""


@pytest.fixture
def nodes(machines, sshd):
    """Two machines and what to type for them: `(machines, on)`. Their Python is ours."""
    both = machines(2, home=True)
    return both, f"--python {sys.executable} -- -F {sshd(both).config}"


@pytest.fixture
def kernel(nodes):
    with KernelClient("monarch") as client:
        yield client


def test_ranks_on_two_machines_and_nothing_is_left(kernel, nodes):
    both, on = nodes
    cell = kernel.ok(f"%mesh up --on ssh:node1,node2 --gpus 2 {on}", timeout_s=90)
    assert re.search(r"2/2 hosts -> ranks up in [\d.]+ s\n", cell.shown)
    assert "mesh0 is up: 4 ranks (hosts=2 gpus=2) in " in cell.text()
    [data] = kernel.ok("%%mesh\nimport socket; socket.gethostname()").displays
    assert data["text/plain"] == "[0-1] 'node1'\n[2-3] 'node2'"
    assert re.search(r"mesh0 +ssh +up +2/2", kernel.ok("%mesh jobs").shown)
    script = kernel.ok("%mesh script").text()
    assert len(re.findall(r"ssh .*-R \S+ .*--index [01]'$", script, re.MULTILINE)) == 2
    doctor = kernel.ok("%mesh doctor").text()
    assert "host 0 node1" in doctor
    assert re.search(r"host 0 node1, host 1 node2: other hosts reach it by eth0", doctor)
    assert kernel.ok(HOSTS).text() == "['node1', 'node1', 'node2', 'node2']\n"
    assert kernel.ok("%mesh down").text() == "mesh0 is down, the hosts of mesh0 are given back\n"
    eventually(lambda: not any(map(joined, both)))
    assert kernel.ok("%mesh jobs").text().startswith("No hosts were asked for.")
    kernel.ok(f"%mesh up --on ssh:node1,node2 --gpus 1 {on}", timeout_s=90)
    assert kernel.ok(HOSTS).text() == "['node1', 'node2']\n", "no second of that name is there"


def test_a_host_that_cannot_be_reached_is_said_and_the_others_are_given_back(kernel, nodes):
    both, on = nodes
    cell = kernel.run(f"%mesh up --on ssh:node1,nowhere --gpus 1 {on}", timeout_s=90)
    assert cell.status == "error"
    assert "mesh0 was not started: nowhere did not join: ssh ended with code 255\n" in cell.error
    assert "Could not resolve hostname nowhere" in cell.error
    assert re.search(r"Try it in a terminal: ssh -o BatchMode=yes -F \S+ nowhere true", cell.error)
    eventually(lambda: not any(map(joined, both)))


def test_stop_while_hosts_join_ends_the_logins(kernel, nodes):
    both, on = nodes
    both[1].cut()
    cell = kernel.start(f"%mesh up --on ssh:node1,node2 --gpus 1 {on}")
    kernel.until(lambda: "1/2 hosts (waiting for node2)" in cell.shown)
    kernel.stop_s(cell)
    assert cell.error == (
        "KeyboardInterrupt: mesh0 was not started: its hosts were given back (ssh)"
    )
    eventually(lambda: not joined(both[0]))


@pytest.mark.fault
@pytest.mark.parametrize("now", [False, True], ids=["shutdown", "killed"])
def test_the_end_of_the_kernel_leaves_nothing_on_the_machines(kernel, nodes, now):
    both, on = nodes
    kernel.ok(f"%mesh up --on ssh:node1,node2 --gpus 1 {on}", timeout_s=90)
    assert all(map(joined, both))
    kernel.manager.shutdown_kernel(now=now)
    eventually(lambda: not any(map(joined, both)), 60.0)  # killed: after `outage_s`


def test_hosts_that_come_are_enough_where_others_cannot(kernel, nodes):
    both, on = nodes
    typed, behind = on.split(" -- ")
    cell = kernel.ok(
        f"%mesh up --on ssh:node1,nowhere --min-hosts 1 --gpus 2 {typed} -- {behind}", timeout_s=90
    )
    assert re.search(r"1/2 hosts \(nowhere did not join: ssh ended .* -> ranks up in ", cell.shown)
    assert "mesh0 is up: 2 ranks (hosts=1 gpus=2) in " in cell.text()
    assert re.search(r"mesh0 +ssh +up +1/2", kernel.ok("%mesh jobs").shown)
    kernel.ok("%mesh down")
    eventually(lambda: not any(map(joined, both)))


def test_a_host_is_added_entered_let_go_and_taken_again(kernel, nodes):
    both, on = nodes
    kernel.ok(f"%mesh up --on ssh:node1 --gpus 2 {on}", timeout_s=90)
    kernel.ok("%%mesh\nkept = rank")
    refused = kernel.run("%mesh scale --hosts 2").error
    assert "mesh0 was not scaled: mesh0: 1 more hosts are wanted" in refused
    assert "Name them: %mesh scale --add node5,node6" in refused
    cell = kernel.ok("%mesh scale --add node2", timeout_s=90)
    assert "mesh0 has 2 hosts now: 4 ranks (hosts=2 gpus=2). variables of ranks 0-1" in cell.text()
    [data] = kernel.ok("%%mesh\nimport socket; socket.gethostname(), 'kept' in globals()").displays
    assert data["text/plain"] == "[0-1] ('node1', True)\n[2-3] ('node2', False)"
    sums = """%%mesh
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    x = torch.tensor([float(rank)]); dist.all_reduce(x); dist.destroy_process_group()
    x.item()"""
    [data] = kernel.ok(sums, timeout_s=60).displays
    assert data["text/plain"] == "[0-3] 6.0"
    assert re.search(r"\nssh -F \S+ node2\n$", kernel.ok("%mesh shell 3").text())
    assert "node2\n" in kernel.ok("%mesh shell 3 -- hostname").text()
    kernel.ok("%mesh scale --hosts 1")
    eventually(lambda: not joined(both[1]), 20)
    assert joined(both[0])
    assert "hosts=2 gpus=2" in kernel.ok("%mesh scale --hosts 2", timeout_s=90).text()
    kernel.ok("%mesh down")
    eventually(lambda: not any(map(joined, both)))
