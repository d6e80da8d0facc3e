"""How long a debugger has paused ranks of the mesh: what this one tells, and what it asks.

Asked only by a collective whose time is over. Who cannot be asked was not paused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from monarch_nb.core.wire.messages.status import GetHeldOfMesh, GetHeldSpans, HeldFor, HeldSpans
from monarch_nb.process.futures.ask_all import Question

if TYPE_CHECKING:
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.process.process import Proc
    from monarch_nb.worker.status.board_writer import BoardWriter

ANSWER_S: Final = 3.0


class Pauses:
    """Of this rank, and of its mesh by way of the controller."""

    def __init__(self, proc: Proc, board: BoardWriter) -> None:
        self._proc = proc
        self._board = board

    def on_paused(self, _: GetHeldSpans, message: Message) -> None:
        """Inbox thread. When a debugger paused a thread of this rank, as seconds ago."""
        self._proc.answer(message, HeldSpans(self._board.paused_ago()))

    def of_mesh_s(self, within_s: float) -> float:
        """For how long, in the last seconds, any rank of the mesh was paused. Not the inbox."""
        if self._proc.links.forked or self._proc.links.is_receiving():
            return 0.0
        controller = self._proc.controller
        question = Question(self._proc, {controller: GetHeldOfMesh(within_s)})
        self._proc.links.flush()
        told = question.wait(ANSWER_S).get(controller)
        return told.held_s if isinstance(told, HeldFor) else 0.0
