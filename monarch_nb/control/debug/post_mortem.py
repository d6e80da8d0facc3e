"""The frames of what failed last on ranks: opened, kept or let go.

Rule of the file: asking waits no longer than `ANSWER_S`, whatever ranks do; who does not answer is
missing. Not to be called in the inbox thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeVar

from monarch_nb.core.wire.messages.codec import Request
from monarch_nb.core.wire.messages.debug import ForgetFailed, OpenPostMortem, StopAtFailure
from monarch_nb.process.futures import ask_all
from monarch_nb.process.supervision.mesh_state import ProcsState
from monarch_nb.process.supervision.supervision import MeshState

if TYPE_CHECKING:
    from monarch_nb.control.client import Client
    from monarch_nb.control.debug.sessions import Key

A = TypeVar("A")
ANSWER_S: Final = 2.0


def open_failed(client: Client, processes: Iterable[int], tag: int | None = None) -> list[Key]:
    """Let these stand in the frames of their last failure, or of the last for a notebook cell.

    Returns their debuggers; of a process that keeps nothing, none.
    """
    told = _ask(client, processes, OpenPostMortem(tag))
    keys = [(process, said.stop) for process, said in told.items() if said.stop is not None]
    desk = client.debugging
    desk.wait(lambda: {stop.key for stop in desk.stops()}.issuperset(keys), ANSWER_S)
    return keys


def stop_at_failure(client: Client, processes: Iterable[int], *, on: bool) -> list[int]:
    """From now on these stop where their code fails, or do no longer; so do those that take a
    place in the same mesh later. Returns who has heard."""
    wanted, meshes = set(processes), client.debugging.at_failure
    numbers = [state.number for state in _meshes(client) if wanted.intersection(state.processes)]
    client.debugging.at_failure = meshes.union(numbers) if on else meshes.difference(numbers)
    return list(_ask(client, wanted, StopAtFailure(on)))


def healed(client: Client, state: MeshState, ranks: Iterable[int]) -> None:
    """These ranks of a mesh are there again: they stop at a failure if the others do."""
    if state.number in client.debugging.at_failure:
        processes = [state.processes[rank] for rank in ranks]
        _ask(client, processes, StopAtFailure(on=True))


def forget_failed(client: Client, processes: Iterable[int]) -> list[int]:
    """Let go of the frames, and of what they hold. Returns who has heard."""
    return list(_ask(client, processes, ForgetFailed()))


def living(client: Client) -> list[int]:
    """The ranks of every mesh that is up."""
    dead = client.proc.dead
    return [each for state in _meshes(client) for each in state.processes if each not in dead]


def _meshes(client: Client) -> list[ProcsState]:
    """That are up."""
    states = list(client.supervision.states.values())
    return [state for state in states if isinstance(state, ProcsState) and state.ended is None]


def _ask(client: Client, processes: Iterable[int], request: Request[A]) -> dict[int, A]:
    return ask_all.ask(client.proc, dict.fromkeys(processes, request), ANSWER_S)
