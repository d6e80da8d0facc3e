"""What an agent is asked about ranks, without a word to them: their stacks, their place on the
board."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from monarch_nb.core.wire.messages.agents import (
    BoardRows,
    DumpStacks,
    GetBoardRows,
    GetNativeStacks,
    GetStackDumps,
    StackDumps,
)
from monarch_nb.core.wire.messages.codec import Done
from monarch_nb.host.agent.loop import Loop
from monarch_nb.host.agent.ranks import Wards
from monarch_nb.host.agent.requests import check_procs
from monarch_nb.host.status import dumps
from monarch_nb.host.status.board import Sampler
from monarch_nb.host.status.native import Native

Wanted = DumpStacks | GetStackDumps | GetBoardRows | GetNativeStacks


class Looks:
    """Answers by the type of the question."""

    def __init__(self, run_dir: Path, wards: Wards, sampler: Sampler, loop: Loop) -> None:
        self.native = Native(loop)
        self._run_dir = run_dir
        self._wards = wards
        self._sampler = sampler

    def ask(self, wanted: Wanted, answer: Callable[[object], None]) -> None:
        """Answered now, but for native stacks."""
        procs = check_procs(wanted.procs)
        match wanted:
            case DumpStacks():
                dumps.begin(self._run_dir, procs, self._wards.signal)
                answer(Done())
            case GetStackDumps():
                answer(StackDumps(dumps.texts(self._run_dir, procs)))
            case GetBoardRows():
                answer(BoardRows(time.monotonic_ns(), self._sampler.rows(procs)))
            case GetNativeStacks():
                self.native.ask(self._wards.pids(procs), time.monotonic(), answer)
