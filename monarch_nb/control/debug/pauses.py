"""How long debuggers have held ranks of a mesh: a rank asks, all ranks of its meshes are asked."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from monarch_nb.core.spans import covered_s
from monarch_nb.core.wire.messages.status import GetHeldOfMesh, GetHeldSpans, HeldFor
from monarch_nb.process.futures import ask_all

if TYPE_CHECKING:
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.process.process import Proc
    from monarch_nb.process.supervision.supervision import Supervision

ANSWER_S: Final = 1.0


class HeldDesk:
    """Answers collectives of ranks whose time is over."""

    def __init__(self, proc: Proc, supervision: Supervision) -> None:
        self._proc = proc
        self._supervision = supervision

    def on_asked(self, wanted: GetHeldOfMesh, message: Message) -> None:
        """Inbox thread: the asking is done by another."""
        args = (wanted.within_s, message)
        name = "monarch-held"
        threading.Thread(target=self._answer, args=args, name=name, daemon=True).start()

    def _answer(self, within_s: float, message: Message) -> None:
        members = {
            process
            for state in list(self._supervision.states.values())
            if state.kind == "proc" and message.source in state.processes
            for process in state.processes
        }
        told = ask_all.ask(self._proc, dict.fromkeys(members, GetHeldSpans()), ANSWER_S)
        spans = [span for answer in told.values() for span in answer.spans]
        self._proc.answer(message, HeldFor(covered_s(spans, within_s)))
