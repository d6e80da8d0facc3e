"""A controller in the place of one that has gone: it finds the ranks as they were left.

In this order: the agent has to let it in; what the one before has written down becomes this
process's own; each rank is told who drives it now, and tells what it still has for the one before;
what it has printed meanwhile is read from its log.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from monarch_nb.config import Config
from monarch_nb.control import client as client_module
from monarch_nb.control.keeping import journal, recalling, returning
from monarch_nb.core.errors.records import ErrorRecord
from monarch_nb.core.shape.extent import Shape, Slice
from monarch_nb.core.wire.frames import HOST_SHIFT
from monarch_nb.core.wire.messages.codec import Refused
from monarch_nb.core.wire.messages.hosts import LetGo
from monarch_nb.core.wire.messages.keeping import (
    DRIVEN,
    Adopt,
    Adopted,
    AskAgain,
    CellFile,
    Inventory,
    KeptCell,
    TakeControl,
)
from monarch_nb.errors import LaunchError
from monarch_nb.host import rundir
from monarch_nb.meshes.actor_mesh import ActorMesh, whole_actors
from monarch_nb.meshes.hosts import KeptProcs
from monarch_nb.meshes.proc_mesh import ProcMesh, whole_mesh
from monarch_nb.meshes.spawning import KeptActors
from monarch_nb.meshes.states import Part, ProcsState
from monarch_nb.process.futures.ask_all import Question
from monarch_nb.process.process import agent_of

if TYPE_CHECKING:
    from monarch_nb.control.client import Client
    from monarch_nb.control.keeping.kept_record import KeptHosts, KeptRecord

ANSWER_S: Final = 5.0
CELL: Final = "cell "
"""So begins what ranks call a cell; a call of an actor is called by that."""
RANKS_S: Final = 1.0
"""For all ranks to tell what they have. One that is stopped tells it when it goes on."""


class DrivenError(LaunchError):
    """Another controller drives the meshes, and lives."""


class LeftPart(NamedTuple):
    """A cell on a part of a mesh, and the ranks of that which know it."""

    mesh: ProcMesh
    cell: KeptCell
    ranks: list[int]


@dataclass
class LeftCell:
    """A cell of the controller before that has not ended on all ranks, or nobody has seen how."""

    mesh: ProcMesh
    cell: KeptCell
    parts: list[LeftPart] = field(default_factory=list)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of all parts, in order."""
        return tuple(sorted(rank for part in self.parts for rank in part.ranks))

    @property
    def is_over(self) -> bool:
        return all(part.cell.is_over for part in self.parts)


class LeftFailure(NamedTuple):
    """The cell that has failed last, as its ranks tell; `tag` is what the controller before has
    called it."""

    mesh: ProcMesh
    what: str
    tag: int
    errors: dict[int, ErrorRecord]


class Found(NamedTuple):
    """What a controller has left. `raw_logged`: of each agent, how much was logged before of what
    ranks have written to their descriptors. `untold` are lines on what could not come back;
    `alone_s`: for how long nobody drove the meshes; `files`: the names that tracebacks have for
    cells."""

    meshes: list[ProcMesh]
    actors: list[ActorMesh[object]]
    cells: list[LeftCell]
    logged: dict[int, int]
    raw_logged: dict[int, int]
    untold: list[str]
    alone_s: float | None
    failed: LeftFailure | None
    files: list[CellFile]


def take_over(record: KeptRecord, *, who: str, fence: bool) -> Found:
    """Have the client of this process drive the meshes of a record, in the place of the controller
    that has written it.

    Args:
        who: this process, for people; the one before is told, if it lives.
        fence: also if that lives; it drives the meshes no more then.

    Raises:
        DrivenError: another process drives them, and it was not to be fenced.
        LaunchError: they have ended, or cannot be found from here.
        RuntimeError: this process has meshes of its own.
    """
    if record.is_driven() and not fence:
        raise DrivenError(f"process {record.controller_pid} drives these meshes")
    if record.hosts is not None:
        return _take_hosts_over(record, record.hosts, who)
    run_dir = rundir.hold(Path(record.run_dir))
    client = client_module.start_in(run_dir, Config(**record.config), record.agent)
    try:
        client.make_lifeline()
        adopted = _let_in(client, record.agent, Adopt(record.key, os.getpid(), who, fence))
        client.agent_found(adopted.pid, adopted.gpus)
        client.own_run_dir()
        return _adopt(client, record, {record.agent: adopted})
    except BaseException:
        client.shutdown(0)
        raise


def _take_hosts_over(record: KeptRecord, hosts: KeptHosts, who: str) -> Found:
    client = client_module.start_for_hosts(record.controller)
    if record.is_driven():
        returning.ask_for(hosts, LetGo(record.key, who), record.controller_pid)
    try:
        here = returning.find(client, hosts)
        questions = {agent_of(host): Adopt(record.key, 0, who) for host in here}
        answers = Question(client.proc, questions).wait(ANSWER_S)
        adopted = {each: told for each, told in answers.items() if isinstance(told, Adopted)}
        returning.check_some(hosts, adopted)
        return _adopt(client, record, adopted)
    except BaseException:
        client.shutdown(0)
        raise


def recall(client: Client, found: Found, tags: Mapping[int, int]) -> None:
    """Hand on what ranks have printed before; what cells with these tags has is shown too."""
    proc, run_dir = client.proc, client.proc.links.run_dir
    proc.control_all(found.logged, AskAgain())
    with contextlib.ExitStack() as copies:
        for process, count in [*found.raw_logged.items(), *found.logged.items()]:
            host = process >> HOST_SHIFT
            if count and host != proc.host:
                copies.enter_context(recalling.copied(proc, process, agent_of(host), run_dir))
        recalling.recall(client.output, run_dir, found.logged, found.raw_logged, tags)


def _adopt(client: Client, record: KeptRecord, adopted: Mapping[int, Adopted]) -> Found:
    meshes, actors, untold = _owned(client, Path(record.run_dir))
    states = [mesh._state for mesh in meshes]
    if record.hosts is None and client.proc.agent != record.agent:  # its agent has said so
        raise DrivenError("another kernel has taken these meshes over meanwhile")
    if record.hosts is not None:
        returning.note_missing(client, record.hosts, adopted)
        client.hosts_found({agent: told.gpus for agent, told in adopted.items()})
    living = {each for told in adopted.values() for each in told.procs}
    _watch_the_dead(client, states, living)
    inventories = _taken(client, record.controller, states, living)
    client.keeper.go_on(record, states)
    client.failures.refresh(inventories)
    alone = [told.alone_s for told in adopted.values() if told.alone_s is not None]
    return Found(
        meshes=meshes,
        actors=actors,
        cells=_cells(meshes, inventories),
        logged={process: each.logged for process, each in inventories.items()},
        raw_logged={agent: told.logged for agent, told in adopted.items()},
        untold=untold,
        alone_s=max(alone, default=None),
        failed=_failed(meshes, inventories),
        files=list({cell for each in inventories.values() for cell in each.files}),
    )


def _let_in(client: Client, agent: int, asked: Adopt) -> Adopted:
    answer = Question(client.proc, {agent: asked}).wait(ANSWER_S).get(agent)
    if answer is None:
        raise LaunchError(f"the agent of these meshes has not answered within {ANSWER_S:g} s")
    if isinstance(answer, Refused):
        raise (DrivenError if answer.kind == DRIVEN else LaunchError)(answer.error)
    return answer


def _owned(
    client: Client, run_dir: Path
) -> tuple[list[ProcMesh], list[ActorMesh[object]], list[str]]:
    meshes: dict[int, ProcMesh] = {}
    actors: list[ActorMesh[object]] = []
    untold: list[str] = []
    for kept in journal.read(run_dir):
        if isinstance(kept, KeptProcs):
            meshes[kept.number] = client.restore(kept, whole_mesh)
        elif isinstance(kept, KeptActors):
            procs = meshes[kept.procs]._state
            part = Part(procs, kept.on, procs.token())
            state = client.spawner.restore_actors(part, kept, whole_actors)
            actors.append(whole_actors(state))
        else:
            untold.append(kept)
    return list(meshes.values()), actors, untold


def _watch_the_dead(client: Client, states: Iterable[ProcsState], living: set[int]) -> None:
    # those that have died meanwhile, some with their hosts, which had come back before
    gone: dict[int, list[int]] = {}
    dead = client.proc.dead
    for state in states:
        for process, agent in zip(state.processes, state.agents, strict=True):
            if process not in dead and (process not in living or agent in dead):
                gone.setdefault(agent, []).append(process)
    client.supervision.ask_how_they_ended(gone)
    client.proc.watching(living)


def _taken(
    client: Client, old: int, states: Sequence[ProcsState], living: Iterable[int]
) -> dict[int, Inventory]:
    # also ranks that ranks have spawned, and those that have no process yet: they will begin with
    # the controller that was there when they were asked for
    owned = {each for state in states for each in state.processes}.intersection(living)
    client.output.hold(owned)
    answers = Question(client.proc, dict.fromkeys(living, TakeControl(old))).wait(RANKS_S)
    return {
        process: answer
        for process, answer in answers.items()
        if process in owned and not isinstance(answer, Refused)
    }


def _failed(meshes: Iterable[ProcMesh], inventories: Mapping[int, Inventory]) -> LeftFailure | None:
    found: dict[int, LeftFailure] = {}
    newest: list[tuple[float, int]] = []
    for mesh in meshes:
        for rank, process in enumerate(mesh._state.processes):
            for error in inventories[process].errors if process in inventories else ():
                if error.tag and error.what.startswith(CELL):
                    left = LeftFailure(mesh, error.what, error.tag, {})
                    known = found.setdefault(error.tag, left)
                    known.errors[rank] = ErrorRecord.from_json(error.record)
                    newest.append((error.age_s, error.tag))
    return found[min(newest)[1]] if newest else None


def _cells(meshes: Iterable[ProcMesh], inventories: dict[int, Inventory]) -> list[LeftCell]:
    found: dict[tuple[int, int, int], LeftCell] = {}
    for mesh in meshes:
        for part in _parts(mesh, inventories):
            key = mesh._state.number, part.cell.source, part.cell.tag
            found.setdefault(key, LeftCell(mesh, part.cell)).parts.append(part)
    return list(found.values())


def _parts(mesh: ProcMesh, inventories: dict[int, Inventory]) -> list[LeftPart]:
    # A cell was sent to each part of a mesh by itself, and is answered at a port for each
    cells: dict[tuple[int, int], KeptCell] = {}
    ranks: dict[tuple[int, int], list[int]] = {}
    for rank, process in enumerate(mesh._state.processes):
        for cell in inventories[process].cells if process in inventories else ():
            key = cell.source, cell.reply
            known = cells.setdefault(key, cell)
            cells[key] = known._replace(is_over=known.is_over and cell.is_over)
            ranks.setdefault(key, []).append(rank)
    return [LeftPart(_slice(mesh, ranks[key]), cell, ranks[key]) for key, cell in cells.items()]


def _slice(mesh: ProcMesh, ranks: list[int]) -> ProcMesh:
    # Of these ranks, where they are evenly spaced: all are that have not lost one
    steps = {after - before for before, after in pairwise(ranks)}
    if len(ranks) == len(mesh) or len(steps) > 1:
        return mesh
    row = Slice(offset=ranks[0], sizes=[len(ranks)], strides=[steps.pop() if steps else 1])
    return mesh._new_with_shape(Shape(["rank"], row))
