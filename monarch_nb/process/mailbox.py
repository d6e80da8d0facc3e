"""`Mailbox`: what came and nobody has wanted yet, or who waits for what has not come."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
Key = tuple[int, int]  # the sender's process, and a number that both sides use


class Mailbox(Generic[T]):
    """Of one key, each is in order."""

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
        """Let it wait no longer; False if it has been called already."""
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
