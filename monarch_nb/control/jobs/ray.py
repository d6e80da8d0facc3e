"""`RayJob`: hosts that a Ray cluster gives: a placement group, with an actor on each bundle.

Rule: the cluster is there. It is joined as a driver, never started and never shut down. What runs
in a process of Ray's is one small class; the host is a process of its own below it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future as Answer
from typing import Any, Final

from monarch_nb.control.client import Client, client
from monarch_nb.control.jobs.job import shut_down
from monarch_nb.control.jobs.joining import JoiningJob, may_come
from monarch_nb.control.jobs.status import JobStatus, Stage
from monarch_nb.errors import LaunchError
from monarch_nb.host.launch import last_lines, read_last, with_us
from monarch_nb.net import wire

_END_S: Final = 6.0
_REACH_S: Final = 10.0
_GROUP: Final = "monarch_nb"
_ENDED: Final = "the job was ended"
_NOT_INSTALLED: Final = "the client of Ray is not installed here. Type: pip install monarch_nb[ray]"
_NO_CLUSTER: Final = (
    "no Ray cluster is known here. Name one, RAY_ADDRESS=HOST:6379 or RayJob(address='HOST:6379'); "
    "to start one on this machine, type: ray start --head"
)


class RayJob(JoiningJob):
    """Hosts from a Ray cluster that is running. They end with this program.

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
        self._job_placed: list[_Placed] = []

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
            f'placement_group({bundles}, strategy="STRICT_SPREAD", name="{_GROUP}-...")\n'
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
        try:
            hosts = self._place([name for some in names.values() for name in some])
        except BaseException:
            self._kill()
            raise
        for mesh, some in names.items():
            self._furnish(mesh, hosts[: len(some)])
            hosts = hosts[len(some) :]

    def _place(self, names: Sequence[str]) -> list[int]:
        # one more placement group
        ray = _connected(self._address)
        controller = client()
        hosts, ticket = controller.await_hosts(names)
        try:
            placed = _Placed(ray, controller, self._wanted, len(hosts))
            self._job_placed.append(placed)
            placed.start(hosts, ticket._replace(env=self._env).to_line(), self._runtime_env)
        except Exception as error:
            for host in hosts:
                controller.give_up_host(host, _ENDED)
            raise LaunchError(f"Ray does not take the job: {_last(error)}") from error
        controller.at_close.append(placed.remove)
        return hosts

    def _ask_again(self, lost: int) -> int:
        controller = client()
        [host], ticket = controller.await_hosts([controller.host_words(wire.agent_id(lost))])
        [placed] = [each for each in self._job_placed if lost in each.hosts]
        try:
            placed.seat_again(lost, host, ticket._replace(env=self._env).to_line())
        except Exception as error:  # noqa: BLE001  of Ray's; the heal goes on without it
            controller.give_up_host(host, f"Ray does not start it again: {_last(error)}")
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

    def _load_fields(self, fields: dict[str, Any]) -> None:
        super()._load_fields(fields)
        self._job_placed = []


class Seat:
    """Runs in a process of Ray's, one on each node: it starts the host, and tells how that ended.

    The ticket is the argument of a call, which goes from process to process; what an actor is
    constructed with is kept by Ray.
    """

    def run(self, index: int, ticket: bytes) -> str:
        """Be the host of this place until it ends; return its last words."""
        join = [sys.executable, "-P", "-m", "monarch_nb.host.join", "--index", str(index)]
        host = subprocess.Popen(
            [*join, "--parent", str(os.getpid())],  # Ray ends this process without a word to it
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=with_us(os.environ),
        )
        assert host.stdin is not None
        assert host.stderr is not None
        with contextlib.suppress(BrokenPipeError), host.stdin as out:
            out.write(ticket)
        words = read_last(host.stderr)
        return f"it ended with code {host.wait()}\n{words}".strip()


class _Placed:
    """One placement group of a job, its actors by the hosts that they start, and what has become
    of them."""

    def __init__(
        self, ray: Any, controller: Client, wanted: Mapping[str, float], count: int
    ) -> None:
        self._ray = ray
        self._controller = controller
        self._bundles: dict[int, int] = {}  # by host
        self._ended: dict[int, str] = {}
        self._actors: dict[int, Any] = {}
        self._answers: dict[int, Answer[str]] = {}
        self._runtime_env: Mapping[str, Any] = {}
        nodes = [node for node in ray.nodes() if node["Alive"]]
        strategy = "STRICT_SPREAD" if len(nodes) >= count else "SPREAD"
        bundles = [dict(wanted) for _ in range(count)]
        name = f"{_GROUP}-{secrets.token_hex(4)}"  # Ray wants another one for each
        self._group = ray.util.placement_group(bundles, strategy=strategy, name=name)

    @property
    def id(self) -> str:
        return str(self._group.id.hex())

    @property
    def hosts(self) -> list[int]:
        return list(self._bundles)

    def start(self, hosts: Sequence[int], ticket: bytes, runtime_env: Mapping[str, Any]) -> None:
        """Have an actor on each bundle, as soon as there is one."""
        self._runtime_env = runtime_env
        for index, host in enumerate(hosts):
            self._seat(host, index, ticket, index)

    def seat_again(self, lost: int, host: int, ticket: bytes) -> None:
        """Have another host on the bundle of a lost one, wherever Ray has that now."""
        bundle = self._leave(lost)
        self._seat(host, bundle, ticket, 0)

    def let_go(self, hosts: Collection[int]) -> bool:
        """End the actors of these hosts, which are ending; whether the group is of no use any more.
        Ray keeps its bundles together: one alone cannot be given back."""
        gone = [host for host in self._bundles if host in hosts]
        concurrent.futures.wait([self._answers[host] for host in gone], _END_S)
        for host in gone:
            self._leave(host)
        return not self._bundles

    def _leave(self, host: int) -> int:
        actor = self._actors.pop(host)
        with contextlib.suppress(Exception):  # it has ended, in any way
            self._ray.kill(actor)
        self._ended.pop(host, None)
        self._answers.pop(host, None)
        return self._bundles.pop(host)

    def _seat(self, host: int, bundle: int, ticket: bytes, index: int) -> None:
        placed = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        wanted = dict(self._group.bundle_specs[bundle])
        self._bundles[host] = bundle
        actor = (
            self._ray.remote(Seat)
            .options(
                num_cpus=wanted.pop("CPU", 0),
                num_gpus=wanted.pop("GPU", 0),
                resources=wanted,
                runtime_env=dict(self._runtime_env),
                scheduling_strategy=placed(self._group, placement_group_bundle_index=bundle),
            )
            .remote()
        )
        self._actors[host] = actor  # Ray ends those that nobody holds
        answer = actor.run.remote(index, ticket).future()
        self._answers[host] = answer
        answer.add_done_callback(functools.partial(self._over, host))

    def _over(self, host: int, answer: Answer[str]) -> None:
        # a thread of Ray's
        error = answer.exception()
        why = answer.result() if error is None else _last(error)
        if "No module named 'monarch_nb" in why:
            why += "\nInstall monarch_nb on the nodes, or name it: RayJob(runtime_env={'pip': ...})"
        if host in self._bundles:
            self._ended[host] = why
        self._controller.give_up_host(host, why)

    def give_up(self, why: str) -> None:
        for host in self.hosts:
            self._controller.give_up_host(host, why)

    def end(self, deadline: float) -> None:
        """Wait for the end of hosts that are ending, until then of `time.monotonic()`; remove."""
        if self._record()["state"] == "CREATED":
            concurrent.futures.wait(
                list(self._answers.values()), max(0.0, deadline - time.monotonic())
            )
        self.remove()

    def remove(self) -> None:
        """Give back what Ray has set apart, with all that runs there. Harmless when repeated."""
        if self._ray.is_initialized():  # else it went with the connection
            self._ray.util.remove_placement_group(self._group)
        self._actors.clear()

    def _record(self) -> Mapping[str, Any]:
        if not self._ray.is_initialized():
            return {"state": "REMOVED"}
        found: Mapping[str, Any] = self._ray.util.placement_group_table(self._group)
        return found

    def stage(self, wanted: Mapping[str, float]) -> tuple[Stage, str]:
        """Return where this stands, and why it is not further."""
        record = self._record()
        if record["state"] == "REMOVED":
            return (
                Stage.GONE,
                "its placement group was removed, or the connection to Ray was closed",
            )
        ended = "\n".join(dict.fromkeys(self._ended.values()))
        if len(self._ended) == len(self._bundles):
            return Stage.GONE, ended
        coming = may_come(self._controller, self._bundles)
        if record["state"] == "PENDING" and len(coming) == len(self._bundles):
            nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
            free = self._ray.available_resources()
            return Stage.QUEUED, why_queued(wanted, len(self._bundles), nodes, free)
        return (Stage.JOINING if coming else Stage.UP), ended


def check_count(what: str, count: int) -> None:
    """Raise `ValueError` for less than none."""
    if count < 0:
        raise ValueError(f"{what}={count}: a mesh has none, or some")


def why_queued(
    wanted: Mapping[str, float],
    hosts: int,
    nodes: Sequence[Mapping[str, float]],
    free: Mapping[str, float],
) -> str:
    """Return why so many hosts have to wait, given what the nodes have and what is free of it."""
    each = ", ".join(f"{amount:g} {name}" for name, amount in wanted.items())
    fit = sum(all(node.get(k, 0) >= v for k, v in wanted.items()) for node in nodes)
    start = f"each host wants {each}: {fit} of {len(nodes)} nodes have that"
    short = [
        f"{free.get(name, 0):g} {name} are free, {amount * hosts:g} are wanted"
        for name, amount in wanted.items()
        if free.get(name, 0) < amount * hosts
    ]
    return "; ".join([start, *short])


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
            f"no Ray cluster can be had at {address}: {_last(error)}\n"
            f"Try it in a terminal: ray status --address {address}"
        ) from error


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


def _last(error: BaseException) -> str:
    # Ray puts ids and addresses between, each behind a tab
    said = [line for line in str(error).splitlines() if line.strip() and line[0] != "\t"]
    return last_lines("\n".join(said), 3)
