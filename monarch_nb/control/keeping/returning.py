"""Hosts of jobs whose controller has gone: how the next one has them come back, or end, and what
they say of themselves before.

They look for it at the addresses at which the one before has listened, and take nobody for it who
has not its key pair.
"""

from __future__ import annotations

import functools
import socket
import threading
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from monarch_nb.control.keeping.kept_record import KeptHosts
from monarch_nb.core.wire.messages.codec import Refused
from monarch_nb.core.wire.messages.hosts import OVER, LetGo, Offer
from monarch_nb.core.wire.messages.keeping import Alone
from monarch_nb.errors import LaunchError
from monarch_nb.host.interfaces import reachable_at
from monarch_nb.host.rundir import new_run_dir
from monarch_nb.net import wire
from monarch_nb.net.hosts.joining import AllowList, Answer, JoinServer, ask_to_let_go
from monarch_nb.net.hosts.listener import Listener
from monarch_nb.net.loop import LoopThread

if TYPE_CHECKING:
    from monarch_nb.control.client import Client

COME_S: Final = 5.0
"""Hosts that do not come back within it are lost, for this controller."""
LET_GO_S: Final = 5.0
LOOK_IN_S: Final = 2.0
"""For hosts to come that have looked in vain for an hour; before that they come at once."""
_LOOK_S: Final = 0.05
_NOBODY: Final = (
    "none of the hosts {} has come back: no network leads from there to this machine, or their "
    "ranks have ended"
)
_MISSING: Final = f"it has not come back within {COME_S:g} s"
_SAYS_NOTHING: Final = "it has come back, and its agent does not answer"
_SILENT: Final = (
    "process {0} drives these meshes, and does not answer: end it (kill {0}), then attach again"
)


class Left(NamedTuple):
    """What is known of ranks that nobody drives, from each host that was heard; `silent` are the
    names of the others."""

    told: list[Alone]
    silent: list[str]


def ask_for(hosts: KeptHosts, asked: LetGo, driver: int) -> None:
    """Have the process that drives hosts leave them. Raises `LaunchError` where it does not."""
    addresses = [each for _, at in hosts.head.listens for each in reachable_at(at)]
    answer = ask_to_let_go(addresses, hosts.head.keys, asked, LET_GO_S)
    if answer is None:
        raise LaunchError(_SILENT.format(driver))
    if isinstance(answer, Refused):
        raise LaunchError(f"process {driver} drives these meshes: {answer.error}")
    _wait_until_free(hosts)


def _wait_until_free(hosts: KeptHosts) -> None:
    # who dials another port of this machine may have this one for a moment
    deadline = time.monotonic() + LET_GO_S
    for _, at in hosts.head.listens:
        while time.monotonic() < deadline:
            try:
                wire.listen_for_hosts(at, anywhere=True).close()
                break
            except LaunchError:
                time.sleep(_LOOK_S)


def find(client: Client, hosts: KeptHosts) -> list[int]:
    """Be the controller of these hosts; wait for them, and return those that have come; the others
    are lost. Raises `LaunchError` where another program listens in its place."""
    numbers = [host for host, _ in hosts.names]
    _wait_until_free(hosts)
    client.have_hosts_back(hosts.head, dict(hosts.names))
    deadline = time.monotonic() + COME_S
    for host in numbers:
        try:
            client.host_ready(host).exception(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            break
    for host in numbers:
        if not client.hosts_here([host]):
            client.host_not_back(host, _MISSING)
    return [host for host in numbers if client.hosts_here([host])]


def check_some(hosts: KeptHosts, found: Collection[int]) -> None:
    """Raise `LaunchError` unless some of the hosts are among those that were found."""
    if not found:
        raise LaunchError(_NOBODY.format(", ".join(name for _, name in hosts.names)))


def note_missing(client: Client, hosts: KeptHosts, found: Collection[int]) -> None:
    """Have hosts be lost, with their ranks, whose agents are not among those that were found."""
    for host, _ in hosts.names:
        if wire.agent_id(host) not in found:
            client.host_not_back(host, _SAYS_NOTHING)


def end(hosts: KeptHosts) -> list[str]:
    """Tell these hosts that they are wanted no more; return the names of those that have not asked
    in time: they end when their time is over. Raises `LaunchError` as `find`."""
    _wait_until_free(hosts)
    heard = _hear(hosts, Refused("it is wanted no more", OVER), COME_S)
    return [name for host, name in hosts.names if host not in heard]


def look_in(hosts: KeptHosts) -> Left:
    """Hear from hosts that look for a controller what their ranks do, and let them look on. Waits
    for `LOOK_IN_S` where some say nothing. Raises `LaunchError` where another program listens in
    the place of their controller."""
    heard = _hear(hosts, Refused("who listens here only asks"), LOOK_IN_S)
    told = [offered.alone for offered in heard.values() if offered.alone is not None]
    return Left(told, [name for host, name in hosts.names if host not in heard])


def _hear(hosts: KeptHosts, answer: Refused, limit_s: float) -> dict[int, Offer]:
    # what each of them has offered that has come in time
    with _Reception(hosts, answer) as reception:
        return reception.wait(limit_s)


class _Reception:
    """Gives hosts that look for a controller one answer, and takes none."""

    def __init__(self, hosts: KeptHosts, answer: Refused) -> None:
        self._given = answer
        self._missing = {host for host, _ in hosts.names}
        self._heard: dict[int, Offer] = {}
        self._all = threading.Event()
        self._run_dir = new_run_dir()
        path, head = self._run_dir.path, hosts.head
        allowed = AllowList(job.keys.encode() for job in head.jobs)
        self._joins = JoinServer(path, head.keys, allowed, Answer(Offer, self._answer))
        self._thread = LoopThread("monarch-reception")
        self._listeners: list[Listener] = []
        try:
            self._listen(at for _, at in head.listens)
        except BaseException:
            self.__exit__()
            raise

    def _listen(self, addresses: Iterable[str]) -> None:
        loop, path = self._thread.loop, self._run_dir.path
        for at in addresses:
            listener = wire.listen_for_hosts(at, anywhere=True)
            loop.call(functools.partial(self._accept, listener, path))

    def _accept(self, listener: socket.socket, path: Path) -> None:
        joins = functools.partial(wire.connect_joins, path)
        loop = self._thread.loop
        self._listeners.append(Listener(listener, loop, lambda _: None, joins))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._listeners:
            self._thread.loop.call(each.stop)
        self._joins.close()
        self._thread.close()
        self._run_dir.remove()

    def wait(self, limit_s: float) -> dict[int, Offer]:
        if self._missing:
            self._all.wait(limit_s)
        time.sleep(_LOOK_S)  # for the last answer to be written
        return dict(self._heard)

    def _answer(self, offered: Offer) -> Refused:
        # the thread of who joins
        self._heard[offered.host] = offered
        # without news it looks in again: its agent has not noticed yet that it is alone
        if self._given.kind == OVER or offered.alone is not None:
            self._missing.discard(offered.host)
        if not self._missing:
            self._all.set()
        return self._given
