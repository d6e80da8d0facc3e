"""`ProcessJob`: hosts that are processes of this one, for programs that will run on several."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from monarch_nb.control.client import client
from monarch_nb.control.hosts.attach import attach_to_workers
from monarch_nb.control.jobs.job import JobState, JobTrait, shut_down
from monarch_nb.control.jobs.joining import check_scale, end_hosts
from monarch_nb.control.jobs.status import JobStatus, Stage
from monarch_nb.control.jobs.workers import COMMAND, Starting, Worker, end, let_stay
from monarch_nb.meshes.proc_mesh import HostMesh, mesh_of_hosts

_END_S: Final = 6.0  # a host ends its ranks within 5
_CLOSE_S: Final = 3.0  # for one that was not asked, or did not: it kills them


class ProcessJob(JobTrait):
    """Several hosts that are processes of this host, each with its own agent and ranks.

    The hosts end with this process, however it ends; those of a job that was saved stay until
    `kill`, without any rank once nobody is attached.

    Args:
        meshes: how many hosts each mesh has, by its name.
        env: environment variables of the hosts, and so of their ranks.
        spares: so many more hosts of each mesh, without ranks: they take the place of hosts that
            are lost when a mesh on them is healed.

    Example:
        >>> job = ProcessJob({"trainers": 2, "dataloaders": 1})  # doctest: +SKIP
        >>> job.state(cached_path=None).trainers.sizes           # doctest: +SKIP
        {'hosts': 2}
    """

    def __init__(
        self,
        meshes: Mapping[str, int],
        env: Mapping[str, str] | None = None,
        *,
        spares: int = 0,
    ) -> None:
        super().__init__()
        if spares < 0:
            raise ValueError(f"spares={spares}: a mesh has none, or some")
        for name, count in meshes.items():
            if count < 1:
                raise ValueError(f"{name}={count}: a mesh has at least one host")
        self._meshes = dict(meshes)
        self._env = dict(env or {})
        self._spares = spares
        self._workers: dict[str, list[Worker]] = {}
        self._job_attached: dict[str, HostMesh] = {}

    def can_run(self, spec: JobTrait) -> bool:
        """Tell whether `spec` wants the same hosts, and they are alive."""
        return (
            isinstance(spec, ProcessJob)
            and spec._meshes == self._meshes
            and spec._env == self._env
            and spec._spares == self._spares
            and self._are_alive()
        )

    def status(self) -> JobStatus:
        """Return where the job stands now: how many of its processes are alive."""
        alive = sum(each.is_alive() for each in self._all_workers())
        count = len(self._all_workers()) or sum(self._meshes.values())
        if not alive:
            why = "its hosts have ended" if self._workers else "it has no hosts; job.apply()"
            return JobStatus("processes", Stage.GONE, 0, count, reason=why)
        reason = f"{count - alive} of its hosts have ended" if alive < count else ""
        return JobStatus("processes", Stage.UP, alive, count, reason=reason)

    def script(self) -> str:
        """Return the command that is run for each host."""
        names = (f"{name} {at}" for name, count in self._meshes.items() for at in range(count))
        return "".join(f"{shlex.join(COMMAND)}  # {name}\n" for name in names)

    def dump(self, filename: str) -> None:
        super().dump(filename)
        for each in self._all_workers():
            let_stay(each)

    def _create(self, client_script: str | None) -> None:
        if client_script is not None:
            raise RuntimeError("a ProcessJob cannot run a client script; a LocalJob can")
        for name, count in self._meshes.items():
            self._workers[name] = self._start(count + self._spares)

    def _start(self, count: int) -> list[Worker]:
        starting = [Starting(self._env) for _ in range(count)]
        try:
            return [each.started() for each in starting]
        except BaseException:
            for each in starting:
                each.stop()
            raise

    def scale(self, name: str, hosts: int, places: Sequence[str] = ()) -> HostMesh:
        del places  # all are this machine
        check_scale(name, hosts, self._job_attached)
        mesh = self._job_attached[name]
        if hosts > len(mesh):
            more = self._start(hosts - len(mesh))
            self._workers[name] += more
            attached = attach_to_workers(workers=[each.address for each in more], name=name)
            self._job_attached[name] = mesh_of_hosts([*mesh._agents, *attached._agents])
        elif hosts < len(mesh):
            agents = mesh._agents
            end_hosts(client(), mesh, hosts)
            gone = {client().host_words(agent) for agent in agents[hosts:]}
            doomed = [each for each in self._workers[name] if each.address in gone]
            self._workers[name] = [each for each in self._workers[name] if each not in doomed]
            end(doomed, time.monotonic() + _CLOSE_S)
            self._job_attached[name] = mesh_of_hosts(agents[:hosts])
        return self._job_attached[name]

    def _state(self) -> JobState:
        if not self._are_alive():
            raise RuntimeError("hosts of this job have ended; job.kill() and apply it again")
        if not self._job_attached:
            self._job_attached = {
                name: attach_to_workers(
                    workers=[each.address for each in workers], name=name, spares=self._spares
                )
                for name, workers in self._workers.items()
            }
        return JobState(self._job_attached)

    def _kill(self) -> None:
        deadline = time.monotonic() + _END_S
        shut_down(self._job_attached.values(), deadline)
        end(self._all_workers(), time.monotonic() + _CLOSE_S)
        self._workers.clear()
        self._job_attached = {}

    def _all_workers(self) -> list[Worker]:
        return [each for workers in self._workers.values() for each in workers]

    def _are_alive(self) -> bool:
        workers = self._all_workers()
        return bool(workers) and all(each.is_alive() for each in workers)

    def _load_fields(self, fields: dict[str, Any]) -> None:
        workers = fields.pop("_workers")
        super()._load_fields({**fields, "_spares": fields.get("_spares", 0)})
        self._workers = {name: [Worker(*each) for each in some] for name, some in workers.items()}
        self._job_attached = {}


def hosts_from_config(name: str) -> HostMesh:
    """Return the hosts of this name: two processes of this host, which end with this process.

    A stand-in, as in Monarch, for programs that will get their hosts from a scheduler.
    """
    found: HostMesh = getattr(ProcessJob({name: 2}).state(cached_path=None), name)
    return found
