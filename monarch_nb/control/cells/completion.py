"""Completions and help from a rank: asked, and waited for no longer than somebody who types would.

Rule of the file: nothing here raises for what a rank does or fails to do; no answer in time is
None.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from monarch_nb.core.wire.messages.codec import Refused, Request
    from monarch_nb.meshes.proc_mesh import ProcMesh
    from monarch_nb.process.process import Proc

A = TypeVar("A")


def ask(
    proc: Proc,
    mesh: ProcMesh,
    rank: int,
    request: Request[A],
    timeout_s: float,
    late: Callable[[A | Refused], None],
) -> A | Refused | None:
    """The answer of a rank to a request, if it comes in time; `late` is called in the inbox thread
    with one that comes afterwards. A rank that is lost or could not answer refuses."""
    asked = _Question(late)
    proc.ask(mesh._state.processes[rank], request, asked.answered)
    return asked.wait(timeout_s)


class _Question(Generic[A]):
    """One answer, which two threads may decide to be too late."""

    def __init__(self, late: Callable[[A | Refused], None]) -> None:
        self._late = late
        self._lock = threading.Lock()
        self._has_come = threading.Event()
        self._answer: A | Refused | None = None
        self._given_up = False

    def wait(self, timeout_s: float) -> A | Refused | None:
        self._has_come.wait(timeout_s)
        with self._lock:
            self._given_up = self._answer is None
            return self._answer

    def answered(self, answer: A | Refused) -> None:
        with self._lock:
            if not self._given_up:
                self._answer = answer
                self._has_come.set()
                return
        self._late(answer)
