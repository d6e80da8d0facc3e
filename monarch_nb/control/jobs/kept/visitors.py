"""Where `monarch-nb exec`, `shell`, `kill` and `context` come in, to who holds a job.

Rules: a unix socket in a folder of mode 0700, processes of the same user only; one JSON line asks,
lines answer: `{"out": text}`, `{"err": text}`, and in the end `{"code": n}`, `{"said": ...}` or
`{"error": text}`. A visitor who goes interrupts what runs for it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from monarch_nb.control.client import client
from monarch_nb.control.jobs.job import JobState, JobTrait
from monarch_nb.control.jobs.kept.lending import Lender
from monarch_nb.control.local_server import LocalServer
from monarch_nb.control.output.routing import OutputEvent
from monarch_nb.core.wire.frames import HOST_SHIFT
from monarch_nb.errors import MeshError, RemoteProtocolError
from monarch_nb.meshes.proc_mesh import HostMesh
from monarch_nb.net import wire
from monarch_nb.net.threads import helper_thread
from monarch_nb.services.commands import exec_command

_MAX_LINE: Final = 1_000_000
_CHUNK: Final = 1 << 16
_SAY_S: Final = 1.0
Say = Callable[..., None]


class Visitors:
    """Those of a job; `over` is set by who ends it."""

    def __init__(self, job: JobTrait, state: JobState, over: threading.Event) -> None:
        self._job = job
        self._state = state
        self._over = over
        self._has_ended = threading.Event()
        self._visits: list[threading.Thread] = []
        self._one_at_a_time = threading.Lock()
        self._hears: Callable[[OutputEvent], None] | None = None
        self._answers = {
            "status": self._status, "exec": self._exec, "shell": self._shell, "kill": self._kill,
            "lend": self._lend,
        }  # fmt: skip
        client().on_output(self._on_output)
        listener = wire.bind_job_server(Path(client().proc.links.run_dir))
        self._server = LocalServer(listener, os.getuid(), "monarch-job-server", self._welcome)

    def close(self) -> None:
        """Let nobody in any more, and tell who has asked for it that the job has ended."""
        self._has_ended.set()
        self._server.close()
        for visit in self._visits:
            visit.join(_SAY_S)

    def _welcome(self, stream: socket.socket) -> None:
        visit = helper_thread(functools.partial(self._serve, stream), "monarch-job-visit")
        self._visits = [each for each in self._visits if each.is_alive()] + [visit]
        visit.start()

    def _serve(self, stream: socket.socket) -> None:
        writing = threading.Lock()

        def say(**said: object) -> None:
            with contextlib.suppress(OSError), writing:
                stream.sendall(json.dumps(said).encode() + b"\n")

        with stream, contextlib.suppress(OSError, RemoteProtocolError):
            asked = _request(stream)
            try:
                self._answers[asked["do"]](asked, say, stream)
            except (MeshError, LookupError, RuntimeError, ValueError) as error:
                say(error=str(error))
            stream.shutdown(socket.SHUT_RDWR)  # and who listens whether it goes hears so

    def _status(self, _asked: Any, say: Say, _stream: socket.socket) -> None:
        try:
            status = self._job.status()
            said = [status.engine, status.stage.value, status.joined, status.hosts, status.reason]
        except RuntimeError:
            said = None
        sizes = {name: len(hosts) for name, hosts in self._state.all_meshes().items()}
        say(said={"status": said, "meshes": sizes})

    def _kill(self, _asked: Any, say: Say, _stream: socket.socket) -> None:
        self._over.set()
        self._has_ended.wait()
        say(said="killed")

    def _shell(self, asked: Any, say: Say, _stream: socket.socket) -> None:
        hosts, at = self._hosts(asked), asked["host"]
        if not 0 <= at < len(hosts):
            raise ValueError(f"there is no host {at}: it has the hosts 0 to {len(hosts) - 1}")
        say(said=self._job.shell_command(hosts._agents[at] >> HOST_SHIFT))

    def _exec(self, asked: Any, say: Say, stream: socket.socket) -> None:
        hosts = self._hosts(asked)
        with self._one_at_a_time:
            printer = _Printer(say)
            self._hears = printer.take
            try:
                done = exec_command(
                    hosts,
                    asked["command"],
                    env=asked["env"],
                    workdir=asked["workdir"],
                    rank=asked["host"],
                    per_host=asked["per_host"],
                )
                helper_thread(lambda: _when_gone(stream, done.cancel), "monarch-job-gone").start()
                code = done.get()
            finally:
                self._hears = None
            printer.end()
        say(code=code)

    def _lend(self, asked: Any, say: Say, stream: socket.socket) -> None:
        hosts, first, count = self._hosts(asked), asked["first"], asked["count"]
        if first + count > len(hosts):
            raise ValueError(f"it has {len(hosts)} hosts, not {first + count}")
        lent = hosts.flatten("rank").slice(rank=slice(first, first + count))
        procs = lent.spawn_procs(name="loan")
        try:
            ended = procs.spawn("lender", Lender).lend.call(asked["ticket"])
            helper_thread(lambda: _when_gone(stream, ended.cancel), "monarch-job-gone").start()
            say(said=list(ended.get().values()))
        finally:
            procs.stop("the hosts are not lent any more")

    def _hosts(self, asked: Any) -> HostMesh:
        meshes = self._state.all_meshes()
        name = asked["mesh"]
        if name is None and len(meshes) == 1:
            return next(iter(meshes.values()))
        if name not in meshes:
            raise ValueError(f"which hosts? --mesh {' or --mesh '.join(meshes)}")
        return meshes[name]

    def _on_output(self, event: OutputEvent) -> None:
        # the inbox thread
        if (hears := self._hears) is not None and event.text:
            hears(event)


def _request(stream: socket.socket) -> dict[str, Any]:
    said = b""
    while not said.endswith(b"\n") and len(said) < _MAX_LINE and (more := stream.recv(_CHUNK)):
        said += more
    try:
        asked = json.loads(said)
    except ValueError:
        asked = None
    if not isinstance(asked, dict):
        raise RemoteProtocolError("a visitor says no object")
    return asked


def _when_gone(stream: socket.socket, callback: Callable[[], object]) -> None:
    with contextlib.suppress(OSError):
        stream.recv(1)
    callback()  # of no effect where it has ended


class _Printer:
    """Says what ranks write in whole lines, each with its rank where there are several."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._partial: dict[tuple[int, str], str] = {}

    def take(self, event: OutputEvent) -> None:
        key = (event.rank, event.stream)
        *whole, rest = (self._partial.pop(key, "") + event.text).split("\n")
        if rest:
            self._partial[key] = rest
        if whole:
            label = f"[{event.rank}] " if event.size > 1 else ""
            self._send(event.stream, "".join(f"{label}{line}\n" for line in whole))

    def end(self) -> None:
        for (rank, stream), rest in self._partial.items():
            self._send(stream, f"[{rank}] {rest}\n")

    def _send(self, stream: str, text: str) -> None:
        self._say(**{"out" if stream == "stdout" else "err": text})
