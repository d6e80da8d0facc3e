"""How long debuggers have held ranks of a mesh: a rank asks, all ranks of its meshes are asked."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from monarch_nb.process.futures import ask_all

if TYPE_CHECKING:
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.process.process import Proc
    from monarch_nb.process.supervision.supervision import Supervision

ANSWER_S: Final = 1.0

Span = tuple[float, float]
"""As seconds ago, from and to: those who tell of it do not share a clock."""


class PauseService:
    """Serves the verb `held_of_mesh`."""

    def __init__(self, proc: Proc, supervision: Supervision) -> None:
        self._proc = proc
        self._supervision = supervision
        proc.verbs["held_of_mesh"] = self.on_asked

    def on_asked(self, body: dict[str, Any], message: Message) -> None:
        """Inbox thread: the asking is done by another."""
        args = (float(body["within_s"]), message)
        name = "monarch-pauses"
        threading.Thread(target=self._answer, args=args, name=name, daemon=True).start()

    def _answer(self, within_s: float, message: Message) -> None:
        members = {
            process
            for state in list(self._supervision.states.values())
            if state.kind == "proc" and message.source in state.processes
            for process in state.processes
        }
        told = ask_all.ask(self._proc, "held", {each: {} for each in members}, ANSWER_S)
        spans = [(start, end) for answer in told.values() for start, end in answer["spans"]]
        self._proc.answer(message, {"ok": True, "held_s": covered_s(spans, within_s)})


def covered_s(spans: Iterable[Span], within_s: float) -> float:
    """How many of the last `within_s` seconds are in any of the spans.

    Example:
        >>> covered_s([(10.0, 6.0), (7.0, 5.0), (2.0, 0.0)], within_s=9.0)
        6.0
    """
    total, until = 0.0, float("inf")  # walked from long ago to now
    for start, end in sorted(spans, reverse=True):
        start = min(start, within_s, until)  # noqa: PLW2901  what is older or counted already
        end = max(end, 0.0)  # noqa: PLW2901
        if start > end:
            total += start - end
            until = end
    return total
