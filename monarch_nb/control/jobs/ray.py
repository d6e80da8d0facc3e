"""`RayJob`: hosts that a Ray cluster gives: a placement group, with an actor on each bundle.

Rule: the cluster is there. It is joined as a driver, never started and never shut down. What runs
in a process of Ray's is one small class; the host is a process of its own below it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future as Answer
from typing import Any, Final

from monarch_nb.control.client import Client, client
from monarch_nb.control.jobs.job import JobState, JobTrait, shut_down
from monarch_nb.control.jobs.status import JobStatus, Stage
from monarch_nb.errors import LaunchError
from monarch_nb.host.launch import last_lines, read_last, with_us
from monarch_nb.meshes.proc_mesh import HostMesh, mesh_of_hosts
from monarch_nb.net import wire

_END_S: Final = 6.0
_REACH_S: Final = 10.0
_ENDED: Final = "the job was ended"
_NOT_INSTALLED: Final = "the client of Ray is not installed here. Type: pip install monarch_nb[ray]"
_NO_CLUSTER: Final = (
    "no Ray cluster is known here. Name one, RAY_ADDRESS=HOST:6379 or RayJob(address='HOST:6379'); "
    "to start one on this machine, type: ray start --head"
)


class RayJob(JobTrait):
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
    ) -> None:
        super().__init__()
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
        self._job_placed: _Placed | None = None
        self._job_hosts: dict[str, HostMesh] = {}

    def can_run(self, spec: JobTrait) -> bool:
        """Return False: the hosts have ended with the program that had them."""
        del spec
        return False

    def status(self) -> JobStatus:
        """Return where the job stands now. `reason` tells what the cluster lacks while it waits,
        and how hosts have ended."""
        asked = sum(self._meshes.values())
        placed = self._job_placed
        if placed is None:
            return JobStatus("ray", Stage.GONE, 0, asked, reason="it has no hosts; job.apply()")
        joined = placed.controller.hosts_here(placed.hosts)
        stage, reason = placed.stage(joined, self._wanted)
        return JobStatus("ray", stage, joined, asked, id=placed.id, reason=reason)

    def script(self) -> str:
        """Return the placement group that Ray is asked for, as Python has it."""
        names = ", ".join(self._names())
        bundles = f"[{self._wanted}] * {sum(self._meshes.values())}"
        return (
            f"# {names}: one actor on each bundle runs python -m monarch_nb.host.join\n"
            f"# (SPREAD where the cluster has fewer nodes than hosts)\n"
            f'placement_group({bundles}, strategy="STRICT_SPREAD", name="monarch_nb")\n'
        )

    def _names(self) -> Iterator[str]:
        for name, count in self._meshes.items():
            yield from (f"{name}[{index}]" for index in range(count))

    def _create(self, client_script: str | None) -> None:
        if client_script is not None:
            raise RuntimeError("a RayJob cannot run a client script; a LocalJob can")
        if not self._meshes:
            raise ValueError("this job has no hosts: RayJob({'trainers': 2})")
        ray = _connected(self._address)
        controller = client()
        hosts, ticket = controller.await_hosts(list(self._names()))
        line = ticket._replace(env=self._env).to_line()
        try:
            self._job_placed = _Placed(ray, controller, hosts, self._wanted)
            self._job_placed.start(line, self._runtime_env)
        except Exception as error:
            for host in hosts:
                controller.give_up_host(host, _ENDED)
            self._kill()
            raise LaunchError(f"Ray does not take the job: {_last(error)}") from error
        controller.at_close.append(self._job_placed.remove)
        for name, count in self._meshes.items():
            some, hosts = hosts[:count], hosts[count:]
            self._job_hosts[name] = mesh_of_hosts([wire.agent_id(host) for host in some])

    def _state(self) -> JobState:
        return JobState(self._job_hosts)

    def _kill(self) -> None:
        placed, self._job_placed = self._job_placed, None
        if placed is not None:
            deadline = time.monotonic() + _END_S
            placed.give_up(_ENDED)
            shut_down(self._job_hosts.values(), deadline)
            placed.end(deadline)
        self._job_hosts.clear()

    def _load_fields(self, fields: dict[str, Any]) -> None:
        super()._load_fields(fields)
        self._job_placed, self._job_hosts = None, {}


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
    """The placement group of a job, its actors, and what has become of them."""

    def __init__(
        self, ray: Any, controller: Client, hosts: Sequence[int], wanted: Mapping[str, float]
    ) -> None:
        self._ray = ray
        self.controller = controller
        self.hosts = hosts
        self._ended: dict[int, str] = {}
        self._actors: list[Any] = []
        self._answers: list[Answer[str]] = []
        nodes = [node for node in ray.nodes() if node["Alive"]]
        strategy = "STRICT_SPREAD" if len(nodes) >= len(hosts) else "SPREAD"
        bundles = [dict(wanted) for _ in hosts]
        self._group = ray.util.placement_group(bundles, strategy=strategy, name="monarch_nb")

    @property
    def id(self) -> str:
        return str(self._group.id.hex())

    def start(self, ticket: bytes, runtime_env: Mapping[str, Any]) -> None:
        """Have an actor on each bundle, as soon as there is one."""
        placed = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        kind = self._ray.remote(Seat)
        for index, host in enumerate(self.hosts):
            wanted = dict(self._group.bundle_specs[index])
            actor = kind.options(
                num_cpus=wanted.pop("CPU", 0),
                num_gpus=wanted.pop("GPU", 0),
                resources=wanted,
                runtime_env=dict(runtime_env),
                scheduling_strategy=placed(self._group, placement_group_bundle_index=index),
            ).remote()
            self._actors.append(actor)  # Ray ends those that nobody holds
            answer = actor.run.remote(index, ticket).future()
            answer.add_done_callback(functools.partial(self._over, host))
            self._answers.append(answer)

    def _over(self, host: int, answer: Answer[str]) -> None:
        # a thread of Ray's
        error = answer.exception()
        why = answer.result() if error is None else _last(error)
        if "No module named 'monarch_nb" in why:
            why += "\nInstall monarch_nb on the nodes, or name it: RayJob(runtime_env={'pip': ...})"
        self._ended[host] = why
        self.controller.give_up_host(host, why)

    def give_up(self, why: str) -> None:
        for host in self.hosts:
            self.controller.give_up_host(host, why)

    def end(self, deadline: float) -> None:
        """Wait for the end of hosts that are ending, until then of `time.monotonic()`; remove."""
        if self._record()["state"] == "CREATED":
            concurrent.futures.wait(self._answers, max(0.0, deadline - time.monotonic()))
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

    def stage(self, joined: int, wanted: Mapping[str, float]) -> tuple[Stage, str]:
        """Return where this stands while so many hosts are here, and why it is not further."""
        record = self._record()
        if record["state"] == "REMOVED":
            return (
                Stage.GONE,
                "its placement group was removed, or the connection to Ray was closed",
            )
        ended = "\n".join(dict.fromkeys(self._ended.values()))
        if len(self._ended) == len(self.hosts):
            return Stage.GONE, ended
        if record["state"] != "CREATED" and not joined:
            nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
            free = self._ray.available_resources()
            return Stage.QUEUED, why_queued(wanted, len(self.hosts), nodes, free)
        is_whole = joined + len(self._ended) >= len(self.hosts)
        return (Stage.UP if is_whole else Stage.JOINING), ended


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
