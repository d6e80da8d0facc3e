"""`SlurmJob`: hosts from the queue of Slurm, or in an allocation that is there."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from monarch_nb.control.client import client
from monarch_nb.control.jobs.job import JobState, shut_down
from monarch_nb.control.jobs.joining import JoiningJob
from monarch_nb.control.jobs.slurm.allocation import Allocation, Launched, TimeOver
from monarch_nb.control.jobs.slurm.batch_script import (
    batch_script,
    hosts_command,
    options_of,
    output_option,
)
from monarch_nb.control.jobs.slurm.folder import JobFolder
from monarch_nb.control.jobs.slurm.submission import Own, Staying, start, submit
from monarch_nb.control.jobs.status import JobStatus, Stage
from monarch_nb.errors import LaunchError
from monarch_nb.net import wire

_END_S: Final = 6.0
_CANCEL_S: Final = 5.0
_JOB_ID: Final = re.compile(r"\d+([_+]\d+)?")
Launch = Callable[[JobFolder, int, Own], Launched]
"""Has so many hosts started, which have this folder; what ends them is given away at once."""


class SlurmJob(JoiningJob):
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
        spares: so many more nodes for each mesh, without ranks: they take the place of hosts that
            are lost when a mesh on them is healed. Without one, a host is started on its node
            again, as one more step of the job.
        min_hosts: so many of each mesh are enough, once the others cannot come or
            `job_start_timeout` is over: its meshes have the hosts that came. None: all.

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
        spares: int = 0,
        min_hosts: int | None = None,
    ) -> None:
        super().__init__(min_hosts)
        del monarch_port, out_of_cluster
        if attach_to is not None and not _JOB_ID.fullmatch(str(attach_to)):
            raise ValueError(f"attach_to={attach_to!r} is no id of a job; see yours: squeue --me")
        self._meshes: dict[str, int] = {}
        for name, count in meshes.items():
            self.add_mesh(name, count, spares)
        self._python = python_exe or sys.executable
        self._name = job_name
        self._asked_for: dict[str, str | int | bool | None] = {
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
        options_of({"job_name": job_name, **self._asked_for}, ())
        self._log_dir = log_dir
        self._limit_s = job_start_timeout
        self._attach_to = None if attach_to is None else str(attach_to)
        self._bind_to = bind_to
        self._env = dict(env or {})
        self._forget()

    def _forget(self) -> None:
        self._job_folder = self._new_folder()
        self._job_allocations: list[Allocation] = []  # the first, then those for more hosts
        self._job_hooks: list[TimeOver] = []

    def add_mesh(self, name: str, num_nodes: int, spares: int = 0) -> None:
        """Add a host mesh of so many nodes and spares, before the job is submitted. Raises
        `ValueError` for less than one node."""
        if num_nodes < 1:
            raise ValueError(f"{name}={num_nodes}: a mesh has at least one host")
        if spares < 0:
            raise ValueError(f"spares={spares}: a mesh has none, or some")
        self._meshes[name], self._spares[name] = num_nodes, spares

    def on_time_over(self, seconds: float, callback: Callable[[], object]) -> None:
        """Call `callback()` once, in a thread of ours, when the job has so many seconds left: to
        save what has to be saved. For the next job that is submitted.

        Five minutes before the end there is a warning in the log in any case.

        Example:
            >>> job.on_time_over(600, save_checkpoint)           # doctest: +SKIP
        """
        self._job_hooks.append(TimeOver(seconds, callback))

    def status(self) -> JobStatus:
        """Return where the job stands; squeue is asked, every two seconds at most. Raises
        `RuntimeError` before it was submitted."""
        if not self._job_allocations:
            raise RuntimeError("this job was not submitted yet: job.apply()")
        found = [each.status() for each in self._job_allocations]
        first = found[0]
        if not self._job_meshes:  # it was killed
            return first
        order = list(Stage)
        worst = min(found, key=lambda each: order.index(each.stage))
        place = worst if worst.stage in order[:2] else first
        place = place._replace(joined=self._count_here(), hosts=self._asked())
        if place.stage in order[:3] and (why := self._why_hopeless()) is not None:
            return place._replace(stage=Stage.GONE, reason=why)
        return place

    def script(self) -> str:
        """Return the script for sbatch; in an allocation, the command that is run there."""
        if (job := self._existing()) is not None:
            return shlex.join(self._step(job, self._job_folder, self._count()))
        return self._script(self._job_folder, self._count())

    def shell_command(self, host: int) -> str:
        [found] = [each for each in self._job_allocations if host in each.hosts]
        return f"srun --jobid={found.id} --overlap --nodelist={found.node_of(host)} --pty bash"

    def _script(self, folder: JobFolder, count: int) -> str:
        command = hosts_command(count, self._python, str(folder.ticket_file))
        return batch_script(self._options(folder, count), command)

    def _step(
        self, job: str, folder: JobFolder, count: int, where: Sequence[str] = ()
    ) -> list[str]:
        gpus = {"gpus_per_node": self._asked_for["gpus_per_node"]}
        options = [f"--jobid={job}", "--overlap", *where, *options_of(gpus, ())]
        return hosts_command(count, self._python, str(folder.ticket_file), options)

    def _options(self, folder: JobFolder, count: int) -> list[str]:
        asked = {"job_name": self._name, "nodes": count, **self._asked_for}
        return [
            *options_of(asked, ()),
            "--no-requeue",  # a second run would find the places of its hosts taken
            "--no-kill",  # the others go on where a node fails
            output_option(str(folder.output_file)),
            *self._slurm_args,
        ]

    def _count(self) -> int:
        if not self._meshes:
            raise ValueError("this job has no hosts: SlurmJob({'trainers': 2})")
        return sum(self._counts().values())

    def _counts(self) -> dict[str, int]:
        return {name: count + self._spares.get(name, 0) for name, count in self._meshes.items()}

    def _existing(self) -> str | None:
        # the allocation to use
        if self._attach_to is not None:
            return self._attach_to
        wants_another = any(
            self._asked_for[name] for name in ("partition", "account", "qos", "time")
        )
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
        names = [
            f"{name} {index}" for name, count in self._counts().items() for index in range(count)
        ]
        self._job_allocations.clear()  # of an earlier time
        hosts = self._ask(self._job_folder, names, self._launch).hosts
        for name, count in self._counts().items():
            self._furnish(name, hosts[:count])
            hosts = hosts[count:]

    def _ask(self, folder: JobFolder, names: Sequence[str], launch: Launch) -> Allocation:
        controller = client()
        following: list[Allocation] = []

        def explain(host: int, why: str, tell: Callable[[str], None]) -> None:
            following[0].explain(host, why, tell)

        hosts, ticket = controller.await_hosts(names, self._bind_to, explain)
        allocation = Allocation(controller, hosts, folder)
        following.append(allocation)
        self._job_allocations.append(allocation)
        try:
            controller.at_close.append(functools.partial(allocation.close, 1.0))
            folder.write_ticket(ticket._replace(env=self._env))
            allocation.begin(launch(folder, len(hosts), allocation.own), self._job_hooks)
        except BaseException:  # the stop button too
            allocation.end(1)
            self._job_allocations.remove(allocation)
            raise
        return allocation

    def _launch(self, folder: JobFolder, count: int, own: Own) -> Launched:
        if (job := self._existing()) is not None:
            return self._begin_step(job, (), folder, count, own)
        return self._launch_more(folder, count, own)

    def _begin_step(
        self, job: str, where: Sequence[str], folder: JobFolder, count: int, own: Own
    ) -> Launched:
        command = self._step(job, folder, count, where)
        start(command, folder.output_file, folder.ticket_file, own)
        return Launched(job, is_step=True)

    def _ask_again(self, lost: int) -> int:
        # on its node, or on one that no host of ours has
        controller = client()
        [old] = [each for each in self._job_allocations if lost in each.hosts]
        node = old.node_of(lost)
        living = [host for host in self._hosts() if controller.hosts_here([host])]
        taken = {name for host in living if (name := old.node_of(host)) is not None}
        where = [f"--nodelist={node}"] if node else [f"--exclude={','.join(sorted(taken))}"]
        launch = functools.partial(self._begin_step, old.id, where if node or taken else ())
        name = controller.host_words(wire.agent_id(lost))
        [host] = self._ask(self._new_folder(), [name], launch).hosts
        return host

    def _ask_more(self, name: str, count: int, places: Sequence[str]) -> list[int]:
        # one more job of the same options
        if places:
            raise LaunchError("Slurm chooses its nodes itself: scale without names of hosts")
        names = [f"{name} {index}" for index in self._new_places(name, count)]
        return self._ask(self._new_folder(), names, self._launch_more).hosts

    def _launch_more(self, folder: JobFolder, count: int, own: Own) -> Launched:
        script, options = self._script(folder, count), self._options(folder, count)
        return Launched(submit(script, folder.ticket_file, options, own), is_step=False)

    def _new_folder(self) -> JobFolder:
        return JobFolder(self._name, self._log_dir)

    def _keep(self) -> dict[str, Any]:
        return {"allocations": [each.to_json() for each in self._job_allocations]}

    def let_stay(self) -> None:
        for each in self._job_allocations:
            each.let_stay()

    def _have_again(self, kept: dict[str, Any]) -> None:
        for hosts, token, job, shell, is_step in kept["allocations"]:
            folder = JobFolder(self._name, self._log_dir, token)
            known = [host for host in hosts if host in self._hosts()]
            allocation = Allocation(self._controller, known, folder)
            staying = Staying(job, (shell[0], shell[1]), is_step=is_step)
            allocation.own(staying)
            allocation.begin(Launched(job, is_step), ())
            self._controller.at_close.append(functools.partial(allocation.close, 1.0))
            self._job_allocations.append(allocation)

    def _let_go(self, hosts: Sequence[int]) -> None:
        for each in self._job_allocations[:]:
            if each.let_go(hosts):
                each.end(_CANCEL_S)
                self._job_allocations.remove(each)

    def _state(self) -> JobState:
        try:
            if self._min_hosts is None:
                self._job_allocations[0].wait(self._limit_s)
            elif not self._is_settled():
                self._wait(self._limit_s)
                self.settle()
        except BaseException:  # the stop button too
            self.kill()
            raise
        return super()._state()

    def _kill(self) -> None:
        deadline = time.monotonic() + _END_S
        for each in self._job_allocations:
            each.give_up()
        shut_down((each.mesh for each in self._job_meshes.values()), deadline)
        for each in self._job_allocations:
            each.end(_CANCEL_S)
        self._job_folder = self._new_folder()
        self._job_meshes.clear()

    def _load_fields(self, fields: dict[str, Any]) -> None:
        super()._load_fields(fields)
        self._forget()
