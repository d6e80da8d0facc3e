"""Where a process sits: which rank of which mesh it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from monarch_nb.process.supervision.mesh_state import ProcsState

if TYPE_CHECKING:
    from monarch_nb.process.supervision.supervision import Supervision


class Place(NamedTuple):
    """A rank of a mesh. `number` tells meshes of the same name apart; `state` is None for a
    process of no mesh that is known here."""

    mesh: str
    rank: int
    size: int
    number: int
    state: ProcsState | None


def place_of(supervision: Supervision, process: int) -> Place:
    """Any thread."""
    for state in list(supervision.states.values()):
        if isinstance(state, ProcsState) and process in state.processes:
            rank, size = state.processes.index(process), len(state.processes)
            return Place(state.name, rank, size, state.number, state)
    return Place(f"process {process:x}", 0, 1, process, None)
