"""Starts an agent on this host.

The agent ends with this process: it watches its standard input, a pipe that is open as long as we
live, and a pidfd. The kernel's signal at the death of its parent only wakes an agent that was
stopped, so that it sees the others; it is bound to the thread that called `launch`. So call it from
a thread that lives as long as the runtime does.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from monarch_nb.errors import LaunchError
from monarch_nb.host.launch import AgentBoot, last_lines, with_us

_END_S: Final = 5.0
_LOG_BYTES: Final = 1 << 14


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
        with contextlib.suppress(OSError), self._log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_BYTES))
            return last_lines(log.read().decode(errors="replace"))
        return ""

    def _tell(self, boot: AgentBoot) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(boot.to_line())
        self._process.stdin.flush()

    def _close_stdin(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
