"""Values from rank to rank, by number: sent by the one, waited for by the other.

Rules: what arrives is kept as it came until somebody takes it, and decoded by who takes it. A wait
ends with an interrupt, with the value, or with the death of the sender. What a process sends to
itself is not copied.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from monarch_nb.core.wire.frames import CALL, MAIL_PORT, Message
from monarch_nb.errors import RankExited

if TYPE_CHECKING:
    from monarch_nb.process.process import Proc

SLICE_S: Final = 0.05
"""How often a wait looks for an interrupt and for the dead."""


class Mail:
    """The values that have come to this process and are not taken yet."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._here: dict[tuple[int, int], Message | Callable[[], Any]] = {}
        self._unwanted: set[tuple[int, int]] = set()
        self._came = threading.Condition()
        proc.ports[MAIL_PORT] = self._deliver

    def send(self, number: int, value: Any, processes: Sequence[int]) -> None:
        """To each of some processes; encoded once."""
        others = [each for each in processes if each != self._proc.id]
        if len(others) < len(processes):
            self._keep((self._proc.id, number), lambda: value)
        if others:
            parcel = self._proc.encode(value, others)
            for process in others:
                self._proc.send(process, CALL, MAIL_PORT, parcel, reply=number)

    def take(self, number: int, source: int) -> Any:
        """What process `source` sends under this number: waits. `RankExited` if it has died.

        Nobody will take it after an interrupt: what comes then is thrown away.
        """
        key = (source, number)
        self._watch(source)
        try:
            found = self._awaited(key)
        except KeyboardInterrupt:
            self._throw_away(key)
            raise
        return self._proc.decode(found) if isinstance(found, Message) else found()

    def _awaited(self, key: tuple[int, int]) -> Message | Callable[[], Any]:
        with self._came:
            while (found := self._here.pop(key, None)) is None:
                if (gone := self._proc.dead.get(key[0])) is not None:
                    raise RankExited(f"what was to come from there is lost: {gone.describe()}")
                self._came.wait(SLICE_S)
        return found

    def _throw_away(self, key: tuple[int, int]) -> None:
        with self._came:
            found = self._here.pop(key, None)
            if found is None:
                self._unwanted.add(key)
        self._discard(found)

    def _watch(self, source: int) -> None:
        if source != self._proc.id:
            self._proc.watch(source)

    def _deliver(self, message: Message) -> None:
        self._keep((message.source, message.reply), message)

    def _keep(self, key: tuple[int, int], content: Message | Callable[[], Any]) -> None:
        with self._came:
            if key not in self._unwanted:
                self._here[key] = content
                self._came.notify_all()
                return
            self._unwanted.discard(key)
        self._discard(content)

    def _discard(self, content: Message | Callable[[], Any] | None) -> None:
        if isinstance(content, Message):
            self._proc.discard(content)
