"""The one `Runtime` of this process: set once by whoever starts it, read by everybody.

A rank sets it while it boots. Elsewhere the first use starts the client; it is known here by name
only, as the worker is to the host, because nothing may point up.
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


_slot = _Slot()


def install(runtime: Runtime | None) -> None:
    """Make this the process's runtime; None when it has ended."""
    _slot.runtime = runtime


def running() -> Runtime | None:
    """The runtime, if there is one. A forked child of a member has none."""
    return _slot.runtime


def runtime() -> Runtime:
    """The runtime; in a process that is no rank, the client is started at first use."""
    found = _slot.runtime
    if found is not None:
        return found
    with _lock:
        if _slot.runtime is None:
            importlib.import_module(CLIENT).start()
    found = _slot.runtime
    assert found is not None
    return found


def proc() -> Proc:
    """The messaging of this process."""
    return runtime().proc


def _forget_after_fork() -> None:
    """A forked child is no member: its parent's sockets and threads are not its own."""
    _slot.runtime = None


os.register_at_fork(after_in_child=_forget_after_fork)
