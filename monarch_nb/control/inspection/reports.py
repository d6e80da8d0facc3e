"""The status of meshes, the stacks of their ranks, and who is stopped in a debugger, as plain data.

Rules of the file: everything is a value of JSON; docs/terminal.md describes it, and what is changed
here is changed there. Ranks that are alike are told of once, as in `0-2,5`. Not for the inbox
thread. No handle of a mesh is made: the last one to go would stop it.
"""

from __future__ import annotations

import linecache
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from monarch_nb.control.hangs.stacks import look
from monarch_nb.core.errors.folding import fold_outputs, rank_list, rank_words
from monarch_nb.core.errors.records import clip
from monarch_nb.core.hangs.stack_tree import Line, lines, tree
from monarch_nb.meshes.states import ProcsState

if TYPE_CHECKING:
    from monarch_nb.control.debug.sessions import DebugService
    from monarch_nb.control.inspection.asked import Asked
    from monarch_nb.control.output.failure_history import Failure
    from monarch_nb.control.output.failures import Failures
    from monarch_nb.control.output.routing import OutputService
    from monarch_nb.control.status.sampling import StatusService
    from monarch_nb.control.status.snapshots import MeshStatus, RankStatus, Snapshot
    from monarch_nb.process.process import Proc
    from monarch_nb.process.supervision.supervision import Supervision

FAILURES_S: Final = 0.3
MAX_MESSAGE: Final = 1_000


class Inspected(NamedTuple):
    """The parts of a client that are asked."""

    proc: Proc
    supervision: Supervision
    status: StatusService
    failures: Failures
    output: OutputService
    debugging: DebugService


def names(inspected: Inspected) -> list[str]:
    """Return meshes that are up, or whose ranks have written, the newest last."""
    up = [each.name for each in states(inspected)]
    return list(dict.fromkeys([*inspected.output.logbook.meshes(), *up]))


def states(inspected: Inspected, wanted: str | None = None) -> list[ProcsState]:
    """Return the meshes that are up, or those of this name. Raises `ValueError` for no such."""
    found = [
        each
        for each in list(inspected.supervision.states.values())
        if isinstance(each, ProcsState) and not each.internal and each.ended is None
    ]
    if wanted is None:
        return found
    if named := [each for each in found if each.name == wanted]:
        return named
    raise ValueError(
        f"no mesh {wanted!r} is up; there: {', '.join(each.name for each in found) or 'none'}"
    )


def ranks_of(name: str, size: int, wanted: Collection[int] | None) -> list[int]:
    """Return the ranks that are meant. Raises `ValueError` for those that the mesh has not."""
    if wanted is None:
        return list(range(size))
    if missing := sorted(each for each in set(wanted) if each >= size):
        raise ValueError(f"{name} has no {rank_words(missing)}; its ranks are 0-{size - 1}")
    return sorted(set(wanted))


# ------------------------------------------------------------------------------------------ status


def status(inspected: Inspected, asked: Asked) -> dict[str, Any]:
    """Tell what all ranks do."""
    seen = inspected.status.snapshot(fresh=True)
    _refresh_failures(inspected, seen.meshes)
    return {"meshes": [_mesh(inspected, each, seen, asked.each) for each in seen.meshes]}


def _refresh_failures(inspected: Inspected, meshes: Iterable[MeshStatus]) -> None:
    # calls that have failed: the client asks for their errors only where somebody looks
    failed = {(each.number, one.rank) for each in meshes for one in each.ranks if one.failed}
    processes = [
        state.processes[rank]
        for state in states(inspected)
        for rank in range(len(state.processes))
        if (state.number, rank) in failed
    ]
    missing, all_told = set(processes), threading.Event()

    def told(process: int) -> None:
        missing.discard(process)
        if not missing:
            all_told.set()

    for process in processes:
        inspected.failures.refresh([process], partial(told, process))
    if processes:
        all_told.wait(FAILURES_S)  # who has nothing new to tell does not say so


def _mesh(inspected: Inspected, mesh: MeshStatus, seen: Snapshot, each: bool) -> dict[str, Any]:
    alike = {one.rank: (one.state, one.what, one.detail) for one in mesh.ranks}
    by_rank = {one.rank: one for one in mesh.ranks}
    groups = [
        _group([by_rank[rank] for rank in group.ranks], seen.at) for group in fold_outputs(alike)
    ]
    told = {
        "name": mesh.name,
        "axes": dict(zip(mesh.labels, mesh.sizes, strict=True)),
        "size": len(mesh.ranks),
        "hosts": sorted({seen.hosts[one.host].name for one in mesh.ranks}),
        "states": dict(Counter(one.state for one in mesh.ranks)),
        "groups": groups,
        "calls": sum(one.calls for one in mesh.ranks),
        "failed": sum(one.failed for one in mesh.ranks),
        "failures": [_failure(one) for one in inspected.failures.of(mesh.name)],
        "past_failures": [
            {**_failure(one.failure), "became": one.became}
            for one in inspected.failures.past(mesh.name)
        ],
    }
    if each:
        told["ranks"] = [_rank(one, seen) for one in mesh.ranks]
    return told


def _group(ranks: Sequence[RankStatus], at: float) -> dict[str, Any]:
    first = ranks[0]
    return {
        "ranks": rank_list(one.rank for one in ranks),
        "count": len(ranks),
        "state": first.state,
        "for_s": _seconds(max(one.age_s(at) for one in ranks)),
        "what": first.what,
        "detail": first.detail,
    }


def _rank(one: RankStatus, seen: Snapshot) -> dict[str, Any]:
    return {
        "rank": one.rank,
        "coords": dict(one.coords),
        "host": seen.hosts[one.host].name,
        "pid": one.pid,
        "state": one.state,
        "for_s": _seconds(one.age_s(seen.at)),
        "what": one.what,
        "detail": one.detail,
        "queue": one.queue,
        "calls": one.calls,
        "failed": one.failed,
        **one.usage._asdict(),
    }


def _seconds(age_s: float) -> float | None:
    return round(age_s, 1) if age_s else None


def _failure(one: Failure) -> dict[str, Any]:
    return {
        "ranks": rank_list(one.ranks),
        "error": clip(one.record.headline, MAX_MESSAGE),
        "what": one.what,
        "ago_s": round(time.monotonic() - one.at, 1),
        "count": one.count,
    }


# ------------------------------------------------------------------------------------------ stacks


def stacks(inspected: Inspected, asked: Asked) -> dict[str, Any]:
    """Tell where ranks are in the user's code."""
    meshes = states(inspected, asked.mesh)
    return {"meshes": [_stacks(inspected, state, asked.ranks) for state in meshes]}


def _stacks(
    inspected: Inspected, state: ProcsState, wanted: Collection[int] | None
) -> dict[str, Any]:
    ranks = ranks_of(state.name, len(state.processes), wanted)
    found = look(inspected.proc, state, [rank for rank in ranks if rank not in state.lost])
    return {
        "name": state.name,
        "size": len(state.processes),
        "taken_at": round(time.time(), 1),
        "calls": [_call(inspected, line) for line in lines(tree(found))],
        "no_answer": rank_list(rank for rank in ranks if rank not in found),
    }


def _call(inspected: Inspected, line: Line) -> dict[str, Any]:
    told: dict[str, Any] = {"ranks": rank_list(line.ranks), "depth": line.depth}
    frame = line.node.frame
    if line.ends:
        return {**told, "idle": not line.depth}
    if frame is None:
        return {**told, "thread": line.node.thread}
    source = linecache.getline(frame.file, frame.line).strip()
    return {
        **told,
        **frame._asdict(),
        "place": _place(inspected, *frame),
        "source": clip(source, MAX_MESSAGE),
    }


# ----------------------------------------------------------------------------------------- debugger


def stops(inspected: Inspected, asked: Asked) -> dict[str, Any]:
    """Tell who is stopped in a debugger."""
    return {
        "stops": [
            {
                "mesh": stop.mesh,
                "rank": stop.rank,
                "kind": stop.kind,
                "what": stop.what,
                "thread": stop.thread,
                "file": stop.file,
                "line": stop.line,
                "function": stop.function,
                "place": _place(inspected, stop.file, stop.line, stop.function),
                "for_s": round(time.monotonic() - stop.at, 1),
            }
            for stop in inspected.debugging.stops()
            if asked.mesh in (None, stop.mesh)
        ]
    }


def _place(inspected: Inspected, file: str, line: int, function: str) -> str:
    called = "" if function == "<module>" else f" {function}()"
    return inspected.status.place_name(f"{PurePath(file).name}:{line}{called}")
