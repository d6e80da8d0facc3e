"""Rules 1, 5 and 6: every listening socket of every process of a mesh, read from /proc."""

import ipaddress
from pathlib import Path

import pytest

from monarch_nb.testing.processes import socket_inodes
from tests.faults.actors import Worker
from tests.support import listening_ports


def is_loopback(place: str) -> bool:
    return ipaddress.ip_address(place.partition(" ")[0]).is_loopback


def udp_sockets(pid: int) -> set[str]:
    found = {}
    for table in ("udp", "udp6", "raw", "raw6"):
        path = Path(f"/proc/{pid}/net/{table}")
        for line in path.read_text().splitlines()[1:] if path.exists() else []:
            fields = line.split()
            found[fields[9]] = f"{table} {fields[1]}"
    return {found[inode] for inode in socket_inodes(pid) & found.keys()}


def test_the_oracle_sees_a_listening_socket():
    import os
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert f"127.0.0.1 port {port}" in listening_ports(os.getpid())
    with socket.create_server(("::", 0), family=socket.AF_INET6) as server:
        assert not all(map(is_loopback, listening_ports(os.getpid())))


@pytest.mark.slow
def test_nobody_listens_anywhere(mesh, spawn):
    """The ranks are new: they have no process group."""
    new = spawn(per_host={"gpus": 2}).spawn("new", Worker).pid.call().get(40).values()
    found = {**mesh.all, "rank 0": new[0], "rank 1": new[1]}
    assert len(found) == 5
    for name, pid in found.items():
        assert listening_ports(pid) == set(), name
        assert udp_sockets(pid) == set(), name


@pytest.mark.fault
@pytest.mark.parametrize("times", [1, 2], ids=["first group", "after a heal"])
def test_a_process_group_listens_on_loopback_only(mesh, times):
    if times == 2:
        import os
        import signal

        from tests.support import eventually

        os.kill(mesh.ranks[1], signal.SIGKILL)
        eventually(lambda: "lost" in repr(mesh.procs), 10.0)
        mesh.procs.heal()
        mesh.ranks[:] = list(mesh.workers.pid.call().get(timeout=20).values())
    assert set(mesh.grouped.reduce.call().get(timeout=60).values()) == {1}
    seen = set()
    for name, pid in mesh.all.items():
        places = listening_ports(pid)
        seen |= places
        assert all(map(is_loopback, places)), f"{name} listens at {places}"
        if not name.startswith("rank"):
            assert places == set(), name
    assert udp_sockets(mesh.ranks[0]) == set()
