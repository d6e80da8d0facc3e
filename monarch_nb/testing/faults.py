"""Faults at named points: what a test does to ranks, agents of hosts, and links between hosts.

Rules: a process lets itself be harmed only where it was started for tests (`MONARCH_NB_TESTING=1`,
which the fixtures of this package set). `inject` returns when the fault is armed, so no test has to
guess when it is.
"""

from __future__ import annotations

import functools
import itertools
import queue
import signal
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar, final

from monarch_nb.core import points
from monarch_nb.core.errors.folding import rank_words
from monarch_nb.core.points import point
from monarch_nb.core.wire import pickling
from monarch_nb.core.wire.frames import HOST_SHIFT
from monarch_nb.core.wire.messages import codec
from monarch_nb.core.wire.messages.agents import Kill
from monarch_nb.core.wire.messages.codec import Refused, Request
from monarch_nb.core.wire.messages.testing import CountFault, InjectFault
from monarch_nb.meshes.actor_mesh import ActorMesh
from monarch_nb.meshes.hosts import Hosts
from monarch_nb.meshes.proc_mesh import HostMesh, ProcMesh
from monarch_nb.meshes.states import ActorsState, procs_of
from monarch_nb.process import current
from monarch_nb.testing.armed import ArmedFault, faults

__all__ = [
    "POINTS",
    "Action",
    "Fault",
    "actions_at",
    "corrupt",
    "cut",
    "inject",
    "kill",
    "point",
    "raise_",
    "resume",
    "slow",
    "stop",
]

A = TypeVar("A")
Mesh = ProcMesh | ActorMesh[Any] | HostMesh

POINTS: Final[Mapping[str, str]] = points.OF_RANKS | points.OF_AGENTS | points.OF_LINKS
"""The points that ranks, agents and links pass by themselves, and what is about to happen there."""

_ANSWER_S: Final = 10.0
_RAISING: Final = {"call.begin", "cell.begin", "collective.wait", "transfer.begin"}
_OF_PROCESSES: Final = ("kill", "stop", "slow")
_OURS: Final = {name.partition(".")[0] for name in POINTS}
_numbers: Final = itertools.count(1)


@final
class Action(NamedTuple):
    """What happens at a point. Made by `kill`, `stop`, `slow`, `raise_`, `cut`, `corrupt`."""

    name: str
    seconds: float = 0.0
    error: BaseException | None = None


def kill() -> Action:
    """The process ends by SIGKILL."""
    return Action("kill")


def stop(seconds: float = 0.0) -> Action:
    """The process stops by SIGSTOP, and goes on after so many seconds; 0: when a test calls
    `resume`."""
    return Action("stop", _checked(seconds))


def slow(seconds: float) -> Action:
    """Who passes the point waits there for so many seconds, and all that waits for it."""
    return Action("slow", _checked(seconds))


def raise_(error: BaseException) -> Action:
    """The point raises a copy of this exception. At points of your own, and where ranks are about
    to run code of yours."""
    return Action("raise_", error=error)


def cut(seconds: float = 0.0) -> Action:
    """The connection of a link breaks, and there is no new one for so many seconds."""
    return Action("cut", _checked(seconds))


def corrupt() -> Action:
    """A bit of what goes over a link is another one."""
    return Action("corrupt")


@final
class Fault:
    """A fault that `inject` has armed."""

    def __init__(self, number: int, processes: Mapping[int, str]) -> None:
        self._number = number
        self._processes = processes  # and what people call them

    def fired(self) -> int:
        """Return how often it has happened, on ranks and hosts that live: 0 after `remove`."""
        return self._count(remove=False)

    def remove(self) -> int:
        """Have it happen no more; return how often it has, as `fired` does."""
        return self._count(remove=True)

    def _count(self, *, remove: bool) -> int:
        proc = current.proc()
        if proc.id in self._processes:
            return faults.count((proc.id, self._number), remove=remove)
        answers = _ask(self._processes, CountFault(self._number, remove), may_refuse=True)
        return sum(each.times for each in answers)


def inject(mesh: Mesh, *, at: str, action: Action, after: int = 0, times: int | None = 1) -> Fault:
    """Have something happen where ranks of a mesh, or a slice, pass a point; armed when it returns.

    Points of agents (`agent.spawn`), those of links (`link.send`) and `rank.started` are passed by
    hosts: of the mesh's ranks, or of a `HostMesh`. Links are those between the controller and these
    hosts. `POINTS` has all; any other name is one of yours, which your code passes by
    `faults.point(name)`.

    Args:
        after: each process passes the point so often before it happens.
        times: how often it happens in each process; None: always from then on.

    Returns:
        What says how often it has happened, and takes it back.

    Raises:
        ValueError: there is no such point, or the action makes no sense there.
        TypeError: a `HostMesh`, for a point that ranks pass.
        RuntimeError: a process was not started for tests, is gone, or does not answer.

    Example:
        >>> faults.inject(mesh.slice(gpus=1), at="step", action=faults.kill(), after=3)
        ... # doctest: +SKIP
    """
    if action.name not in (allowed := actions_at(at)):
        raise ValueError(f"{at}: {action.name} makes no sense there. What does: {_words(allowed)}")
    if after < 0 or (times is not None and times < 1):
        raise ValueError(f"after={after}, times={times}: not below 0, and at least 1")
    number = next(_numbers)
    if at in points.OF_LINKS:
        return _inject_here(number, mesh, at, action, after, times)
    processes = _hosts(mesh) if at in points.OF_AGENTS or at == "rank.started" else _ranks(mesh)
    wanted = InjectFault(number, at, action.name, action.seconds, after, times)
    fault = Fault(number, processes)
    try:
        _ask(processes, wanted, error=action.error)
    except RuntimeError:
        fault.remove()
        raise
    return fault


def resume(mesh: ProcMesh | ActorMesh[Any]) -> None:
    """Have ranks that are stopped go on (SIGCONT). Nothing happens to others."""
    _ask(_hosts(mesh), Kill([*_ranks(mesh)], signal.SIGCONT))


def _inject_here(
    number: int, mesh: Mesh, at: str, action: Action, after: int, times: int | None
) -> Fault:
    proc = current.proc()
    if proc.id != proc.controller:
        raise RuntimeError(f"{at}: the links are those of the controller. Inject it there")
    hosts = frozenset(each >> HOST_SHIFT for each in _hosts(mesh))
    if proc.host in hosts:
        raise ValueError(
            f"{at}: there is no link to this host. Take ranks, or hosts, of attach_to_workers"
        )
    armed = ArmedFault(at, action.name, action.seconds, after=after, times=times, hosts=hosts)
    faults.arm((proc.id, number), armed)
    return Fault(number, {proc.id: "the controller"})


def _checked(seconds: float) -> float:
    if not 0 <= seconds < 1e6:
        raise ValueError(f"{seconds!r} is no number of seconds")
    return float(seconds)


def actions_at(at: str) -> tuple[str, ...]:
    """Return the names of the actions that make sense at a point. Raises `ValueError` where there
    is no such point.

    Example:
        >>> actions_at("link.send")
        ('cut', 'slow', 'corrupt')
    """
    if at in points.OF_LINKS:
        return ("cut", "slow") if at == "link.connect" else ("cut", "slow", "corrupt")
    if at in POINTS:
        return (*_OF_PROCESSES, "raise_") if at in _RAISING else _OF_PROCESSES
    if at.partition(".")[0] in _OURS:
        raise ValueError(f"there is no point {at!r}; there are {_words(POINTS)}, and your own ones")
    return (*_OF_PROCESSES, "raise_")


def _words(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _ranks(mesh: Mesh) -> dict[int, str]:
    if isinstance(mesh, HostMesh):
        raise TypeError("that point is passed by ranks: take a mesh of processes, or a slice")
    processes = mesh._state.processes
    return {processes[rank]: f"{rank_words([rank])} of {mesh.name}" for rank in mesh.ranks}


def _hosts(mesh: Mesh) -> dict[int, str]:
    hosts = current.part(Hosts)
    return {agent: hosts.host_words(agent) for agent in _agents(mesh)}


def _agents(mesh: Mesh) -> list[int]:
    if isinstance(mesh, HostMesh):
        return mesh._agents
    state, ranks = mesh._state, mesh.ranks
    if isinstance(state, ActorsState):
        ranks = [state.proc_ranks[rank] for rank in ranks]
    procs = procs_of(state)
    if procs is None:
        raise ValueError(
            f"{mesh.name}: where its ranks are is not known here. Take the mesh itself"
        )
    return [procs.agents[rank] for rank in ranks]


def _ask(
    processes: Mapping[int, str],
    request: Request[A],
    *,
    error: BaseException | None = None,
    may_refuse: bool = False,
) -> list[A]:
    # Raises `RuntimeError` that names who has refused, or does not answer
    proc = current.proc()
    payload = None if error is None else proc.encode_bytes(pickling.dumps(error))
    answers: queue.SimpleQueue[tuple[int, A | Refused]] = queue.SimpleQueue()
    for process in processes:
        note = functools.partial(_note, answers, process)
        proc.ask(process, request, note, payload=payload)
    found: list[A] = []
    missing, deadline = dict(processes), time.monotonic() + _ANSWER_S
    while missing:
        try:
            process, answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise RuntimeError(
                f"{_words(missing.values())}: no answer in {_ANSWER_S:g} s"
            ) from None
        who = missing.pop(process)
        if not isinstance(answer, Refused):
            found.append(answer)
        elif not may_refuse:
            raise RuntimeError(_refused(who, answer.error))
    return found


def _note(answers: queue.SimpleQueue[tuple[int, A]], process: int, answer: A) -> None:
    answers.put((process, answer))


def _refused(who: str, why: str) -> str:
    if codec.verb_of(InjectFault) not in why:
        return f"{who}: {why}"
    return (
        f"{who} was not started for tests: set MONARCH_NB_TESTING=1 before the mesh is first used, "
        "and for workers before they are started. The fixture `mesh` of monarch_nb.testing does"
    )
