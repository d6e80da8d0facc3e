"""Why ranks hang: what each waits in, what it has done before, and where the others are; and how
they get out of groups that hang.

Rules of the file: the board is looked at first, which asks no rank; ranks are asked only when one
waits for others, and for no longer than a fraction of a second. Not for the inbox thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from monarch_nb.control.hangs import stacks
from monarch_nb.control.hangs.stacks import by_agent
from monarch_nb.core.hangs.collectives import NotRegroupedError, Standing
from monarch_nb.core.wire.messages import status
from monarch_nb.core.wire.messages.agents import GetBoardRows
from monarch_nb.core.wire.messages.codec import Request
from monarch_nb.process.futures import ask_all

if TYPE_CHECKING:
    from monarch_nb.core.hangs.stack_tree import Stack
    from monarch_nb.meshes.proc_mesh import ProcMesh
    from monarch_nb.process.process import Proc
    from monarch_nb.process.supervision.supervision import Supervision

S = TypeVar("S", status.LeftGroups, status.Met)
LEAVE_S: Final = 5.0
MEET_S: Final = 30.0
AFTER_S: Final = 2.5
"""So long a rank waits for others before anybody is asked."""
ANSWER_S: Final = 0.5
_TOLD: Final = frozenset({"collective", "paused"})
"""States of which the board says where."""
AT_WORK: Final = frozenset({"busy", "collective", "paused", "starting"})


class Place(NamedTuple):
    """What the board says: state, what, and for how long."""

    state: str
    what: str
    for_s: float


class Seen(NamedTuple):
    """One rank. `standing` has no words on its place: `stacks` and `paused_at` say where it is.

    `why` says why nothing is recorded of its collectives; None: the rank did not answer.
    """

    standing: Standing
    stacks: Sequence[Stack] | None
    paused_at: str
    why: str | None


class Regrouped(NamedTuple):
    """`backend` is empty where no rank had a group of the whole mesh; `dropped`: groups that are
    gone and were not made again."""

    backend: str
    timeout_s: float | None
    dropped: int


class Xray:
    def __init__(self, proc: Proc, supervision: Supervision) -> None:
        self._proc = proc
        self._supervision = supervision

    def places(self, mesh: ProcMesh, ranks: Iterable[int]) -> dict[int, Place]:
        """Return what the boards say of these ranks, now."""
        agents = by_agent(mesh._state, ranks)
        requests = {agent: GetBoardRows(list(each)) for agent, each in agents.items()}
        told = ask_all.ask(self._proc, requests, ANSWER_S)
        return {
            agents[agent][row[0]]: _place(row, answer.now_ns)
            for agent, answer in told.items()
            for row in answer.rows
        }

    def at_work(self, mesh: ProcMesh) -> list[int]:
        """Return the ranks that run code of the user's."""
        places = self.places(mesh, mesh.ranks)
        return sorted(rank for rank, place in places.items() if place.state in AT_WORK)

    def examine(self, mesh: ProcMesh, ranks: Collection[int]) -> dict[int, Seen]:
        """Return all that is to be known of those of these ranks whose board is known."""
        return self._seen(mesh, self.places(mesh, ranks))

    def hangs(self, tag: int) -> dict[str, dict[int, Seen]]:
        """Return the meshes that the cell waits for and of which a rank is paused, or waits for
        others for `AFTER_S` at least, with their ranks."""
        found = {}
        for mesh in self._awaited(tag):
            places = self.places(mesh, mesh.ranks)
            if any(map(_holds_up, places.values())):
                found[mesh.name] = self._seen(mesh, places)
        return found

    def silent(self, tag: int) -> dict[str, list[int]]:
        """Return the ranks that do not answer, of meshes that the cell waits for, by mesh. Asks
        nobody."""
        known = self._supervision.silent
        if not known:
            return {}
        found = {
            mesh.name: [rank for rank in mesh.ranks if mesh._state.processes[rank] in known]
            for mesh in self._awaited(tag)
        }
        return {name: ranks for name, ranks in found.items() if ranks}

    def regroup(self, mesh: ProcMesh) -> Regrouped:
        """Take a whole mesh of idle ranks out of its process groups and into a new one, in two
        steps (`worker/groups/regroup.py`). Waits at most `LEAVE_S` and `MEET_S` seconds.

        Raises with the ranks that cannot come. What has been left by then stays known to the ranks.
        """
        proc, state = self._proc, mesh._state
        left = _step(proc, state.processes, status.LeaveGroups(), LEAVE_S)
        had = next((each.had for each in left.values() if each.had is not None), None)
        state.next_generation()
        _step(proc, state.processes, status.MeetAgain(state.store(), had), MEET_S)
        others = max(each.others for each in left.values())
        if had is None:
            return Regrouped("", None, others)
        return Regrouped(had.backend, had.timeout_s, others)

    def native_stacks(
        self, mesh: ProcMesh, ranks: Collection[int]
    ) -> tuple[dict[int, list[Stack]], dict[int, str]]:
        return stacks.look_with_native(self._proc, mesh._state, ranks)

    def _seen(self, mesh: ProcMesh, places: Mapping[int, Place]) -> dict[int, Seen]:
        processes = mesh._state.processes
        requests = {processes[rank]: status.GetCollectives() for rank in places}
        recorded = ask_all.ask(self._proc, requests, ANSWER_S)
        others = [rank for rank, place in places.items() if place.state not in _TOLD]
        found = stacks.look(self._proc, mesh._state, others, ANSWER_S) if others else {}
        return {
            rank: _seen(place, recorded.get(processes[rank]), found.get(rank))
            for rank, place in sorted(places.items())
        }

    def _awaited(self, tag: int) -> list[ProcMesh]:
        waiters = [
            each
            for each in self._proc.waiters()
            if (wait := each.wait_for_people()) is not None and wait.tag in {None, tag}
        ]
        return [
            state.view()
            for state in list(self._supervision.states.values())
            if state.kind == "proc" and state.ended is None
            if any(each.waits_for(process) for process in state.processes for each in waiters)
        ]


def _holds_up(place: Place) -> bool:
    return place.state == "paused" or (place.state == "collective" and place.for_s > AFTER_S)


def _place(row: Sequence[Any], now_ns: int) -> Place:
    _, state, since_ns, what, *_ = row
    return Place(state, what, max(0.0, (now_ns - since_ns) / 1e9) if since_ns else 0.0)


def _seen(place: Place, recorded: status.Recorded | None, found: Sequence[Stack] | None) -> Seen:
    entries = recorded.entries if recorded else []
    members = recorded.members if recorded else {}
    is_waiting = place.state == "collective"
    waits = (place.what, place.for_s) if is_waiting else ("", 0.0)
    paused_at = place.what if place.state == "paused" else ""
    standing = Standing(entries, members, "", *waits)
    return Seen(standing, found, paused_at, recorded.why if recorded else None)


def _step(proc: Proc, processes: list[int], request: Request[S], limit_s: float) -> dict[int, S]:
    told = ask_all.ask(proc, dict.fromkeys(processes, request), limit_s)
    failed = {each: answer.failed for each, answer in told.items() if answer.failed is not None}
    if failed:
        why = next(iter(failed.values()))
        raise NotRegroupedError([processes.index(each) for each in failed], f"failed: {why}")
    if missing := [rank for rank, each in enumerate(processes) if each not in told]:
        raise NotRegroupedError(missing, "did not answer")
    return told
