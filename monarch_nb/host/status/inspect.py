"""What an agent is asked about ranks, without a word to them: their stacks, their place on the
board.

A rank writes its stacks on a signal, also while C code holds its interpreter.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from monarch_nb.core.hangs.stacks import file_name
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
from monarch_nb.host.agent.ranks import Ranks
from monarch_nb.host.agent.requests import check_procs
from monarch_nb.host.status.board import Sampler
from monarch_nb.host.status.native import Native

Wanted = DumpStacks | GetStackDumps | GetBoardRows | GetNativeStacks


class Inspector:
    def __init__(self, run_dir: Path, ranks: Ranks, sampler: Sampler, loop: Loop) -> None:
        self.native = Native(loop)
        self._run_dir = run_dir
        self._ranks = ranks
        self._sampler = sampler

    def ask(self, wanted: Wanted, answer: Callable[[object], None]) -> None:
        """Answered now, but for native stacks."""
        procs = check_procs(wanted.procs)
        match wanted:
            case DumpStacks():
                self._dump(procs)
                answer(Done())
            case GetStackDumps():
                answer(StackDumps(self._dumped(procs)))
            case GetBoardRows():
                answer(BoardRows(time.monotonic_ns(), self._sampler.rows(procs)))
            case GetNativeStacks():
                self.native.ask(self._ranks.pids(procs), time.monotonic(), answer)

    def forget(self, proc: int) -> None:
        (self._run_dir / file_name(proc)).unlink(missing_ok=True)

    def _dump(self, procs: Iterable[int]) -> None:
        for proc in procs:
            # without the file, it does not know the signal, which would end it
            if (path := self._run_dir / file_name(proc)).exists():
                os.truncate(path, 0)
                self._ranks.signal(proc, signal.SIGRTMIN)

    def _dumped(self, procs: Iterable[int]) -> dict[str, str]:
        files = {str(proc): self._run_dir / file_name(proc) for proc in procs}
        return {proc: path.read_text() for proc, path in files.items() if path.exists()}
