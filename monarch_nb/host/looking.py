"""What an agent is asked about ranks, without a word to them: their stacks, their place on the
board."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from monarch_nb.host import dumps
from monarch_nb.host.board import Sampler
from monarch_nb.host.orders import check_procs

Body = Mapping[str, Any]


class Looks:
    """Answers by verb."""

    def __init__(self, run_dir: Path, signal: Callable[[int, int], None], sampler: Sampler) -> None:
        self._run_dir = run_dir
        self._signal = signal
        self._sampler = sampler

    def answer(self, body: Body) -> dict[str, Any]:
        """To the verbs `dump`, `dumped` and `rows`."""
        procs = check_procs(body["procs"])
        if body["verb"] == "dump":
            dumps.begin(self._run_dir, procs, self._signal)
            return {"ok": True}
        if body["verb"] == "dumped":
            return {"texts": dumps.texts(self._run_dir, procs)}
        return {"now_ns": time.monotonic_ns(), "rows": self._sampler.rows(procs)}
