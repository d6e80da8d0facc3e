"""Processes that offer this host in the name of this one: started, left alone, ended.

Rule: one that is known from a file only is signalled only if it is the very process that the file
means: by its number and the time of its start.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, Final, NamedTuple

from monarch_nb.control.hosts import worker
from monarch_nb.errors import LaunchError
from monarch_nb.host.guard import started_at
from monarch_nb.host.launch import last_lines, with_us

COMMAND: Final = (sys.executable, "-P", "-m", "monarch_nb.control.hosts.worker")


class Worker(NamedTuple):
    """A process that offers this host. `started`: clock ticks after this host's own start."""

    pid: int
    started: int
    address: str

    def is_alive(self) -> bool:
        return started_at(self.pid) == self.started

    def signal(self, number: int) -> None:
        if self.is_alive():
            os.kill(self.pid, number)


class Starting:
    """A worker on its way, to be reached at an address; None: in a private folder. Its standard
    input is kept open: the worker ends when that does."""

    def __init__(self, env: Mapping[str, str], address: str | None = None) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  until it has started
        keyboard, self._input = os.pipe()
        said, screen = os.pipe()
        self._said = os.fdopen(said)
        self._code: int | None = None
        # no Popen: it would warn of a worker that is meant to live on
        self._pid = os.posix_spawn(
            sys.executable,
            COMMAND if address is None else [*COMMAND, address],
            with_us({**os.environ, **env}),
            file_actions=[
                (os.POSIX_SPAWN_DUP2, keyboard, 0),
                (os.POSIX_SPAWN_DUP2, screen, 1),
                (os.POSIX_SPAWN_DUP2, self._errors.fileno(), 2),
            ],
            setsid=True,
        )
        os.close(keyboard)
        os.close(screen)

    def started(self) -> Worker:
        """Wait until it can be reached. Raises `LaunchError` with its last words."""
        address = self._said.readline().strip()
        started = started_at(self._pid)
        if not address or started is None:
            code = self._wait()
            self._errors.seek(0)
            words = last_lines(self._errors.read().decode(errors="replace"))
            raise LaunchError(f"a host of this job ended with code {code}\n{words}")
        self._close()
        _inputs[self._pid] = self._input
        threading.Thread(
            target=_reap, args=(self._pid,), name="monarch-host-process", daemon=True
        ).start()
        return Worker(self._pid, started, address)

    def stop(self) -> None:
        """End it, however far it has come."""
        self._close()
        if self._pid in _inputs:  # it has started, and is reaped by its thread
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            return
        if self._code is None:
            os.kill(self._pid, signal.SIGKILL)
            self._wait()
        os.close(self._input)

    def _wait(self) -> int:
        self._code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return self._code

    def _close(self) -> None:
        self._said.close()
        self._errors.close()


_inputs: Final[dict[int, int]] = {}
"""The workers that are children of this process, and what keeps them alive."""


def let_stay(each: Worker) -> None:
    """Have it live on when this process ends."""
    if each.pid in _inputs:
        with contextlib.suppress(BrokenPipeError):
            os.write(_inputs[each.pid], worker.STAY)


def end(workers: Sequence[Worker], deadline: float) -> None:
    """Have them end; kill those that live at the deadline (of `time.monotonic`)."""
    for each in workers:
        each.signal(signal.SIGTERM)
    while any(each.is_alive() for each in workers) and time.monotonic() < deadline:
        time.sleep(0.01)
    for each in workers:
        each.signal(signal.SIGKILL)


def _reap(pid: int) -> None:
    os.waitpid(pid, 0)
    os.close(_inputs.pop(pid))
