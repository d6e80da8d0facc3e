"""Values from rank to rank by number, for `to_mesh`: sent by one, waited for by another.

Rules: what arrives is kept as it came until somebody takes it, and decoded by who takes it. What a
process sends to itself is not copied.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Sequence
from typing import Any, Final

from monarch_nb.core.wire.frames import CALL, MAIL_PORT, Message
from monarch_nb.errors import RankExited
from monarch_nb.process.mailbox import Key, Mailbox
from monarch_nb.process.process import Proc

Value = Message | Callable[[], object]

SLICE_S: Final = 0.05
"""How often a wait looks for an interrupt and for the dead."""


class Mail(Mailbox[Value]):
    """The values that have come to this process."""

    def __init__(self, proc: Proc) -> None:
        super().__init__()
        self._proc = proc
        proc.ports[MAIL_PORT] = lambda message: self.put((message.source, message.reply), message)

    def send(self, number: int, value: object, processes: Sequence[int]) -> None:
        others = [each for each in processes if each != self._proc.id]
        if len(others) < len(processes):
            self.put((self._proc.id, number), lambda: value)
        if others:
            payload = self._proc.encode(value, others)
            for process in others:
                self._proc.send(process, CALL, MAIL_PORT, payload, reply=number)

    def take(self, number: int, source: int) -> Any:
        """Wait for what process `source` sends under this number. `RankExited` if it has died.

        Nobody will take it after an interrupt: what comes then is thrown away.
        """
        key = (source, number)
        if source != self._proc.id:
            self._proc.watch(source)
        came: queue.SimpleQueue[Value] = queue.SimpleQueue()
        receiver = came.put
        try:
            self.want(key, receiver)
            found = self._awaited(key, came, receiver)
        except KeyboardInterrupt:
            if self.unwant(key, receiver):
                self.want(key, self._discard)
            with contextlib.suppress(queue.Empty):
                self._discard(came.get_nowait())
            raise
        return self._proc.decode(found) if isinstance(found, Message) else found()

    def _awaited(
        self, key: Key, came: queue.SimpleQueue[Value], receiver: Callable[[Value], None]
    ) -> Value:
        while True:
            gone = self._proc.dead.get(key[0])
            with contextlib.suppress(queue.Empty):
                return came.get(timeout=SLICE_S) if gone is None else came.get_nowait()
            if gone is not None and self.unwant(key, receiver):
                raise RankExited(f"what was to come from there is lost: {gone.describe()}")

    def _discard(self, content: Value) -> None:
        if isinstance(content, Message):
            self._proc.discard(content)
