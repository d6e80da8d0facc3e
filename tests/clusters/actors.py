"""What the ranks of these tests run, and what they are asked."""

import importlib
import os
import socket
import time
from pathlib import Path

from monarch_nb import Actor, HostMesh, ProcMesh, endpoint


class Where(Actor):
    """Says on which machine it is, and what it finds there."""

    def __init__(self) -> None:
        self._calls = 0

    @endpoint
    def machine(self) -> str:
        return socket.gethostname()

    @endpoint
    def machine_of(self, other: "Where") -> str:
        return other.machine.call_one().get(10)

    @endpoint
    def keep(self, other: "Where", procs: ProcMesh) -> None:
        self._kept = other, procs

    @endpoint
    def ask_kept(self) -> tuple[str, str]:
        """Return the machine of the actor that was kept, and of a process beside it."""
        other, procs = self._kept
        return other.machine.call_one().get(20), _machine_at(procs.host_mesh)

    @endpoint
    def machine_at(self, host: HostMesh) -> str:
        return _machine_at(host)

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def count(self) -> int:
        self._calls += 1
        return self._calls

    @endpoint
    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    @endpoint
    def imports(self, name: str) -> str | None:
        """Return the file that a module comes from."""
        return importlib.import_module(name).__file__

    @endpoint
    def length(self, data: bytes) -> int:
        return len(data)


def _machine_at(host: HostMesh) -> str:
    return host.spawn_procs().spawn("there", Where).machine.call_one().get(20)


def names(actors: "Where | Slow") -> list[str]:
    """Return the machine of each rank."""
    return actors.machine.call().get(60).values()


class Trainer(Actor):
    """A member of process groups."""

    @endpoint
    def total(self, procs: ProcMesh) -> tuple[int, int, int]:
        """Return how many members meet: of the whole mesh, and along each of its axes."""
        import torch
        import torch.distributed as dist

        found = []
        for dims in (("hosts", "gpus"), "hosts", "gpus"):
            one = torch.ones(1)
            dist.all_reduce(one, group=procs.group(dims))
            found.append(int(one))
        return tuple(found)


class Slow(Actor):
    """Is not constructed while `folder` has a file `wait`; says there that it has begun."""

    def __init__(self, folder: str) -> None:
        (Path(folder) / socket.gethostname()).touch()
        while (Path(folder) / "wait").exists():
            time.sleep(0.02)

    @endpoint
    def machine(self) -> str:
        return socket.gethostname()
