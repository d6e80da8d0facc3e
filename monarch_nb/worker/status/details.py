"""What this rank knows of itself beyond the board: actors, errors, threads.

Answered in the inbox thread, so also while user code runs. Looks only; nothing here waits or calls
user code.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from monarch_nb.core.wire.messages.status import (
    ActorDetails,
    GetDetails,
    GetThreadNames,
    RankDetails,
    ThreadNames,
)

if TYPE_CHECKING:
    from monarch_nb.actors.driver import Driver
    from monarch_nb.actors.hosting import Hosting
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.worker.cells.queue import CellQueue


class Details:
    def __init__(self, hosting: Hosting, cells: CellQueue) -> None:
        self._hosting = hosting
        self._cells = cells

    def on_details(self, wanted: GetDetails, message: Message) -> None:
        """Inbox thread."""
        hosting, cells = self._hosting, self._cells
        actors = [_actor(each) for each in list(hosting.drivers.values())]
        errors = hosting.recent_errors.since(wanted.since)
        details = RankDetails(os.getpid(), actors, cells.what or None, cells.waiting, errors)
        hosting.proc.answer(message, details)

    def on_threads(self, _: GetThreadNames, message: Message) -> None:
        """Inbox thread. An actor's thread has the name of the actor."""
        names = {str(each.ident): each.name for each in threading.enumerate()}
        for driver in list(self._hosting.drivers.values()):
            if driver.thread is not None:
                names[str(driver.thread.ident)] = f"actor {driver.spec.name}"
        self._hosting.proc.answer(message, ThreadNames(names))


def _actor(driver: Driver) -> ActorDetails:
    spec = driver.spec
    return ActorDetails(
        spec.port, spec.name, spec.class_name, driver.calls, driver.failed, driver.queue,
        driver.current,
    )  # fmt: skip
