"""How long a debugger has paused ranks of the mesh: what this one tells, and what it asks.

Asked only by a collective whose time is over. Who cannot be asked was not paused.
"""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Final

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
        proc.verbs["held"] = self.on_paused

    def on_paused(self, _: dict[str, object], message: Message) -> None:
        """Inbox thread. When a debugger paused a thread of this rank, as seconds ago."""
        self._proc.answer(message, {"ok": True, "spans": self._board.paused_ago()})

    def of_mesh_s(self, within_s: float) -> float:
        """For how long, in the last seconds, any rank of the mesh was paused. Not the inbox."""
        if self._proc.links.forked or self._proc.links.is_receiving():
            return 0.0
        answers: queue.SimpleQueue[dict[str, object]] = queue.SimpleQueue()
        body = {"within_s": within_s}
        self._proc.ask(self._proc.controller, "held_of_mesh", body, answers.put)
        self._proc.links.flush()
        try:
            told = answers.get(timeout=ANSWER_S).get("held_s")
        except queue.Empty:
            return 0.0
        return float(told) if isinstance(told, int | float) else 0.0
