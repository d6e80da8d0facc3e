"""The engines that give hosts, by the word behind `--on`: how the job of each is made.

Rule of the file: it is light, and a class of jobs is loaded when its engine is named. One that is
not installed says so then, and harms nobody else.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from monarch_nb.control.jobs.job import JobTrait

_JOBS: Final = "monarch_nb.control.jobs"
_EXTRAS: Final = ("k8s", "ray")  # of the package, with the client of the engine


class Wanted(NamedTuple):
    """Hosts of an engine, as a person asks for them."""

    engine: str
    places: tuple[str, ...] = ()
    """Names of hosts, behind the word and a colon."""
    hosts: int = 1
    gpus: int = 0
    """GPUs of each host that ranks are to use."""
    options: tuple[tuple[str, str], ...] = ()
    words: tuple[str, ...] = ()
    """Options that go to the engine as they are typed, behind `--`."""

    def typed(self) -> str:
        """Return what asks for these hosts: `--on slurm --hosts 4 --time 4:00:00`."""
        places = f":{','.join(self.places)}" if self.places else f" --hosts {self.hosts}"
        given = "".join(f" --{name} {value}" for name, value in self.options)
        return f"--on {self.engine}{places}{given}"


@dataclass(frozen=True)
class Engine:
    """One engine. `make(name, wanted)` returns the job, whose one mesh has this name.

    `options`: which of those that not all engines have. `words`: what the words behind `--` are.
    """

    make: Callable[[str, Wanted], JobTrait]
    example: str
    options: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    words: str = ""
    has_places: bool = False
    is_here: bool = False
    """Its hosts are this machine."""


def make(name: str, wanted: Wanted) -> JobTrait:
    """Return a job, not applied yet. Raises `ValueError` where its class is not there, and what
    that class raises."""
    return ENGINES[wanted.engine].make(name, wanted)


def _class(wanted: Wanted, module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(f"{_JOBS}.{module}"), name)
    except ImportError as error:
        package = "monarch_nb" + (f"[{wanted.engine}]" if wanted.engine in _EXTRAS else "")
        raise ValueError(
            f"--on {wanted.engine}: {name} is not installed here ({error}). Type: "
            f'pip install --upgrade "{package}"'
        ) from None


def _processes(name: str, wanted: Wanted) -> JobTrait:
    spares = _spares(dict(wanted.options))
    job: JobTrait = _class(wanted, "processes", "ProcessJob")({name: wanted.hosts}, spares=spares)
    return job


def _ssh(name: str, wanted: Wanted) -> JobTrait:
    options = dict(wanted.options)
    job = _class(wanted, "ssh", "SSHJob")(options.get("python", "python3"), wanted.words)
    job.add_mesh(name, list(wanted.places), spares=_spares(options))
    made: JobTrait = job
    return made


def _spares(options: Mapping[str, str]) -> int:
    given = options.get("spares", "0")
    if not given.isdecimal():
        raise ValueError(f"--spares {given}: how many hosts are to hold no ranks, as 1")
    return int(given)


def _slurm(name: str, wanted: Wanted) -> JobTrait:
    given = _renamed(wanted, {"time": "time_limit", "python": "python_exe"})
    job: JobTrait = _class(wanted, "slurm.slurm_job", "SlurmJob")(
        meshes={name: wanted.hosts},
        gpus_per_node=wanted.gpus or None,
        slurm_args=list(wanted.words),
        **given,
    )
    return job


def _kubernetes(name: str, wanted: Wanted) -> JobTrait:
    options = dict(wanted.options)
    resources = {"nvidia.com/gpu": wanted.gpus} if wanted.gpus else None
    job = _class(wanted, "kubernetes", "KubernetesJob")(namespace=options["namespace"])
    spec = _class(wanted, "kubernetes", "ImageSpec")(options["image"], resources=resources)
    job.add_mesh(name, num_replicas=wanted.hosts, image_spec=spec)
    made: JobTrait = job
    return made


def _ray(name: str, wanted: Wanted) -> JobTrait:
    given = _renamed(wanted, {})
    job: JobTrait = _class(wanted, "ray", "RayJob")(
        {name: wanted.hosts}, num_gpus=wanted.gpus, **given
    )
    return job


def _renamed(wanted: Wanted, names: Mapping[str, str]) -> dict[str, str]:
    return {names.get(name, name): value for name, value in wanted.options}


ENGINES: Final[dict[str, Engine]] = {
    "processes": Engine(
        _processes,
        "%mesh up --on processes --hosts 2 --gpus 4",
        options=("spares",),
        is_here=True,
    ),
    "ssh": Engine(
        _ssh,
        "%mesh up --on ssh:node1,node2 --gpus 8",
        options=("python", "spares"),
        words="options of ssh",
        has_places=True,
    ),
    "slurm": Engine(
        _slurm,
        "%mesh up --on slurm --hosts 4 --gpus 8 --time 4:00:00 --partition h100",
        options=("time", "partition", "account", "qos", "python"),
        words="options of sbatch",
    ),
    "k8s": Engine(
        _kubernetes,
        "%mesh up --on k8s --hosts 4 --gpus 8 --namespace ml --image IMAGE",
        options=("namespace", "image"),
        required=("namespace", "image"),
    ),
    "ray": Engine(_ray, "%mesh up --on ray --hosts 4 --gpus 8", options=("address",)),
}
"""By the word behind `--on`."""
