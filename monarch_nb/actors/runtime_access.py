"""The one `Runtime` of this process: set once by whoever starts it, read by everybody.

A rank sets it while it boots. Elsewhere the first use starts the client; it is known here by name only, as the
worker is to the host, because nothing may point up.
"""

from __future__ import annotations

import importlib
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch_nb.actors.proc import Proc
    from monarch_nb.actors.runtime import Runtime

CLIENT = "monarch_nb.control.client"
_lock = threading.RLock()


class _Slot:
    runtime: Runtime | None = None
    pid = 0


_slot = _Slot()


def install(runtime: Runtime | None) -> None:
    """Make this the process's runtime; None when it has ended."""
    _slot.runtime = runtime
    _slot.pid = os.getpid()


def running() -> Runtime | None:
    """The runtime, if there is one. A forked child of a member has none."""
    return _slot.runtime if _slot.pid == os.getpid() else None


def runtime() -> Runtime:
    """The runtime; in a process that is no rank, the client is started at first use."""
    found = _slot.runtime
    if found is not None and _slot.pid == os.getpid():
        return found
    with _lock:
        if running() is None:
            install(None)
            importlib.import_module(CLIENT).start()
        found = running()
    assert found is not None
    return found


def proc() -> Proc:
    """The messaging of this process."""
    return runtime().proc
