"""What tests read of the inside of a process, each said once."""

from typing import Any

from monarch_nb import ProcMesh
from monarch_nb.control.client import client
from monarch_nb.process import current
from monarch_nb.services.stores import Stores


def processes(procs: ProcMesh) -> list[int]:
    """The numbers of its processes, by rank."""
    return list(procs._processes())


def state(procs: ProcMesh) -> Any:
    return procs._state


def living_meshes() -> list[ProcMesh]:
    """The meshes of processes of this client that nothing has ended."""
    states = list(client().supervision.states.values())
    return [each.view() for each in states if each.kind == "proc" and each.ended is None]


def pids(procs: ProcMesh) -> dict[int, int]:
    return state(procs).pids


def lost(procs: ProcMesh) -> list[int]:
    """The ranks that are known to be dead."""
    return sorted(state(procs).lost)


def place(procs: ProcMesh) -> Any:
    """The keys under which its ranks meet."""
    return client().parts[Stores]._places[state(procs).store()]


def address(port: Any) -> tuple[int, int]:
    """The number of a port in its process, and that of the process."""
    return port._port, port._process


def lender() -> Any:
    """What lends the memory of large arguments of this process."""
    return current.proc().payloads._lender()


def leased_bytes() -> int:
    return lender().statistics()["leased_bytes"]
