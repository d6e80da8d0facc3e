"""`await` at the top level of a cell: one event loop per rank, run only while a cell awaits.

Tasks that a cell leaves behind go on when a later cell awaits. An interrupt is thrown into the
coroutine where it waits, so that its `finally` blocks run and the traceback shows that line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final

UNWIND_S: Final = 1.0  # for an interrupted coroutine to run its `finally` blocks


class CellLoop:
    """The event loop of a rank's main thread, made when first needed."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[object, object, object]) -> None:
        """Run to the end; on an interrupt raise `KeyboardInterrupt` with the coroutine's frames."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        task = self._loop.create_task(coroutine)
        try:
            self._loop.run_until_complete(task)
        except KeyboardInterrupt as stop:
            if task.done():  # it came while the coroutine itself was running
                raise
            where = self._unwind(task)
            raise stop.with_traceback(where.__traceback__ if where else None) from None

    def soon(self, action: Callable[[], object]) -> None:
        """Do this on the main thread while a cell awaits, if one does. Any thread."""
        loop = self._loop
        if loop is not None and loop.is_running():
            loop.call_soon_threadsafe(action)

    def _unwind(self, task: asyncio.Task[object]) -> BaseException | None:
        assert self._loop is not None
        task.cancel()
        self._loop.run_until_complete(asyncio.wait({task}, timeout=UNWIND_S))
        try:
            return task.exception() if task.done() else None
        except asyncio.CancelledError as error:
            return error

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()
            self._loop = None
