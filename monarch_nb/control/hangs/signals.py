"""What the controller does to ranks that do not listen: interrupt them, end them.

Through the agents, on whatever host: nothing here needs the rank to answer.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import TYPE_CHECKING

from monarch_nb.core.wire.messages.agents import Kill

if TYPE_CHECKING:
    from monarch_nb.meshes.proc_mesh import ProcMesh
    from monarch_nb.process.process import Proc


def kill(proc: Proc, mesh: ProcMesh, ranks: Iterable[int]) -> None:
    """End the processes of these ranks of the whole mesh. Returns at once."""
    _signal(proc, mesh, ranks, signal.SIGKILL)


def interrupt(proc: Proc, mesh: ProcMesh, ranks: Iterable[int]) -> None:
    """Interrupt ranks that do not read their messages. Returns at once.

    While C code holds the interpreter (a regular expression, a loop in an extension) no message is
    read, but much of such code looks for signals.
    """
    _signal(proc, mesh, ranks, signal.SIGINT)


def _signal(proc: Proc, mesh: ProcMesh, ranks: Iterable[int], number: signal.Signals) -> None:
    for agent, processes in by_agent(mesh, ranks).items():
        proc.control(agent, Kill(list(processes), int(number)))


def by_agent(mesh: ProcMesh, ranks: Iterable[int]) -> dict[int, dict[int, int]]:
    """Agent to its processes to their ranks."""
    state = mesh._state
    found: dict[int, dict[int, int]] = {}
    for rank in ranks:
        found.setdefault(state.agents[rank], {})[state.processes[rank]] = rank
    return found
