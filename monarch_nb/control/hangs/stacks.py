"""Where ranks are in the user's code, whoever shows it; and how those that do not listen are
interrupted or ended.

A rank is asked first: its inbox thread looks at the others while they cannot move. One that does
not answer is held by C code, most likely: there faulthandler writes on a signal, which its agent
sends, and the agent reads what was written, on whatever host. Not for the inbox thread.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from monarch_nb.core.hangs.native_stacks import read as read_native
from monarch_nb.core.hangs.stack_tree import Stack
from monarch_nb.core.hangs.stacks import UNNAMED, is_whole, of_user
from monarch_nb.core.wire.messages.agents import DumpStacks, GetNativeStacks, GetStackDumps, Kill
from monarch_nb.core.wire.messages.codec import Refused
from monarch_nb.core.wire.messages.status import GetStacks
from monarch_nb.process.futures import ask_all
from monarch_nb.process.futures.ask_all import Question

if TYPE_CHECKING:
    from monarch_nb.meshes.states import ProcsState
    from monarch_nb.process.process import Proc

BRIEF_S: Final = 0.3
"""For ranks to answer, where a prompt waits for it; it takes them a few milliseconds."""
LIMIT_S: Final = 1.0
NATIVE_S: Final = 10.0  # py-spy reads the symbols of every library first
FIRST_LOOK_S: Final = 0.004
LOOK_S: Final = 0.015


def look(
    proc: Proc, state: ProcsState, ranks: Collection[int], limit_s: float = LIMIT_S
) -> dict[int, list[Stack]]:
    """Read the stacks of the user's code of these ranks, the main thread's first; none: it is idle.

    Takes no longer than `limit_s`; half of it is for ranks that have not answered to write, which
    takes them about a millisecond. Ranks that are stopped or lost are missing.
    """
    found = _told(proc, state, ranks, limit_s / 2)
    if silent := [rank for rank in ranks if rank not in found]:
        texts = _dumps(proc, by_agent(state, silent), limit_s / 2)
        found |= {rank: _written(text) for rank, text in texts.items()}
    return dict(sorted(found.items()))


def look_with_native(
    proc: Proc, state: ProcsState, ranks: Iterable[int]
) -> tuple[dict[int, list[Stack]], dict[int, str]]:
    """Read stacks as `look`, with calls of C code, from py-spy; and why it tells nothing of other
    ranks."""
    agents = by_agent(state, ranks)
    requests = {agent: GetNativeStacks(list(processes)) for agent, processes in agents.items()}
    found: dict[int, list[Stack]] = {}
    whys = {rank: "no answer" for processes in agents.values() for rank in processes.values()}
    for agent, answer in Question(proc, requests).wait(NATIVE_S).items():
        for process, rank in agents[agent].items():
            if isinstance(answer, Refused):
                whys[rank] = answer.error
                continue
            text, why = answer.dumps.get(str(process), ("", "gone"))
            if not text:
                whys[rank] = why
                continue
            found[rank] = read_native(text)
            del whys[rank]
    return found, whys


def _told(
    proc: Proc, state: ProcsState, ranks: Iterable[int], limit_s: float
) -> dict[int, list[Stack]]:
    rank_of = {state.processes[rank]: rank for rank in ranks}
    told = ask_all.ask(proc, dict.fromkeys(rank_of, GetStacks()), limit_s)
    return {
        rank_of[process]: [Stack(name, tuple(calls)) for name, calls in answer.threads]
        for process, answer in told.items()
    }


def _written(text: str) -> list[Stack]:
    return [Stack(UNNAMED if number else "", frames) for number, frames in of_user(text)]


def _dumps(proc: Proc, agents: Mapping[int, Mapping[int, int]], limit_s: float) -> dict[int, str]:
    for agent, processes in agents.items():
        proc.control(agent, DumpStacks(list(processes)))
    missing = {agent: dict(processes) for agent, processes in agents.items()}
    rank_of = {process: rank for found in agents.values() for process, rank in found.items()}
    deadline, pause_s = time.monotonic() + limit_s, FIRST_LOOK_S
    before: dict[int, str] = {}
    whole: dict[int, str] = {}
    while any(missing.values()) and (left_s := deadline - time.monotonic()) > 0:
        time.sleep(min(pause_s, left_s))
        pause_s = LOOK_S
        texts = _files(proc, missing, deadline)
        for process, text in texts.items():
            if is_whole(text) or (text and before.get(process) == text):
                whole[rank_of[process]] = text
                for processes in missing.values():
                    processes.pop(process, None)
        before = texts
    return whole


def _files(proc: Proc, agents: Mapping[int, Mapping[int, int]], deadline: float) -> dict[int, str]:
    asked = {agent: GetStackDumps(list(each)) for agent, each in agents.items() if each}
    answers = Question(proc, asked).wait(max(0.0, deadline - time.monotonic()))
    return {
        int(process): text
        for answer in answers.values()
        if not isinstance(answer, Refused)
        for process, text in answer.texts.items()
    }


def kill(proc: Proc, state: ProcsState, ranks: Iterable[int]) -> None:
    """End the processes of these ranks of the whole mesh. Returns at once."""
    _signal(proc, state, ranks, signal.SIGKILL)


def interrupt(proc: Proc, state: ProcsState, ranks: Iterable[int]) -> None:
    """Interrupt ranks that do not read their messages. Returns at once.

    While C code holds the interpreter (a regular expression, a loop in an extension) no message is
    read, but much of such code looks for signals.
    """
    _signal(proc, state, ranks, signal.SIGINT)


def _signal(proc: Proc, state: ProcsState, ranks: Iterable[int], number: signal.Signals) -> None:
    for agent, processes in by_agent(state, ranks).items():
        proc.control(agent, Kill(list(processes), int(number)))


def by_agent(state: ProcsState, ranks: Iterable[int]) -> dict[int, dict[int, int]]:
    """Sort ranks: agent to its processes to their ranks."""
    found: dict[int, dict[int, int]] = {}
    for rank in ranks:
        found.setdefault(state.agents[rank], {})[state.processes[rank]] = rank
    return found
