"""`SlurmJob`: hosts from the queue of Slurm, or in an allocation that is there."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from monarch_nb.control.client import client
from monarch_nb.control.jobs.job import JobState, JobTrait, shut_down
from monarch_nb.control.jobs.slurm.allocation import Allocation, Launched, TimeOver
from monarch_nb.control.jobs.slurm.batch_script import (
    batch_script,
    hosts_command,
    options_of,
    output_option,
)
from monarch_nb.control.jobs.slurm.folder import JobFolder
from monarch_nb.control.jobs.slurm.submission import start, submit
from monarch_nb.control.jobs.status import JobStatus
from monarch_nb.errors import LaunchError
from monarch_nb.meshes.proc_mesh import HostMesh, mesh_of_hosts
from monarch_nb.net import wire

_END_S: Final = 6.0
_CANCEL_S: Final = 5.0
_JOB_ID: Final = re.compile(r"\d+([_+]\d+)?")


class SlurmJob(JobTrait):
    """Hosts from Slurm. They end with this program, however it ends, and so does a job that is
    still in the queue.

    `apply` submits one job for all meshes, `state` waits in the queue with it as long as it takes:
    each new reason of Slurm's is logged, and the stop button cancels the job. A host is one task on
    each node, and dials this program. In an allocation (`salloc`) with enough nodes it is a step of
    that, unless a partition, an account, a qos or a time limit is asked for.

    What lets hosts join is a private file in `$MONARCH_NB_HOME/jobs` (`~/.monarch_nb/jobs`), a
    folder that nodes have to share; it goes once all have joined. What hosts and Slurm write is
    beside it, and is kept where something went wrong.

    Args:
        meshes: how many hosts each mesh has, by its name.
        python_exe: the Python of the hosts, which has monarch_nb; None: this one.
        slurm_args: more options of sbatch, as `"--constraint=ib"`. They come last, so they win.
        monarch_port, out_of_cluster: accepted, as Monarch's programs give them; here hosts dial.
        job_name: as the queue shows it.
        ntasks_per_node: tasks to ask for on each node, with `cpus_per_task` each.
        time_limit: `HH:MM:SS`, or as Slurm takes it; None: what the partition has.
        partition, account, qos, mem, cpus_per_task, gpus_per_node: None: left out.
        log_dir: a folder that nodes share, for what hosts write; it is kept there.
        exclusive: whole nodes. False: the nodes may have other jobs, and a host the processors
            that were asked for.
        job_start_timeout: seconds for `state` to wait; None: no limit.
        attach_to: the id of an allocation to use.
        bind_to: `tcp://host:port` at which hosts dial this program; None: all its interfaces.
        env: environment variables of the hosts, and so of their ranks.

    Raises:
        LaunchError: from `apply`, where Slurm refuses the job; from `state`, where hosts will not
            come. With the words of Slurm and of the hosts, and what to type.
        ValueError: for a mesh without hosts, and for what is no option, or no id of a job.

    Example:
        >>> job = SlurmJob({"trainers": 4}, partition="h100", gpus_per_node=8)  # doctest: +SKIP
        >>> hosts = job.state(cached_path=None).trainers                        # doctest: +SKIP
        >>> job.kill()                                                          # doctest: +SKIP
    """

    def __init__(
        self,
        meshes: Mapping[str, int],
        python_exe: str | None = None,
        slurm_args: Sequence[str] = (),
        monarch_port: int | None = None,
        job_name: str = "monarch_job",
        ntasks_per_node: int = 1,
        time_limit: str | None = None,
        partition: str | None = None,
        log_dir: str | None = None,
        exclusive: bool = True,
        gpus_per_node: int | None = None,
        cpus_per_task: int | None = None,
        mem: str | None = None,
        job_start_timeout: float | None = None,
        account: str | None = None,
        qos: str | None = None,
        out_of_cluster: bool | None = None,
        attach_to: str | int | None = None,
        bind_to: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        del monarch_port, out_of_cluster
        if attach_to is not None and not _JOB_ID.fullmatch(str(attach_to)):
            raise ValueError(f"attach_to={attach_to!r} is no id of a job; see yours: squeue --me")
        self._meshes: dict[str, int] = {}
        for name, count in meshes.items():
            self.add_mesh(name, count)
        self._python = python_exe or sys.executable
        self._name = job_name
        self._asked: dict[str, str | int | bool | None] = {
            "ntasks_per_node": ntasks_per_node,
            "exclusive": exclusive,
            "time": time_limit,
            "partition": partition,
            "account": account,
            "qos": qos,
            "gpus_per_node": gpus_per_node,
            "cpus_per_task": cpus_per_task,
            "mem": mem,
        }
        self._slurm_args = options_of({}, slurm_args)
        options_of({"job_name": job_name, **self._asked}, ())
        self._log_dir = log_dir
        self._limit_s = job_start_timeout
        self._attach_to = None if attach_to is None else str(attach_to)
        self._bind_to = bind_to
        self._env = dict(env or {})
        self._forget()

    def _forget(self) -> None:
        self._job_folder = JobFolder(self._name, self._log_dir)
        self._job_hosts: dict[str, HostMesh] = {}
        self._job_allocation: Allocation | None = None
        self._job_hooks: list[TimeOver] = []

    def add_mesh(self, name: str, num_nodes: int) -> None:
        """Add a host mesh of so many nodes, before the job is submitted. Raises `ValueError` for
        less than one."""
        if num_nodes < 1:
            raise ValueError(f"{name}={num_nodes}: a mesh has at least one host")
        self._meshes[name] = num_nodes

    def on_time_over(self, seconds: float, callback: Callable[[], object]) -> None:
        """Call `callback()` once, in a thread of ours, when the job has so many seconds left: to
        save what has to be saved. For the next job that is submitted.

        Five minutes before the end there is a warning in the log in any case.

        Example:
            >>> job.on_time_over(600, save_checkpoint)           # doctest: +SKIP
        """
        self._job_hooks.append(TimeOver(seconds, callback))

    def can_run(self, spec: JobTrait) -> bool:
        """Return False: the hosts have ended with the program that had them."""
        del spec
        return False

    def status(self) -> JobStatus:
        """Return where the job stands; squeue is asked, every two seconds at most. Raises
        `RuntimeError` before it was submitted."""
        if self._job_allocation is None:
            raise RuntimeError("this job was not submitted yet: job.apply()")
        return self._job_allocation.status()

    def script(self) -> str:
        """Return the script for sbatch; in an allocation, the command that is run there."""
        if (job := self._existing()) is not None:
            return shlex.join(self._command(job))
        return batch_script(self._options(), self._command())

    def _options(self) -> list[str]:
        asked = {"job_name": self._name, "nodes": self._count(), **self._asked}
        return [
            *options_of(asked, ()),
            "--no-requeue",  # a second run would find the places of its hosts taken
            "--no-kill",  # the others go on where a node fails
            output_option(str(self._job_folder.output_file)),
            *self._slurm_args,
        ]

    def _command(self, job: str | None = None) -> list[str]:
        options = []
        if job is not None:
            gpus = {"gpus_per_node": self._asked["gpus_per_node"]}
            options = [f"--jobid={job}", "--overlap", *options_of(gpus, ())]
        ticket = str(self._job_folder.ticket_file)
        return hosts_command(self._count(), self._python, ticket, options)

    def _count(self) -> int:
        if not self._meshes:
            raise ValueError("this job has no hosts: SlurmJob({'trainers': 2})")
        return sum(self._meshes.values())

    def _existing(self) -> str | None:
        # the allocation to use
        if self._attach_to is not None:
            return self._attach_to
        wants_another = any(self._asked[name] for name in ("partition", "account", "qos", "time"))
        has = int(os.environ.get("SLURM_JOB_NUM_NODES", "0"))
        if wants_another or has < self._count():
            return None
        return os.environ.get("SLURM_JOB_ID")

    def _create(self, client_script: str | None) -> None:
        if client_script is not None:
            raise RuntimeError("a SlurmJob cannot run a client script; a LocalJob can")
        self._count()
        if shutil.which("squeue") is None:
            raise LaunchError("there is no Slurm here: its commands (sbatch, squeue) are not found")
        controller = client()
        following: list[Allocation] = []

        def explain(host: int, why: str, tell: Callable[[str], None]) -> None:
            following[0].explain(host, why, tell)

        names = [f"{name} {index}" for name, index in self._places()]
        hosts, ticket = controller.await_hosts(names, self._bind_to, explain)
        allocation = Allocation(controller, hosts, self._job_folder)
        following.append(allocation)
        try:
            self._job_folder.write_ticket(ticket._replace(env=self._env))
            allocation.begin(self._launch(), self._job_hooks)
        except BaseException:
            allocation.end(0)
            raise
        controller.at_close.append(functools.partial(allocation.end, 1.0))
        self._job_allocation = allocation
        self._job_hosts = dict(self._meshes_of(hosts))

    def _places(self) -> Iterator[tuple[str, int]]:
        return ((name, index) for name, count in self._meshes.items() for index in range(count))

    def _meshes_of(self, hosts: Sequence[int]) -> Iterator[tuple[str, HostMesh]]:
        rest = list(hosts)
        for name, count in self._meshes.items():
            mine, rest = rest[:count], rest[count:]
            yield name, mesh_of_hosts([wire.agent_id(host) for host in mine])

    def _launch(self) -> Launched:
        folder = self._job_folder
        if (job := self._existing()) is not None:
            keeper = start(self._command(job), folder.output_file, folder.ticket_file)
            return Launched(job, keeper, is_step=True)
        options = self._options()
        script = batch_script(options, self._command())
        job, keeper = submit(script, folder.ticket_file, options)
        return Launched(job, keeper, is_step=False)

    def _state(self) -> JobState:
        assert self._job_allocation is not None
        try:
            self._job_allocation.wait(self._limit_s)
        except BaseException:  # the stop button too
            self.kill()
            raise
        return JobState(self._job_hosts)

    def _kill(self) -> None:
        deadline = time.monotonic() + _END_S
        if (allocation := self._job_allocation) is not None:
            allocation.give_up()
            shut_down(self._job_hosts.values(), deadline)
            allocation.end(_CANCEL_S)
        self._job_folder = JobFolder(self._name, self._log_dir)
        self._job_hosts = {}

    def _load_fields(self, fields: dict[str, Any]) -> None:
        super()._load_fields(fields)
        self._forget()
