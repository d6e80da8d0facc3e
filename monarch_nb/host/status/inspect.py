"""What an agent is asked about ranks, without a word to them: their stacks, their place on the
board.

A rank writes its stacks on a signal, also while C code holds its interpreter.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from monarch_nb.core.hangs.stacks import file_name
from monarch_nb.host.agent.loop import Loop
from monarch_nb.host.agent.ranks import Ranks
from monarch_nb.host.agent.requests import check_procs
from monarch_nb.host.launch import Record
from monarch_nb.host.status.board import Sampler
from monarch_nb.host.status.native import Answer, Native


class Inspector:
    def __init__(self, run_dir: Path, ranks: Ranks, sampler: Sampler, loop: Loop) -> None:
        self.native = Native(loop)
        self._run_dir = run_dir
        self._ranks = ranks
        self._sampler = sampler

    def ask(self, body: Record, answer: Answer) -> None:
        """The verbs `dump`, `dumped`, `rows` and `native`; all but the last are answered now."""
        procs = check_procs(body["procs"])
        match body["verb"]:
            case "dump":
                self._dump(procs)
                answer({"ok": True})
            case "dumped":
                answer({"texts": self._dumped(procs)})
            case "rows":
                answer({"now_ns": time.monotonic_ns(), "rows": self._sampler.rows(procs)})
            case "native":
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
