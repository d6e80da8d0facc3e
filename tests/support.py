"""What tests share: waiting with a deadline, and oracles that look from outside.

Of monarch_nb it imports the oracles alone, which import none of it: no oracle can be fooled by what
it judges.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from monarch_nb.testing.leaks import Snapshot
from monarch_nb.testing.processes import (
    PROC,
    descendants,
    describe_process,
    is_running,
    listening_sockets_of,
    open_fds,
    process_state,
    read,
    session_processes,
    socket_inodes,
)

__all__ = [
    "Snapshot",
    "chromium",
    "code_until",
    "descendants",
    "describe_process",
    "eventually",
    "is_running",
    "listening_ports",
    "open_fds",
    "process_state",
    "rss_bytes",
    "session_processes",
    "stop",
    "until_exists",
]


# ------------------------------------------------------------------------------------------ waiting


def eventually(
    predicate: Callable[[], Any], within_s: float = 10.0, what: str | Callable[[], str] = ""
) -> Any:
    """Call `predicate` until it returns something true, and return that.

    Raises `AssertionError` after `within_s`, naming `what` was waited for. An `AssertionError` of
    the predicate means "not yet"; the last one is shown.
    """
    __tracebackhide__ = True
    deadline = time.monotonic() + within_s
    pause_s = 0.001
    last: AssertionError | None = None
    while True:
        try:
            if result := predicate():
                return result
        except AssertionError as error:
            last = error
        if time.monotonic() > deadline:
            name = what() if callable(what) else what or getattr(predicate, "__name__", "it")
            raise AssertionError(f"not within {within_s:g} s: {name}") from last
        threading.Event().wait(pause_s)
        pause_s = min(pause_s * 2, 0.05)


def until_exists(path: str | Path) -> None:
    """What ranks do until a test makes the file: be busy, in steps that an interrupt can end."""
    while not os.path.exists(path):
        threading.Event().wait(0.005)


def code_until(path: str | Path) -> str:
    """The same as the code of a cell."""
    return f"import os, time\nwhile not os.path.exists({str(path)!r}): time.sleep(0.01)\n"


# ---------------------------------------------------------------------------------------- processes


def stop(pid: int) -> None:
    """SIGSTOP, and wait until no thread runs any more: `kill` returns while the signal is on its
    way, and a process may still answer."""
    os.kill(pid, signal.SIGSTOP)
    threads = PROC / str(pid) / "task"
    eventually(lambda: all(process_state(int(each.name)) == "T" for each in threads.iterdir()))


def rss_bytes(pid: int | str = "self") -> int:
    """The memory that a process has in use, shared pages counted."""
    return int(read(pid, "statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def listening_ports(pid: int) -> set[str]:
    """`ADDRESS port N` for each TCP socket on which the process listens."""
    table = listening_sockets_of(pid)
    return {table[inode] for inode in socket_inodes(pid) if inode in table}


def chromium() -> str | None:
    """Where a Chromium is, for `playwright` and for screenshots."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)
