"""Threads of the runtime, which go on whatever a debugger does."""

from __future__ import annotations

import threading
from collections.abc import Callable


def helper_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """Make a daemon thread that no debugger stops, or the rank would not answer any more."""
    made = threading.Thread(target=target, name=name, daemon=True)
    vars(made).update(pydev_do_not_trace=True, is_pydev_daemon_thread=True)
    return made


def is_helper() -> bool:
    """Tell whether the calling thread is one of them: it must not wait for what another hears."""
    return "pydev_do_not_trace" in vars(threading.current_thread())
