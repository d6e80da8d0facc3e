"""Which hosts a program runs on, apart from the program: the names of Monarch's `monarch.job`.

Example:
    >>> from monarch_nb.job import ProcessJob                          # doctest: +SKIP
    >>> state = ProcessJob({"trainers": 2}).state(cached_path=None)    # doctest: +SKIP
    >>> procs = state.trainers.spawn_procs(per_host={"gpus": 4})       # doctest: +SKIP
"""

from __future__ import annotations

from monarch_nb.control.jobs.current import load_current_job, set_current_job
from monarch_nb.control.jobs.job import (
    DEFAULT_JOB_PATH,
    JobState,
    JobTrait,
    MeshAdminConfig,
    TelemetryConfig,
    job_load,
    job_loads,
)
from monarch_nb.control.jobs.kubernetes.kubernetes_job import ImageSpec, KubernetesJob
from monarch_nb.control.jobs.kubernetes.pods import KubeConfig
from monarch_nb.control.jobs.local import LocalJob
from monarch_nb.control.jobs.processes import ProcessJob, hosts_from_config
from monarch_nb.control.jobs.ray.ray_job import RayJob
from monarch_nb.control.jobs.slurm.slurm_job import SlurmJob
from monarch_nb.control.jobs.ssh import SSHJob
from monarch_nb.control.jobs.store import StoreJob
from monarch_nb.services.commands import exec_command
from monarch_nb.services.forwarding import PortForwarder
from monarch_nb.services.terminal import shell

__all__ = [
    "DEFAULT_JOB_PATH",
    "ImageSpec",
    "JobState",
    "JobTrait",
    "KubeConfig",
    "KubernetesJob",
    "LocalJob",
    "MeshAdminConfig",
    "PortForwarder",
    "ProcessJob",
    "RayJob",
    "SSHJob",
    "SlurmJob",
    "StoreJob",
    "TelemetryConfig",
    "exec_command",
    "hosts_from_config",
    "job_load",
    "job_loads",
    "load_current_job",
    "set_current_job",
    "shell",
]
