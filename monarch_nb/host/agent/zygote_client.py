"""The agent's end of a zygote: starts it, asks for forks, passes on what it says."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from monarch_nb.host import guard
from monarch_nb.host.launch import AgentBoot, Record
from monarch_nb.host.zygote.channel import Channel

if TYPE_CHECKING:
    from monarch_nb.host.agent.loop import Loop

OnMessage = Callable[[Record, list[int]], None]


class StartedZygote(NamedTuple):
    """A process that loads, and waits for its settings at the other end of the socket."""

    process: subprocess.Popen[bytes]
    socket: socket.socket


class Starter:
    """Starts zygotes; they, and what they have forked, end with the process that this one is in."""

    def __init__(self) -> None:
        self._lifeline, self._held = os.pipe()

    def start(self) -> StartedZygote:
        ours, theirs = socket.socketpair()
        with theirs:
            return StartedZygote(_start(theirs.fileno(), self._lifeline), ours)


class ZygoteClient:
    """One zygote process. `on_message` gets each message with the descriptors that came along."""

    def __init__(
        self, started: StartedZygote, settings: Record, loop: Loop, on_message: OnMessage
    ) -> None:
        self._process = started.process
        self.pid = self._process.pid
        self.broken: str | None = None
        self._loop = loop
        self._on_message = on_message
        self._channel = Channel(started.socket)
        loop.add(self._channel.fileno(), self._on_channel)
        self._post(settings)

    def fork(self, request: Record) -> None:
        self._post(request)

    def load(self, libraries: list[str], *, soon: bool) -> None:
        """Have ranks that are forked from now on find these loaded, as in `LoadLibraries`."""
        self._post({"load": libraries, "soon": soon})

    def outlive_owner(self) -> None:
        """Have it end with its agent only, and its ranks too."""
        self._post({"outlive": True})

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
        "loads_when_idle": boot.loads_when_idle,
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
