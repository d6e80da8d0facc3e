"""The agent's end of a zygote: starts it, asks for forks, passes on what it says."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

from monarch_nb.host import guard
from monarch_nb.host.agent.loop import Loop
from monarch_nb.host.launch import WHEN_IDLE, AgentBoot, Record
from monarch_nb.host.zygote.channel import Channel

OnMessage = Callable[[Record, list[int]], None]


class ZygoteClient:
    """One zygote process. `on_message` gets each message with the descriptors that came along."""

    def __init__(self, settings: Record, lifeline: int, loop: Loop, on_message: OnMessage) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = _start(theirs.fileno(), lifeline)
        self.pid = self._process.pid
        self.broken: str | None = None
        self._loop = loop
        self._on_message = on_message
        self._channel = Channel(ours)
        loop.add(self._channel.fileno(), self._on_channel)
        self._post(settings)

    def fork(self, request: Record) -> None:
        self._post(request)

    def ended(self, status: int) -> None:
        """Take what it said last, and close: the process was reaped."""
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self.listen()
        self._loop.remove(self._channel.fileno())
        self._channel.close()

    def how(self) -> str:
        code = self._process.returncode or 0
        if code < 0:
            return f"the zygote (process {self.pid}) was ended by {signal.Signals(-code).name}"
        return f"the zygote (process {self.pid}) ended with code {code}"

    def listen(self) -> None:
        for record, fds in self._channel.receive():
            if record["event"] == "broken":
                self.broken = record["text"]
            else:
                self._on_message(record, fds)

    def _post(self, record: Record) -> None:
        if not self._channel.closed:  # else its end is about to be noticed
            self._loop.want_write(self._channel.fileno(), wanted=self._channel.post(record))

    def _on_channel(self) -> None:
        if not self._channel.flush():
            self._loop.want_write(self._channel.fileno(), wanted=False)
        self.listen()
        if self._channel.closed:  # it is about to end, or should: its end comes with SIGCHLD
            self._loop.remove(self._channel.fileno())
            guard.kill(self.pid)


def settings_for(boot: AgentBoot, file_limit: int) -> Record:
    """Return a zygote's settings: the first message that it gets."""
    return {
        "main": boot.main,
        "preload": list(boot.preload),
        "when_idle": [name for loaded in boot.preload for name in WHEN_IDLE.get(loaded, ())],
        "owner_pid": boot.owner_pid,
        "file_limit": file_limit,
    }


def _start(end: int, lifeline: int) -> subprocess.Popen[bytes]:
    # frozen modules off: a debugger in a rank needs the standard library's real files and lines
    options = ["-P", "-Xfrozen_modules=off", "-m", "monarch_nb.host.zygote.zygote"]
    return subprocess.Popen(
        [sys.executable, *options, str(end), str(lifeline), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        pass_fds=(end, lifeline),
        env={name: text for name, text in os.environ.items() if name != guard.PROC_VARIABLE},
    )
