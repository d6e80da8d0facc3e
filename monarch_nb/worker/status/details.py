"""The verbs `details` and `threads`: what this rank knows of itself beyond the board.

Answered in the inbox thread, so also while user code runs. Looks only; nothing here waits or calls
user code.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch_nb.actors.driver import Driver
    from monarch_nb.actors.hosting import Hosting
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.worker.cells.queue import CellQueue


class Details:
    def __init__(self, hosting: Hosting, cells: CellQueue) -> None:
        self._hosting = hosting
        self._cells = cells

    def install(self) -> None:
        self._hosting.proc.verbs["details"] = self.on_details
        self._hosting.proc.verbs["threads"] = self.on_threads

    def on_details(self, body: dict[str, Any], message: Message) -> None:
        """Inbox thread. `since`: the number of the last error that the asker knows."""
        since = body.get("since")
        self._hosting.proc.answer(
            message,
            {
                "ok": True,
                "pid": os.getpid(),
                "actors": [_actor(each) for each in list(self._hosting.drivers.values())],
                "cell": self._cells.what or None,
                "waiting": self._cells.waiting,
                "errors": self._hosting.raised.since(since if isinstance(since, int) else 0),
            },
        )

    def on_threads(self, _: dict[str, object], message: Message) -> None:
        """Inbox thread. The names of all threads, by their numbers: an actor's is the actor's."""
        names = {str(each.ident): each.name for each in threading.enumerate()}
        for driver in list(self._hosting.drivers.values()):
            if driver.thread is not None:
                names[str(driver.thread.ident)] = f"actor {driver.spec.name}"
        self._hosting.proc.answer(message, {"ok": True, "names": names})


def _actor(driver: Driver) -> dict[str, object]:
    return {
        "port": driver.spec.port,
        "name": driver.spec.name,
        "cls": driver.spec.class_name,
        "calls": driver.calls,
        "failed": driver.failed,
        "queue": driver.queue,
        "current": driver.current,
    }
