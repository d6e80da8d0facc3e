"""What is done when nobody refers to an object any more.

Python runs a finalizer in whatever thread drops the last reference, in the middle of anything. It
may take no lock there; and in the main thread an interrupt may come up inside it, which Python only
prints, and the rest of the finalizer is lost. So all that runs there is a function of C, which puts
the reference into a queue. A thread of its own does the work.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Watched(weakref.ref[T], Generic[T]):
    """A weak reference that knows what is to be done behind it. `dropped` is called with it."""

    __slots__ = ("action",)

    def __new__(
        cls, thing: T, dropped: Callable[[Any], object], _: Callable[[], object]
    ) -> Watched[T]:
        return super().__new__(cls, thing, dropped)

    def __init__(self, _: T, __: Callable[[Any], object], action: Callable[[], object]) -> None:
        self.action = action


class Garbage:
    """The thread, which begins with the first object that is watched."""

    def __init__(self) -> None:
        self._dropped: SimpleQueue[Any] = SimpleQueue()  # of `Watched`; None: the end
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def watch(self, thing: T, action: Callable[[], object]) -> Watched[T]:
        """Have `action` done when `thing` is gone, if the reference returned is still there."""
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="monarch-garbage", daemon=True
                )
                self._thread.start()
        return Watched(thing, self._dropped.put, action)

    def close(self) -> None:
        """End the thread; what is dropped later is left alone."""
        if self._thread is not None:
            self._dropped.put(None)
            if self._thread is not threading.current_thread():
                self._thread.join()

    def _work(self) -> None:
        while (dropped := self._dropped.get()) is not None:
            try:
                dropped.action()
            except Exception:  # noqa: BLE001 - others are still to be stopped
                _log.exception("what nobody refers to any more could not be stopped")
            del dropped  # with all that its action holds, while this waits
