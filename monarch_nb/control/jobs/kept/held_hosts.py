"""`HeldHosts`: the hosts of a job that `monarch-nb apply` holds, for as long as this program wants.

On each of them one more host is started, which joins this program; the job's own one stays, and so
does the job.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from monarch_nb.control.client import Client, client
from monarch_nb.control.jobs.job import shut_down
from monarch_nb.control.jobs.joining import JoiningJob
from monarch_nb.control.jobs.kept import naming
from monarch_nb.control.jobs.kept.records import Record
from monarch_nb.control.jobs.kept.visiting import AskError, answer, visit
from monarch_nb.control.jobs.status import JobStatus, Stage
from monarch_nb.errors import LaunchError
from monarch_nb.net.hosts.joining import Ticket

_END_S: Final = 6.0
_ENGINE: Final = "applied"


class HeldHosts(JoiningJob):
    """The first hosts of a job that is applied.

    Args:
        mesh: its name here.
        job: the name of the job; `NAME:MESH` where it has several meshes.
        count: how many of its hosts.

    Raises:
        LaunchError: from `apply` and `state`, where there is no such job, or it has fewer hosts.

    Example:
        >>> job = HeldHosts("trainers", "default", 2)            # doctest: +SKIP
        >>> job.state(cached_path=None).trainers.sizes           # doctest: +SKIP
        {'hosts': 2}
    """

    def __init__(self, mesh: str, job: str, count: int) -> None:
        super().__init__()
        self._mesh = mesh
        self._held = job
        self._count = count
        self._job_places: dict[int, int] = {}  # by host: which one of the held job
        self._job_loans: list[_Loan] = []

    def status(self) -> JobStatus:
        """Return where the job stands now."""
        if not self._job_places:
            return JobStatus(_ENGINE, Stage.GONE, 0, self._count, reason="it has no hosts")
        return self._stands_by_hosts(_ENGINE, self._held)

    def script(self) -> str:
        """Say what is asked for."""
        return f"# the first {self._count} hosts of the job {self._held} of monarch-nb apply\n"

    def shell_command(self, host: int) -> str:
        name, _, mesh = self._held.partition(":")
        option = f" --mesh {mesh}" if mesh else ""
        return f"monarch-nb shell {self._job_places[host]} --name {name}{option}"

    def _create(self, client_script: str | None) -> None:
        if client_script is not None:
            raise RuntimeError("these hosts cannot run a client script; a LocalJob can")
        self._furnish(self._mesh, self._borrow(range(self._count)))
        self._wait(None)  # they come within a moment

    def _borrow(self, places: range) -> list[int]:
        controller = client()
        try:
            record, mesh = naming.held(self._held)
            stream = visit(record)
        except (AskError, ValueError) as error:
            raise LaunchError(str(error)) from None
        hosts, ticket = controller.await_hosts([f"{self._held} {at}" for at in places])
        self._job_places.update(zip(hosts, places, strict=True))
        self._job_loans.append(_Loan(controller, stream, record, mesh, places, hosts, ticket))
        return hosts

    def _ask_again(self, lost: int) -> int:
        at = self._job_places.pop(lost)
        [host] = self._borrow(range(at, at + 1))
        return host

    def _ask_more(self, name: str, count: int, places: Sequence[str]) -> list[int]:
        del count, places
        raise LaunchError(
            f"{name}: it has the hosts of {self._held} that were asked for. For more, type: "
            f"%mesh down {name}, then %mesh up --on {self._held}"
        )

    def _kill(self) -> None:
        deadline = time.monotonic() + _END_S
        for host in self._job_places:
            self._controller.give_up_host(host, "the job was ended")
        shut_down((each.mesh for each in self._job_meshes.values()), deadline)
        for loan in self._job_loans:
            loan.end(deadline)
        self._job_places.clear()
        self._job_loans.clear()
        self._job_meshes.clear()

    def _load_fields(self, fields: dict[str, Any]) -> None:
        super()._load_fields(fields)
        self._job_places, self._job_loans = {}, []


class _Loan:
    # One connection to who holds the job: at its end the hosts are given back

    def __init__(
        self,
        controller: Client,
        stream: socket.socket,
        record: Record,
        mesh: str | None,
        places: range,
        hosts: Sequence[int],
        ticket: Ticket,
    ) -> None:
        self._controller = controller
        self._stream = stream
        self._record = record
        self._hosts = hosts
        asked = {
            "do": "lend",
            "mesh": mesh,
            "first": places.start,
            "count": len(places),
            "ticket": ticket.to_line().decode(),
        }
        self._thread = threading.Thread(
            target=self._follow, args=(asked,), name="monarch-loan", daemon=True
        )
        self._thread.start()

    def end(self, deadline: float) -> None:
        """Wait for the end of the hosts, which were told; end them when the time is over."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._thread.join(_END_S)

    def _follow(self, asked: dict[str, Any]) -> None:
        # at its end the wait for hosts ends: those that have joined by then stay
        with self._stream:
            try:
                words: list[str] = answer(self._stream, self._record, asked)["said"]
            except (AskError, OSError) as error:
                words = [str(error)] * len(self._hosts)
        for host, said in zip(self._hosts, words, strict=True):
            self._controller.give_up_host(host, said)
