"""Other hosts: a worker process that offers a host, and a client that attaches to it.

Rules: a host listens only where it is told to, with CURVE and an allow-list (`net/keys.py`);
whoever attaches owns what it spawns there, and when it goes, that goes. One client at a time has a
host.
"""

from __future__ import annotations

import atexit
import enum
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, final

from monarch_nb.control.client import client, running_client
from monarch_nb.control.faults import exit_when_told
from monarch_nb.control.hosts.addresses import WorkerAddress
from monarch_nb.control.hosts.replacements import check_spares
from monarch_nb.core.wire.messages.codec import Refused
from monarch_nb.core.wire.messages.hosts import Join, Joined
from monarch_nb.host.interfaces import interface_of
from monarch_nb.host.member import HostMember
from monarch_nb.host.versions import versions, why_unfit
from monarch_nb.meshes.proc_mesh import HostMesh, mesh_of_hosts
from monarch_nb.net import keys, wire
from monarch_nb.net.hosts.handshake import Secret
from monarch_nb.net.hosts.joining import AllowList, Answer, JoinServer
from monarch_nb.net.known_hosts import Trust
from monarch_nb.process.futures.future import Future, make

DEFAULT_KEYS: Final = "trust_all_connections"  # Monarch's word; here it means: the user's own key
TRANSPORTS: Final = ("tcp", "ipc")


@final
class ChannelTransport(enum.StrEnum):
    """Monarch's names of transports; `enable_transport` says which of them are there."""

    Unix = "ipc"
    Local = "ipc://local"
    TcpWithLocalhost = "tcp://localhost"
    TcpWithHostname = "tcp://hostname"
    MetaTlsWithHostname = "metatls-hostname"
    MetaTlsWithIpV6 = "metatls"
    Tls = "tls"


class HostWorker:
    """Offers this host at an address until it is shut down; None: one in a private folder."""

    def __init__(self, address: str | None, key_folder: Path | None) -> None:
        member = self._member = HostMember(stays=True)
        self._joins: JoinServer | None = None
        try:
            dial, bind = WorkerAddress.from_text(address or f"ipc://{member.run_dir}/host")
            own, allowed = keys.identity(key_folder), AllowList(keys.allowed(key_folder))
            bound = member.listen(bind or dial, anywhere=bind is not None)
            self.address = bound[0] if bind is None else dial
            self._interface = interface_of(bound[0] if bind is None else bind, dial)
            self._addresses = list(dict.fromkeys([self.address, *bound]))
            self._joins = JoinServer(member.run_dir, own, allowed, Answer(Join, self._on_join))
        except BaseException:
            self.close()
            raise

    def wait(self) -> None:
        self._member.wait()

    def close(self) -> None:
        """End everything on this host. Harmless when repeated."""
        joins, self._joins = self._joins, None
        if joins is not None:
            joins.close()
        self._member.close()

    def _on_join(self, asked: Join) -> Joined | Refused:
        # the thread of who joins; a client was let in, and gives this host its number
        ours = versions()
        if (why := why_unfit(asked.versions, ours)) is not None:
            return Refused(why)
        self._member.leave(asked.controller, asked.instead_of)
        if self._member.has_controller:
            return Refused("another client is attached to this host; stop it first")
        secret = Secret.from_text(asked.secret)
        agent = self._member.serve(asked.host, asked.controller, secret, self._interface)
        return Joined(agent, socket.gethostname(), ours, self._addresses)


def run_worker_loop_forever(
    *,
    address: str,
    ca: str = DEFAULT_KEYS,
    private_key: str | None = None,
    service_proc_id: object = None,
) -> None:
    """Offer this host at `address` until the process ends or a client shuts the host down.

    Args:
        address: `tcp://host:port` (an interface of this host, never all), `tcp://host:fdN` (a
            listening socket that this process was given) or `ipc://path`. Also `DIAL@BIND`: others
            use the first, the second is listened on; there, every interface may be named.
        ca: folder of the keys; the default is `$MONARCH_NB_HOME` or `~/.monarch_nb`.
        private_key: not used; TLS is `NotImplementedError`. Links are CURVE.
        service_proc_id: accepted, as Monarch's programs give it; a client names its hosts itself.

    Example:
        >>> run_worker_loop_forever(address="tcp://127.0.0.1:26600")     # doctest: +SKIP
    """
    del service_proc_id
    worker = HostWorker(address, _folder(ca, private_key))
    exit_when_told()
    try:
        worker.wait()
    finally:
        worker.close()


run_worker_loop_until_shutdown = run_worker_loop_forever


def start_worker_loop_forever(
    *,
    address: str,
    ca: str = DEFAULT_KEYS,
    private_key: str | None = None,
    service_proc_id: object = None,
) -> Future[str]:
    """Do as `run_worker_loop_forever` in the background; the future gives the address that is
    listened on."""
    del service_proc_id
    worker = HostWorker(address, _folder(ca, private_key))
    exit_when_told()
    atexit.register(worker.close)
    threading.Thread(target=_serve, args=(worker,), name="monarch-worker", daemon=True).start()
    future: Future[str] = make(Future)
    future._set_result(worker.address)
    return future


def _serve(worker: HostWorker) -> None:
    worker.wait()
    worker.close()
    atexit.unregister(worker.close)


def attach_to_workers(
    *,
    workers: Sequence[str | Future[str]],
    ca: str = DEFAULT_KEYS,
    name: str | None = None,
    private_key: str | None = None,
    service_proc_ids: Sequence[object] = (),
    spares: int = 0,
) -> HostMesh:
    """Attach worker processes as one host mesh (axis `hosts`). Does not block.

    Args:
        workers: their addresses, or futures of them.
        ca: folder of the keys, as for the worker.
        service_proc_ids: accepted, as Monarch's programs give them.
        spares: so many of the last workers hold no ranks: they take the place of hosts that are
            lost when a mesh on them is healed. Without one, a worker that listens at the address of
            a lost one again does.

    Raises:
        ValueError: no worker besides the spares, or an address that is none. `.initialized` raises
            `RuntimeError` ("attach failed: ...") that names a worker which cannot be reached.
    """
    del name, service_proc_ids
    if not workers:
        raise ValueError("attach_to_workers needs the address of at least one worker")
    folder = _folder(ca, private_key)
    written = [each if isinstance(each, str) else each.get() for each in workers]
    addresses = [WorkerAddress.from_text(each).dial for each in written]
    for address in addresses:
        wire.check_address(address)
    check_spares(spares, len(addresses))
    hosts = client().attach_hosts(addresses, Trust.of(folder), spares)
    return mesh_of_hosts([wire.agent_id(host) for host in hosts[: len(hosts) - spares]])


def attach(addr: str) -> HostMesh:
    """Attach this client to one host; must come before anything else is used. See
    `attach_to_workers`."""
    if running_client() is not None:
        raise RuntimeError("attach must be called before the client is used for anything else")
    return attach_to_workers(workers=[addr])


def enable_transport(transport: str) -> None:
    """Accept a transport that is there anyway: unix sockets here, CURVE between hosts, always.

    Raises `ValueError` for a transport that is not there, `RuntimeError` once the client runs.
    """
    kind = str(transport).partition("://")[0]
    if kind not in TRANSPORTS:
        raise ValueError(
            f"transport {transport!r} is not there; links are {' and '.join(TRANSPORTS)}"
        )
    if running_client() is not None:
        raise RuntimeError("enable_transport must be called before the first context")


def _folder(ca: str, private_key: str | None) -> Path | None:
    if private_key is not None:
        raise NotImplementedError(
            "TLS is not supported; links between hosts are CURVE, see docs/security.md"
        )
    return None if ca == DEFAULT_KEYS else Path(ca)
