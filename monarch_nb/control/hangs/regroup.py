"""`%mesh regroup`: all ranks of a mesh out of their process groups and into a new one.

See `worker/groups/regroup.py` for the two steps. Raises with the ranks that cannot come; what has
been left by then stays known to the ranks, so that it can be asked for again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from monarch_nb.core.hangs.collectives import NotRegroupedError
from monarch_nb.core.wire.messages.codec import Request
from monarch_nb.core.wire.messages.status import LeaveGroups, LeftGroups, MeetAgain, Met
from monarch_nb.process.futures import ask_all

if TYPE_CHECKING:
    from monarch_nb.meshes.proc_mesh import ProcMesh
    from monarch_nb.process.process import Proc

S = TypeVar("S", LeftGroups, Met)
LEAVE_S: Final = 5.0
MEET_S: Final = 30.0


class Regrouped(NamedTuple):
    """`backend` is empty where no rank had a group of the whole mesh; `dropped`: groups that are
    gone and were not made again."""

    backend: str
    timeout_s: float | None
    dropped: int


def regroup(proc: Proc, mesh: ProcMesh) -> Regrouped:
    """Regroup a whole mesh of idle ranks. Wait at most `LEAVE_S` and `MEET_S` seconds."""
    state = mesh._state
    left = _step(proc, state.processes, LeaveGroups(), LEAVE_S)
    had = next((each.had for each in left.values() if each.had is not None), None)
    state.next_generation()
    store = state.store(proc.links.run_dir)
    _step(proc, state.processes, MeetAgain(store, had), MEET_S)
    others = max(each.others for each in left.values())
    if had is None:
        return Regrouped("", None, others)
    return Regrouped(had.backend, had.timeout_s, others)


def _step(proc: Proc, processes: list[int], request: Request[S], limit_s: float) -> dict[int, S]:
    told = ask_all.ask(proc, dict.fromkeys(processes, request), limit_s)
    failed = {each: answer.failed for each, answer in told.items() if answer.failed is not None}
    if failed:
        why = next(iter(failed.values()))
        raise NotRegroupedError([processes.index(each) for each in failed], f"failed: {why}")
    if missing := [rank for rank, each in enumerate(processes) if each not in told]:
        raise NotRegroupedError(missing, "did not answer")
    return told
