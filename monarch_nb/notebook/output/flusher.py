"""The one thread that sends what waits: outputs of cells, lines that change, messages of widgets.

Rule of the file: it knows when something is due and nothing of what is sent.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol


class Flushed(Protocol):
    """Has something to send now and then."""

    def flush(self) -> float | None:
        """Send what is due. Returns when there will be more, or None."""


class Flusher:
    """One thread that flushes the outputs that are due."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[Flushed, float] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def due(self, output: Flushed, at_s: float | None) -> None:
        """Flush the output at that time (`time.monotonic`).

        What is due already is sent by the caller: when an answer of the same rank is handed on
        next, what the rank printed before it is on its way.
        """
        if at_s is not None and at_s <= time.monotonic():
            at_s = self._flushed(output)
        if at_s is not None:
            self._schedule(output, at_s)

    def _schedule(self, output: Flushed, at_s: float) -> None:
        with self._changed:
            before = min(self._due.values(), default=float("inf"))
            self._due[output] = min(at_s, self._due.get(output, at_s))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="monarch-flusher", daemon=True
                )
                self._thread.start()
            if at_s < before:
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while (due := self._next()) is not None:
            for output in due:
                if (at_s := self._flushed(output)) is not None:
                    self._schedule(output, at_s)

    def _flushed(self, output: Flushed) -> float | None:
        try:
            return output.flush()
        except Exception:  # a display that is no JSON, a front end that left
            logging.getLogger("monarch_nb").exception("output of ranks could not be shown")
            return None

    def _next(self) -> list[Flushed] | None:
        # The outputs that are due, as soon as there is one; None at the end
        with self._changed:
            while not self._closed:
                first = min(self._due.values(), default=None)
                now = time.monotonic()
                if first is not None and first <= now:
                    due = [output for output, at_s in self._due.items() if at_s <= now]
                    for output in due:
                        del self._due[output]
                    return due
                longest = threading.TIMEOUT_MAX
                self._changed.wait(None if first is None else min(first - now, longest))
        return None
