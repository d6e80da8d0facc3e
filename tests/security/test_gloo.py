"""Connections of gloo's groups, which take whoever comes first and says the right number."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests import inside
from tests.control.conftest import WITHIN_S, mesh
from tests.support import eventually, open_fds

__all__ = ["mesh"]

NOBODY = 65534
RACE = """
import encodings.idna, os, socket, struct, sys, time
os.setuid(int(sys.argv[1]))
held = []
for port in sys.argv[2:]:
    for number in range(16):
        held.append(socket.create_connection(("127.0.0.1", int(port))))
        held[-1].sendall(struct.pack("<q", number))
print("there", flush=True)
time.sleep(600)
"""
LATE = """
import os, time, torch, torch.distributed as dist
cls = torch._C._distributed_c10d.ProcessGroupGloo
connect = cls.__init__
def late(self, *args, **options):
    while not os.path.exists({go!r}): time.sleep(0.01)
    connect(self, *args, **options)
if rank == 3: cls.__init__ = late
dist.init_process_group("gloo")
"""


def ports(pids: Iterable[int]) -> list[str]:
    """The ports on which these processes listen. Any user reads them, but for whose they are."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    port_of = {line[9]: line[1].partition(":")[2] for line in lines if line[3] == "0A"}
    found = (port_of.get(socket[8:-1]) for pid in pids for socket in open_fds(pid).values())
    return [str(int(port, 16)) for port in found if port is not None]


@pytest.fixture
def come_first() -> Iterator[Callable[[int, list[str]], None]]:
    """`come_first(uid, ports)` has a process of that user connect to them, and stay."""
    started: list[subprocess.Popen[str]] = []

    def start(uid: int, wanted: list[str]) -> None:
        program = [sys.executable, "-I", "-c", RACE, str(uid), *wanted]
        started.append(subprocess.Popen(program, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout is not None
        assert started[-1].stdout.readline() == "there\n"

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize("uid", [NOBODY, os.getuid()])
def test_a_group_in_which_a_stranger_has_taken_a_place_is_refused(
    mesh, come_first, needs, tmp_path, uid
):
    """He needs luck; here one rank is late, and he is not."""
    if uid == NOBODY:
        needs("root")
    made = mesh(4)
    pids = list(inside.pids(made.procs).values())
    run = made.start(LATE.format(go=str(tmp_path / "go")))
    come_first(uid, eventually(lambda: len(found := ports(pids)) == 3 and found, WITHIN_S))
    (tmp_path / "go").touch()
    eventually(lambda: any(each.error for each in dict(run.outcomes).values()), WITHIN_S)
    error = next(str(each.error) for each in dict(run.outcomes).values() if each.error)
    who = f"user {NOBODY} (nobody)" if uid == NOBODY else "yours that is no rank of the group"
    assert f"a connection to this rank's process group comes from a process of {who}. " in error
    assert "The group is refused" in error
    run.interrupt()


def test_a_group_of_ranks_alone_is_taken(mesh):
    made = mesh(3)
    code = (
        "import torch.distributed as dist\ndist.barrier(); dist.new_group([0, 1]); dist.barrier()"
    )
    assert set(made.cell(code).values()) == {"ok"}
