"""`RayJob`: hosts that a Ray cluster gives: a placement group, with an actor on each bundle.

Rule: the cluster is there. It is joined as a driver, never started and never shut down. What runs
in a process of Ray's is one small class; the host is a process of its own below it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from monarch_nb.control.client import client
from monarch_nb.control.jobs.job import shut_down
from monarch_nb.control.jobs.joining import JoiningJob
from monarch_nb.control.jobs.ray.groups import GROUP, Placed, last_of
from monarch_nb.control.jobs.status import JobStatus, Stage
from monarch_nb.errors import LaunchError
from monarch_nb.net import wire
from monarch_nb.net.hosts.joining import Ticket

_END_S: Final = 6.0
_REACH_S: Final = 10.0
_ENDED: Final = "the job was ended"
_ENDS: Final = (
    "Ray ends the hosts of this mesh with the kernel, as it was told nothing else when it started "
    "them. Say it then: %mesh up --on ray ... --keep 8h"
)
_NOT_INSTALLED: Final = "the client of Ray is not installed here. Type: pip install monarch_nb[ray]"
_NO_CLUSTER: Final = (
    "no Ray cluster is known here. Name one, RAY_ADDRESS=HOST:6379 or RayJob(address='HOST:6379'); "
    "to start one on this machine, type: ray start --head"
)


class RayJob(JoiningJob):
    """Hosts from a Ray cluster that is running. They end with this program, unless `ask_to_stay`
    was said before `apply`, and a mesh on them is kept.

    All hosts of a job are one placement group: they come together or wait together, each on a node
    of its own where Ray has as many. monarch_nb has to be installed on the nodes, or in the
    `runtime_env`. A ticket goes to them by Ray's own connections: a cluster whose network others
    use needs Ray's TLS.

    Args:
        meshes: how many hosts each mesh has, by its name.
        num_cpus: processors of each host, as Ray counts them.
        num_gpus: GPUs of each host.
        resources: what else Ray is to count for each host, by the names of the cluster.
        address: of the cluster; None: the one this program is connected to, else `RAY_ADDRESS`.
        runtime_env: Ray's, for the hosts.
        env: environment variables of the hosts, and so of their ranks.
        spares: so many more hosts of each mesh, without ranks: they take the place of hosts that
            are lost when a mesh on them is healed. Without one, the bundle gets a new host.
        min_hosts: so many of each mesh are enough, once the others cannot come: `state` waits for
            that, and its meshes have the hosts that came. None: all have to come.

    Raises:
        ValueError: for a mesh without hosts, and hosts that want nothing.
        LaunchError: from `apply` and `state`, where there is no client of Ray or no cluster.

    Example:
        >>> job = RayJob({"trainers": 4}, num_gpus=8)            # doctest: +SKIP
        >>> hosts = job.state(cached_path=None).trainers         # doctest: +SKIP
        >>> job.status().reason                                  # doctest: +SKIP
        'each host wants 8 GPU: 3 of 4 nodes have that'
    """

    def __init__(
        self,
        meshes: Mapping[str, int],
        *,
        num_cpus: float = 1,
        num_gpus: float = 0,
        resources: Mapping[str, float] | None = None,
        address: str | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        spares: int = 0,
        min_hosts: int | None = None,
    ) -> None:
        super().__init__(min_hosts)
        check_count("spares", spares)
        for name, count in meshes.items():
            if count < 1:
                raise ValueError(f"{name}={count}: a mesh has at least one host")
        wanted = {"CPU": num_cpus, "GPU": num_gpus, **(resources or {})}
        self._wanted = {name: amount for name, amount in wanted.items() if amount}
        if not self._wanted:
            raise ValueError("a host wants something of Ray: num_cpus=, num_gpus= or resources=")
        if address == "local":
            raise ValueError("address='local' would start a cluster; type: ray start --head")
        self._meshes = dict(meshes)
        self._address = address
        self._runtime_env = dict(runtime_env or {})
        self._env = dict(env or {})
        self._spares = dict.fromkeys(self._meshes, spares)
        self._job_placed: list[Placed] = []
        self._job_lasts = False

    def status(self) -> JobStatus:
        """Return where the job stands now. `reason` tells what the cluster lacks while it waits,
        and how hosts have ended."""
        asked = sum(self._counts().values())
        if not self._job_placed:
            return JobStatus("ray", Stage.GONE, 0, asked, reason="it has no hosts; job.apply()")
        names = ", ".join(each.id for each in self._job_placed)
        stands = (each.stage(self._wanted) for each in self._job_placed)
        return self._stands_with("ray", names, stands)

    def script(self) -> str:
        """Return the placement group that Ray is asked for, as Python has it."""
        names = [name for some in self._names().values() for name in some]
        bundles = f"[{self._wanted}] * {len(names)}"
        return (
            f"# {', '.join(names)}: one actor on each bundle runs python -m monarch_nb.host.join\n"
            f"# (SPREAD where the cluster has fewer nodes than hosts)\n"
            f'placement_group({bundles}, strategy="STRICT_SPREAD", name="{GROUP}-...")\n'
        )

    def shell_command(self, host: int) -> str:
        name = self._controller.host_name(host)
        raise RuntimeError(f"Ray opens no shell; its node is {name}")

    def _counts(self) -> dict[str, int]:
        return {name: count + self._spares.get(name, 0) for name, count in self._meshes.items()}

    def _names(self) -> dict[str, list[str]]:
        return {
            name: [f"{name}[{index}]" for index in range(count)]
            for name, count in self._counts().items()
        }

    def _create(self, client_script: str | None) -> None:
        if client_script is not None:
            raise RuntimeError("a RayJob cannot run a client script; a LocalJob can")
        if not self._meshes:
            raise ValueError("this job has no hosts: RayJob({'trainers': 2})")
        names = self._names()
        hosts = self._place([name for some in names.values() for name in some])
        for mesh, some in names.items():
            self._furnish(mesh, hosts[: len(some)])
            hosts = hosts[len(some) :]

    def _place(self, names: Sequence[str]) -> list[int]:
        hosts, ticket = client().await_hosts(names)
        try:
            self._ask_for_group(hosts, ticket)
        except Exception as error:
            for host in hosts:
                client().give_up_host(host, _ENDED)
            raise LaunchError(f"Ray does not take the job: {last_of(error)}") from error
        return hosts

    def _ask_for_group(self, hosts: Sequence[int], ticket: Ticket) -> None:
        # one more
        ray, controller = _connected(self._address), client()
        bundles = [dict(self._wanted) for _ in hosts]
        placed = Placed.asked(ray, controller, bundles, self._runtime_env, lasting=self._job_lasts)
        self._job_placed.append(placed)
        placed.start(hosts, self._line(ticket), self._runtime_env)
        controller.at_close.append(placed.close)

    def _line(self, ticket: Ticket) -> bytes:
        return ticket._replace(env=self._env).to_line()

    def _ask_again(self, lost: int) -> int:
        controller = client()
        [host], ticket = controller.await_hosts([controller.host_words(wire.agent_id(lost))])
        found = [each for each in self._job_placed if lost in each.hosts]
        try:
            if found:
                found[0].seat_again(lost, host, self._line(ticket))
            else:  # its group went with its last host, while no program had it
                self._ask_for_group([host], ticket)
        except Exception as error:  # noqa: BLE001  of Ray's; the heal goes on without it
            controller.give_up_host(host, f"Ray does not start it again: {last_of(error)}")
        return host

    def _ask_more(self, name: str, count: int, places: Sequence[str]) -> list[int]:
        if places:
            raise LaunchError("Ray chooses its nodes itself: scale without names of hosts")
        return self._place([f"{name}[{index}]" for index in self._new_places(name, count)])

    def _let_go(self, hosts: Sequence[int]) -> None:
        for placed in list(self._job_placed):
            if placed.let_go(hosts):
                placed.remove()
                self._job_placed.remove(placed)

    def _kill(self) -> None:
        placed, self._job_placed = self._job_placed, []
        deadline = time.monotonic() + _END_S
        for each in placed:
            each.give_up(_ENDED)
        shut_down((each.mesh for each in self._job_meshes.values()), deadline)
        for each in placed:
            each.end(deadline)
        self._job_meshes.clear()

    def ask_to_stay(self) -> None:
        self._job_lasts = True

    def leave(self) -> None:
        for each in self._job_placed:
            each.leave()
        self._job_placed = []
        super().leave()

    def let_stay(self) -> None:
        for each in self._job_placed:
            each.let_stay()

    def _keep(self) -> dict[str, Any]:
        if not self._job_lasts:
            raise LaunchError(_ENDS)
        ray = _connected(self._address)
        address = self._address or ray.get_runtime_context().gcs_address
        return {"address": address, "groups": [each.to_json() for each in self._job_placed]}

    def _have_again(self, kept: dict[str, Any]) -> None:
        self._address, self._job_lasts = kept["address"], True
        ray = _connected(self._address)
        for name, places in kept["groups"]:
            bundles = {int(host): bundle for host, bundle in places.items()}
            placed = Placed.found(ray, self._controller, name, bundles, self._runtime_env)
            if placed is not None:
                self._job_placed.append(placed)
                self._controller.at_close.append(placed.close)

    def _load_fields(self, fields: dict[str, Any]) -> None:
        super()._load_fields(fields)
        self._job_placed, self._job_lasts = [], False


def check_count(what: str, count: int) -> None:
    """Raise `ValueError` for less than none."""
    if count < 0:
        raise ValueError(f"{what}={count}: a mesh has none, or some")


def _connected(address: str | None) -> Any:
    # Ray's module, connected to a cluster
    try:
        import ray
        import ray.util.scheduling_strategies
    except ModuleNotFoundError:
        raise LaunchError(_NOT_INSTALLED) from None
    if not ray.is_initialized():
        at = address or os.environ.get("RAY_ADDRESS")
        if not at:
            raise LaunchError(_NO_CLUSTER)
        with _own_handlers():
            _connect(ray.init, at)
    return ray


def _connect(init: Callable[..., object], address: str) -> None:
    try:
        _knock(address)
        init(address=address, log_to_driver=False, configure_logging=False)
    except (OSError, RuntimeError, ValueError) as error:
        raise LaunchError(
            f"no Ray cluster can be had at {address}: {last_of(error)}\n"
            f"Try it in a terminal: ray status --address {address}{_token_hint()}"
        ) from error


def _token_hint() -> str:
    # since 2.60 a head asks for a token where it finds one, and its clients are not told why
    # they are turned away; Ray reads the variable once in a process
    if os.environ.get("RAY_AUTH_MODE") == "token":
        return ""
    return "\nA cluster that asks for a token wants RAY_AUTH_MODE=token, and a new kernel"


def _knock(address: str) -> None:
    # Ray itself says nothing for minutes where nobody answers
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "://" not in address:
        socket.create_connection((host, int(port)), _REACH_S).close()


@contextlib.contextmanager
def _own_handlers() -> Iterator[None]:
    # Ray puts its own in the place of what ends this program in order
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)
