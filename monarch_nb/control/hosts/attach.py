"""Other hosts: a worker process that offers a host, and a client that attaches to it.

Rules: a host listens only where it is told to, with CURVE and an allow-list (`net/keys.py`);
whoever attaches owns what it spawns there, and when it goes, that goes. One client at a time has a
host.
"""

from __future__ import annotations

import atexit
import enum
import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final, final

from monarch_nb.config import Config
from monarch_nb.control.client import client, running_client
from monarch_nb.control.faults import exit_when_told
from monarch_nb.control.hosts.addresses import WorkerAddress
from monarch_nb.control.hosts.agents import agent_of
from monarch_nb.core.shape.extent import Extent
from monarch_nb.host import guard
from monarch_nb.host.interfaces import interface_of
from monarch_nb.host.launch import AgentBoot
from monarch_nb.host.local import LocalLauncher
from monarch_nb.host.rundir import new_run_dir
from monarch_nb.meshes.proc_mesh import HostMesh, HostsState
from monarch_nb.net import keys, wire
from monarch_nb.net.gateway import Gateway, unpack_hello
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
        self._run_dir = new_run_dir()
        self._file_limit, _ = guard.raise_file_limit()  # connections of strangers take some
        config = self._config = Config.from_environ()
        self._agent: LocalLauncher | None = None
        self._ended = threading.Event()
        self._gateway = Gateway(
            self._run_dir.path,
            0,
            config.pulse_interval_s,
            config.pulse_timeout_s,
            on_hello=self._on_hello,
            on_lost=lambda _host, _why: self._drop_agent(),
        )
        try:
            dial, bind = WorkerAddress.from_text(address or f"ipc://{self._run_dir.path}/host")
            own, allowed = keys.identity(key_folder), keys.allowed(key_folder)
            if bind is None:
                self.address = self._gateway.listen(dial, own, allowed)
            else:
                self._gateway.listen(bind, own, allowed, anywhere=True)
                self.address = dial
            self._interface = interface_of(self.address if bind is None else bind, dial)
        except BaseException:
            self.close()
            raise
        self._gateway.start()

    def wait(self) -> None:
        self._ended.wait()

    def close(self) -> None:
        """End everything on this host. Harmless when repeated."""
        self._drop_agent()
        self._gateway.close()
        self._run_dir.remove()
        self._ended.set()

    def _on_hello(self, hello: bytes) -> dict[str, object]:
        # the gateway's thread; a client was let in and gives this host its number
        found = unpack_hello(hello)
        if isinstance(found, str):
            return {"error": found}
        host, controller = found
        self._gateway.rename(host)
        launcher = self._agent = LocalLauncher()
        path, config = str(self._run_dir.path), asdict(self._config)
        boot = AgentBoot(
            path, agent_of(host), controller, os.getpid(), config,
            file_limit=self._file_limit, interface=self._interface,
        )  # fmt: skip
        launcher.launch(boot)
        threading.Thread(
            target=self._watch, args=(launcher,), name="monarch-agent", daemon=True
        ).start()
        return {"ok": True, "agent": agent_of(host), "host": socket.gethostname()}

    def _watch(self, launcher: LocalLauncher) -> None:
        if launcher.wait() == 0 and launcher is self._agent:
            self._ended.set()  # a client has shut the host down

    def _drop_agent(self) -> None:
        launcher, self._agent = self._agent, None
        if launcher is not None:
            launcher.kill()


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
) -> HostMesh:
    """Attach worker processes as one host mesh (axis `hosts`). Does not block.

    Args:
        workers: their addresses, or futures of them.
        ca: folder of the keys, as for the worker.
        service_proc_ids: accepted, as Monarch's programs give them.

    Raises:
        ValueError: no worker, or an address that is none. `.initialized` raises `RuntimeError`
            ("attach failed: ...") that names a worker which cannot be reached.
    """
    del name, service_proc_ids
    if not workers:
        raise ValueError("attach_to_workers needs the address of at least one worker")
    folder = _folder(ca, private_key)
    written = [each if isinstance(each, str) else each.get() for each in workers]
    addresses = [WorkerAddress.from_text(each).dial for each in written]
    for address in addresses:
        wire.check_address(address)
    hosts = client().attach_hosts(addresses, keys.identity(folder))
    extent = Extent(["hosts"], [len(hosts)])
    return HostMesh(HostsState([agent_of(host) for host in hosts]), extent.region.as_shape())


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
