"""Completions and help from a rank: asked, and waited for no longer than somebody who types would.

Rule of the file: nothing here raises for what a rank does or fails to do; no answer in time is
None.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch_nb.meshes.proc_mesh import ProcMesh
    from monarch_nb.process.process import Proc

Answer = dict[str, Any]


def ask(
    proc: Proc,
    mesh: ProcMesh,
    rank: int,
    request: Answer,
    timeout_s: float,
    late: Callable[[Answer], None],
) -> Answer | None:
    """The answer of a rank to a request (see docs/protocol.md), if it comes in time; `late` is
    called in the inbox thread with one that comes afterwards.

    `{"error": ...}` comes from a rank that is lost or could not answer.
    """
    asked = _Question(late)
    proc.ask(mesh._state.processes[rank], request["verb"], request, asked.answered)
    return asked.wait(timeout_s)


class _Question:
    """One answer, which two threads may decide to be too late."""

    def __init__(self, late: Callable[[Answer], None]) -> None:
        self._late = late
        self._lock = threading.Lock()
        self._has_come = threading.Event()
        self._answer: Answer | None = None
        self._given_up = False

    def wait(self, timeout_s: float) -> Answer | None:
        self._has_come.wait(timeout_s)
        with self._lock:
            self._given_up = self._answer is None
            return self._answer

    def answered(self, answer: Answer) -> None:
        with self._lock:
            if not self._given_up:
                self._answer = answer
                self._has_come.set()
                return
        self._late(answer)
