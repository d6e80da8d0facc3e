"""`JoiningProcesses`: hosts that are processes of this machine, and dial this program as hosts of
other engines do. They go by unix sockets in private folders."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from monarch_nb.control.client import Client, client
from monarch_nb.control.jobs.job import shut_down
from monarch_nb.control.jobs.joining import JoiningJob
from monarch_nb.control.jobs.status import JobStatus, Stage
from monarch_nb.host.guard import end_when_over, started_at
from monarch_nb.host.launch import read_last, with_us
from monarch_nb.net.hosts.joining import Ticket

_END_S: Final = 6.0
_LOOPBACK: Final = "tcp://127.0.0.1:0"
_COMMAND: Final = (sys.executable, "-P", "-m", "monarch_nb.host.join", "--here", "--index")


class JoiningProcesses(JoiningJob):
    """Several hosts that are processes of this machine, each with its own agent and ranks.

    Args:
        meshes: how many hosts each mesh has, by its name.
        spares: so many more hosts of each mesh, without ranks: they take the place of hosts that
            are lost when a mesh on them is healed. Without one, another process is started.

    Example:
        >>> job = JoiningProcesses({"trainers": 2})              # doctest: +SKIP
        >>> job.state(cached_path=None).trainers.sizes           # doctest: +SKIP
        {'hosts': 2}
    """

    def __init__(self, meshes: Mapping[str, int], spares: int = 0) -> None:
        super().__init__()
        self._meshes = dict(meshes)
        self._spares = dict.fromkeys(meshes, spares)
        self._job_processes: dict[int, tuple[int, int]] = {}  # by host: pid, and when it started

    def status(self) -> JobStatus:
        """Return where the job stands now: how many of its processes are here."""
        hosts = self._hosts()
        if not hosts:
            count = sum(self._meshes.values())
            return JobStatus("processes", Stage.GONE, 0, count, reason="it has no hosts")
        return self._stands_by_hosts("processes")

    def script(self) -> str:
        """Return the command that is run for each host."""
        places = [(name, at) for name, count in self._meshes.items() for at in range(count)]
        lines = [f"{shlex.join([*_COMMAND, str(at)])}  # {name} {at}\n" for name, at in places]
        return "".join(["# what lets a host join comes by standard input\n", *lines])

    def _create(self, client_script: str | None) -> None:
        if client_script is not None:
            raise RuntimeError("these hosts cannot run a client script; a LocalJob can")
        for name, count in self._meshes.items():
            places = range(count + self._spares[name])
            self._furnish(name, self._start([f"{name} {at}" for at in places]))
        self._wait(None)  # they come within a moment

    def _start(self, names: Sequence[str]) -> list[int]:
        controller = client()
        hosts, ticket = controller.await_hosts(names, _LOOPBACK)
        for index, host in enumerate(hosts):
            self._job_processes[host] = _started(controller, host, index, ticket)
        return hosts

    def _ask_again(self, lost: int) -> int:
        self._end(lost, 0.0)
        [host] = self._start([self._controller.host_called(lost)])
        return host

    def _ask_more(self, name: str, count: int, places: Sequence[str]) -> list[int]:
        del places  # all are this machine
        hosts = self._start([f"{name} {at}" for at in self._new_places(name, count)])
        for host in hosts:
            self._controller.host_ready(host).exception()
        return hosts

    def _let_go(self, hosts: Sequence[int]) -> None:
        for host in hosts:
            self._end(host, _END_S)

    def _keep(self) -> dict[str, Any]:
        return {"processes": {str(host): each for host, each in self._job_processes.items()}}

    def _have_again(self, kept: dict[str, Any]) -> None:
        found = {int(host): (pid, at) for host, (pid, at) in kept["processes"].items()}
        self._job_processes.update(found)

    def _kill(self) -> None:
        deadline = time.monotonic() + _END_S
        for host in self._job_processes:
            self._controller.give_up_host(host, "the job was ended")
        shut_down((each.mesh for each in self._job_meshes.values()), deadline)
        for host in list(self._job_processes):
            self._end(host, max(0.0, deadline - time.monotonic()))
        self._job_meshes.clear()

    def _end(self, host: int, limit_s: float) -> None:
        if (process := self._job_processes.pop(host, None)) is not None:
            end_when_over(*process, limit_s)

    def _load_fields(self, fields: dict[str, Any]) -> None:
        super()._load_fields(fields)
        self._job_processes = {}


def _started(controller: Client, host: int, index: int, ticket: Ticket) -> tuple[int, int]:
    process = subprocess.Popen(
        [*_COMMAND, str(index)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=with_us(os.environ),
        start_new_session=True,
    )
    follow = functools.partial(_follow, controller, host, process, ticket.to_line())
    threading.Thread(target=follow, name="monarch-host-process", daemon=True).start()
    return process.pid, started_at(process.pid) or 0


def _follow(controller: Client, host: int, process: subprocess.Popen[bytes], ticket: bytes) -> None:
    # at its end the wait for the host ends: one that has joined by then stays
    assert process.stdin is not None
    assert process.stderr is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as out:
        out.write(ticket)
    words = read_last(process.stderr)
    controller.give_up_host(host, f"it ended with code {process.wait()}\n{words}".rstrip())
