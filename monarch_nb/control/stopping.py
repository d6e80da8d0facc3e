"""What the controller does to ranks that do not listen: see where they are, end them.

Through the agents, on whatever host: nothing here needs the rank to answer.
"""

from __future__ import annotations

import queue
import signal
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from monarch_nb.core.stacks import Frame, thread_below

if TYPE_CHECKING:
    from monarch_nb.actors.proc import Proc
    from monarch_nb.actors.proc_mesh import ProcMesh

WRITE_S: Final = 0.02
"""How long ranks are given to write their stacks; it takes them about a millisecond."""
ANSWER_S: Final = 0.06  # the prompt waits for it
MAIN_LOOP: Final = "monarch_nb/worker/main.py"


def kill(proc: Proc, mesh: ProcMesh, ranks: Iterable[int]) -> None:
    """End the processes of these ranks of the whole mesh. Returns at once."""
    _signal(proc, mesh, ranks, signal.SIGKILL)


def strike(proc: Proc, mesh: ProcMesh, ranks: Iterable[int]) -> None:
    """Interrupt ranks that do not read their messages. Returns at once.

    While C code holds the interpreter (a regular expression, a loop in an extension) no message is
    read, but much of such code looks for signals.
    """
    _signal(proc, mesh, ranks, signal.SIGINT)


def _signal(proc: Proc, mesh: ProcMesh, ranks: Iterable[int], number: signal.Signals) -> None:
    for agent, processes in _by_agent(mesh, ranks).items():
        proc.control(agent, "kill", {"procs": list(processes), "signal": int(number)})


def whereabouts(proc: Proc, mesh: ProcMesh, ranks: Iterable[int]) -> dict[int, list[Frame]]:
    """Where the main threads of these ranks are, innermost call first.

    Takes a tenth of a second at most. An idle rank is nowhere; ranks that are stopped or lost are
    missing.
    """
    texts = dumps(proc, mesh, ranks, WRITE_S, ANSWER_S)
    found = {rank: thread_below(text, MAIN_LOOP) for rank, text in texts.items()}
    return {rank: frames for rank, frames in found.items() if frames is not None}


def dumps(
    proc: Proc, mesh: ProcMesh, ranks: Iterable[int], write_s: float, answer_s: float
) -> dict[int, str]:
    """What faulthandler writes of all threads of these ranks; empty or missing of those that do
    not write within `write_s`."""
    by_agent = _by_agent(mesh, ranks)
    for agent, processes in by_agent.items():
        proc.control(agent, "dump", {"procs": list(processes)})
    time.sleep(write_s)
    answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    for agent, processes in by_agent.items():
        proc.ask(agent, "dumped", {"procs": list(processes)}, answers.put)
    rank_of = {each: rank for found in by_agent.values() for each, rank in found.items()}
    deadline = time.monotonic() + answer_s
    found: dict[int, str] = {}
    for _ in by_agent:
        try:
            answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        for process, text in answer.get("texts", {}).items():
            found[rank_of[int(process)]] = text
    return found


def _by_agent(mesh: ProcMesh, ranks: Iterable[int]) -> dict[int, dict[int, int]]:
    """Agent to its processes to their ranks."""
    state = mesh._state
    found: dict[int, dict[int, int]] = {}
    for rank in ranks:
        found.setdefault(state.agents[rank], {})[state.processes[rank]] = rank
    return found
