"""What an agent is asked about ranks, without a word to them: their stacks, their place on the
board."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monarch_nb.host.agent.loop import Loop
from monarch_nb.host.agent.ranks import Wards
from monarch_nb.host.agent.requests import check_procs
from monarch_nb.host.status import dumps
from monarch_nb.host.status.board import Sampler
from monarch_nb.host.status.native import Answer, Native


class Looks:
    """Answers by verb."""

    def __init__(self, run_dir: Path, wards: Wards, sampler: Sampler, loop: Loop) -> None:
        self.native = Native(loop)
        self._run_dir = run_dir
        self._wards = wards
        self._sampler = sampler

    def ask(self, body: Mapping[str, Any], answer: Answer) -> None:
        """The verbs `dump`, `dumped`, `rows` and `native`; all but the last are answered now."""
        procs = check_procs(body["procs"])
        match body["verb"]:
            case "dump":
                dumps.begin(self._run_dir, procs, self._wards.signal)
                answer({"ok": True})
            case "dumped":
                answer({"texts": dumps.texts(self._run_dir, procs)})
            case "rows":
                answer({"now_ns": time.monotonic_ns(), "rows": self._sampler.rows(procs)})
            case "native":
                self.native.ask(self._wards.pids(procs), time.monotonic(), answer)
