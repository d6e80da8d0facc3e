"""What ranks send one another, kept until it is wanted; and values by number, for `to_mesh`.

Rules: what arrives is kept as it came until somebody takes it, and decoded by who takes it. What a
process sends to itself is not copied.
"""

from __future__ import annotations

import collections
import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from monarch_nb.core.wire.frames import CALL, MAIL_PORT, Message
from monarch_nb.errors import RankExited
from monarch_nb.process.process import Proc

T = TypeVar("T")
Key = tuple[int, int]  # the sender's process, and a number that both sides use
Value = Message | Callable[[], object]

SLICE_S: Final = 0.05
"""How often a wait looks for an interrupt and for the dead."""


class Mailbox(Generic[T]):
    """What came and receivers that wait, whichever is longer: of one key, each in order."""

    def __init__(self) -> None:
        self._arrived: dict[Key, collections.deque[T]] = {}
        self._wanted: dict[Key, collections.deque[Callable[[T], None]]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(map(len, self._arrived.values()))

    def put(self, key: Key, content: T) -> None:
        with self._lock:
            receiver = _first(self._wanted, key)
            if receiver is None:
                self._arrived.setdefault(key, collections.deque()).append(content)
                return
        receiver(content)

    def want(self, key: Key, receiver: Callable[[T], None]) -> None:
        """Call `receiver` with the oldest that has come, or with what comes next."""
        with self._lock:
            content = _first(self._arrived, key)
            if content is None:
                self._wanted.setdefault(key, collections.deque()).append(receiver)
                return
        receiver(content)

    def unwant(self, key: Key, receiver: Callable[[T], None]) -> bool:
        """It waits no longer; False if it has been called already."""
        with self._lock:
            waiting = self._wanted.get(key, collections.deque())
            if receiver not in waiting:
                return False
            waiting.remove(receiver)
            if not waiting:
                del self._wanted[key]
            return True


def _first(queues: dict[Key, collections.deque[T]], key: Key) -> T | None:
    if (found := queues.get(key)) is None:
        return None
    first = found.popleft()
    if not found:
        del queues[key]
    return first


class Mail(Mailbox[Value]):
    """Values that have come to this process by number: sent by one, waited for by another."""

    def __init__(self, proc: Proc) -> None:
        super().__init__()
        self._proc = proc
        proc.ports[MAIL_PORT] = lambda message: self.put((message.source, message.reply), message)

    def send(self, number: int, value: object, processes: Sequence[int]) -> None:
        others = [each for each in processes if each != self._proc.id]
        if len(others) < len(processes):
            self.put((self._proc.id, number), lambda: value)
        if others:
            parcel = self._proc.encode(value, others)
            for process in others:
                self._proc.send(process, CALL, MAIL_PORT, parcel, reply=number)

    def take(self, number: int, source: int) -> Any:
        """What process `source` sends under this number: waits. `RankExited` if it has died.

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
