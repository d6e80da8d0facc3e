"""Starts an agent on this host, and gives it up.

The agent ends with this process: it watches its standard input, a pipe that is open as long as we
live, and a pidfd. The kernel's signal at the death of its parent only wakes an agent that was
stopped, so that it sees the others; it is bound to the thread that called `launch`. So call it from
a thread that lives as long as the runtime does.

An agent that is silent cannot tell of its ranks, so it is given up and killed, and its ranks end
with it. One that is stopped or frozen is given up at once; one that may only be starved of
processor time gets the grace that ranks get.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

from monarch_nb.config import Config
from monarch_nb.errors import LaunchError
from monarch_nb.host.launch import AgentBoot, how_it_ended, last_lines, with_us

_END_S: Final = 5.0
_LOG_BYTES: Final = 1 << 14
_ASK_AGAIN_S: Final = 0.1
_CANNOT_RUN: Final = "TtD"  # states of /proc: stopped, traced, frozen


class Launcher(Protocol):
    """Has the process of an agent on this host, which it has started or found."""

    @property
    def pid(self) -> int | None: ...
    def launch(self, boot: AgentBoot) -> None: ...
    def wait(self) -> int | None: ...
    def kill(self) -> None: ...
    def let_go(self) -> None: ...
    def close(self) -> None: ...
    def last_words(self) -> str: ...


class LocalLauncher:
    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._log = Path(os.devnull)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def launch(self, boot: AgentBoot) -> None:
        self._log = Path(boot.run_dir) / boot.log_name()
        # -P: a random.py beside the notebook is the user's module, not the agent's
        command = [sys.executable, "-P", "-m", "monarch_nb.host.agent"]
        try:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env=with_us(self._environment),
                    start_new_session=True,
                )
            self._tell(boot)
        except OSError as error:
            raise LaunchError(f"starting the agent ({' '.join(command)}): {error}") from error

    def poll(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def wait(self) -> int:
        """Wait for the agent's end; how it ended, as `poll` says it."""
        assert self._process is not None
        return self._process.wait()

    def ends_within(self, limit_s: float) -> bool:
        """Tell whether it ends by itself, and in order."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(limit_s) == 0
        return False

    def kill(self) -> None:
        """Kill it by SIGKILL; zygote and ranks end by themselves (`guard.py`)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._close_stdin()

    def close(self) -> None:
        """End the agent by the end of its input; kill it if it does not obey."""
        if self._process is None:
            return
        self._close_stdin()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def last_words(self) -> str:
        """Return the last lines of the agent's and the zygote's stderr."""
        return _end_of(self._log)

    def let_go(self) -> None:
        """Leave it to itself: it goes on alone if it keeps ranks, else it ends."""
        self._close_stdin()

    def _tell(self, boot: AgentBoot) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(boot.to_line())
        self._process.stdin.flush()

    def _close_stdin(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()


class FoundLauncher:
    """As `LocalLauncher`, of an agent that another process has started and that goes on."""

    def __init__(self, pid: int) -> None:
        self.pid: int | None = pid
        self._handle = os.pidfd_open(pid)
        self._log = Path(os.devnull)

    def launch(self, boot: AgentBoot) -> None:
        """Know where it logs."""
        self._log = Path(boot.run_dir) / boot.log_name()

    def wait(self) -> int | None:
        """Wait for its end; nobody but its parent knows how it ended."""
        select.select([self._handle], [], [])
        return None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def let_go(self) -> None:
        """Leave it to itself: it notices the end of this process."""

    def close(self) -> None:
        os.close(self._handle)

    def last_words(self) -> str:
        return _end_of(self._log)


class Patience:
    """How long the pulse of an agent that was launched here may be gone: `judge` is for a
    `PulseWatch`, and kills the agent in the end. `is_over`: nobody wants to know any more."""

    def __init__(self, launcher: Launcher, config: Config, is_over: Callable[[], bool]) -> None:
        self.silent_s: float | None = None
        """For how long it was silent when it was given up; None: it was not."""
        self._launcher = launcher
        self._config = config
        self._is_over = is_over
        self._lost_at: float | None = None

    @property
    def has_lost(self) -> bool:
        """Tell whether the agent is silent now."""
        return self._lost_at is not None

    def judge(self, up: bool | None) -> float | None:
        """Take what the pulse has to say, None where the time is over; return in how many seconds
        to be asked again. The thread of the pulse."""
        if up:
            self._lost_at = None
        if up or self._is_over():
            return None
        now = time.monotonic()
        if self._lost_at is None:
            self._lost_at = now
        silent_s = now - self._lost_at
        pid = self._launcher.pid
        if silent_s < self._config.grace_s and (pid is None or _may_run(pid)):
            return _ASK_AGAIN_S
        self.silent_s = silent_s + self._config.pulse_timeout_s
        self._launcher.kill()
        return None

    def how_it_ended(self, code: int | None) -> str:
        """Say how the agent ended, by its code as `Popen` has it; None: nobody knows."""
        if self.silent_s is not None:
            return f"did not answer for {self.silent_s:.1f} s and was killed"
        return how_it_ended(code)


def _end_of(path: Path) -> str:
    with contextlib.suppress(OSError), path.open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_BYTES))
        return last_lines(log.read().decode(errors="replace"))
    return ""


def _may_run(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123  a thousand small reads, no path needed
            state = file.read().rpartition(")")[2].split()[0]
    except OSError:
        return True  # it is ending: that comes by another way
    return state not in _CANNOT_RUN
