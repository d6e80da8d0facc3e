"""A thread that sends the batches to which nobody adds any more.

Rule: it is woken by a queue that finalizers may use, sleeps while nothing is open, and ends with
the runtime of its process.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Final, Protocol

PERIOD_S: Final = 0.001
QUIET: Final = 20
"""So many periods without anything to send, and it sleeps."""


class Flushed(Protocol):
    """What it looks after: `awake` while it does."""

    awake: bool

    def is_idle(self) -> bool: ...
    def flush_if_due(self) -> None: ...


class Flusher:
    def __init__(self) -> None:
        self._woken: queue.SimpleQueue[Flushed | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._awake: dict[int, Flushed] = {}

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="monarch-tensors", daemon=True)
            self._thread.start()

    def wake(self, flushed: Flushed) -> None:
        """Look after it. Any thread, also from a finalizer."""
        flushed.awake = True
        self._woken.put(flushed)

    def close(self) -> None:
        if (thread := self._thread) is not None:
            self._woken.put(None)
            thread.join(1)
            self._thread = None

    def _serve(self) -> None:
        while (found := self._woken.get()) is not None:
            self._awake[id(found)] = found
            while self._awake:
                if not self._look_after():
                    return

    def _look_after(self) -> bool:
        # Until all is quiet. False: this is the end.
        quiet = 0
        while quiet < QUIET:
            time.sleep(PERIOD_S)
            while not self._woken.empty():
                if (found := self._woken.get()) is None:
                    return False
                self._awake[id(found)] = found
            idle = True
            for each in self._awake.values():
                idle = each.is_idle() and idle
                each.flush_if_due()
            quiet = quiet + 1 if idle else 0
        for key, each in list(self._awake.items()):
            each.awake = False
            if each.is_idle():  # who adds from now on wakes us, who has meanwhile may not have
                del self._awake[key]
            else:
                each.awake = True
        return True


flusher: Final = Flusher()
