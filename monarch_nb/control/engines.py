"""The engines that give hosts, by the word behind `--on`: how the job of each is made.

Rule of the file: it is light, and a class of jobs is loaded when its engine is named. One that is
not installed says so then, and harms nobody else.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from monarch_nb.control.jobs.job import JobTrait

APPLIED: Final = "applied"
"""The engine of hosts that `monarch-nb apply` holds."""
_JOBS: Final = "monarch_nb.control.jobs"
_KUBERNETES: Final = "kubernetes.kubernetes_job"
_SPARES: Final = ("spares",)
_PARTIAL: Final = ("min-hosts",)
_SAY: Final = {
    "spares": "how many hosts are to hold no ranks",
    "min-hosts": "how many hosts are enough where the others cannot come",
}
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

    @staticmethod
    def from_json(said: Sequence[Any]) -> Wanted:
        """Return what was asked for, from a list of the fields."""
        engine, places, hosts, gpus, options, words = said
        given = tuple((name, value) for name, value in options)
        return Wanted(engine, tuple(places), hosts, gpus, given, tuple(words))

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
    command: str = ""
    """What has to be on the path."""
    package: str = ""
    """What has to be installed; `pip install "monarch_nb[NAME]"` does."""

    def missing(self) -> str:
        """Return why it cannot be used here; `""` where it can, as far as this machine knows."""
        if self.command and shutil.which(self.command) is None:
            return f"there is no {self.command} here"
        if self.package and importlib.util.find_spec(self.package) is None:
            return f"the package {self.package} is not installed"
        return ""


def make(name: str, wanted: Wanted) -> JobTrait:
    """Return a job, not applied yet. Raises `ValueError` where its class is not there, and what
    that class raises."""
    return ENGINES[wanted.engine].make(name, wanted)


def check(engine: str, options: Iterable[str], words: Sequence[str]) -> None:
    """Raise `ValueError` unless an engine takes these options, all that it needs among them, and
    words behind `--` where there are some."""
    given, known = list(options), ENGINES[engine]
    if foreign := [name for name in given if name not in known.options]:
        of = ", ".join(each for each, other in ENGINES.items() if foreign[0] in other.options)
        raise ValueError(f"--{foreign[0]} is an option of {of}, not of {engine}")
    if missing := [name for name in known.required if name not in given]:
        raise ValueError(f"--on {engine} needs --{missing[0]}")
    if words and not known.words:
        raise ValueError(f"--on {engine} takes nothing behind --, which was {words[0]!r}")


def check_places(engine: str, places: Sequence[str]) -> None:
    """Raise `ValueError` unless names of hosts are given where the engine wants them, only."""
    if ENGINES[engine].has_places and not places:
        raise ValueError(f"--on {engine} needs the names of hosts")
    if places and not ENGINES[engine].has_places:
        raise ValueError(f"--on {engine} chooses its hosts itself")


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
    spares = _number(wanted, "spares") or 0
    job: JobTrait = _class(wanted, "here", "JoiningProcesses")({name: wanted.hosts}, spares)
    return job


def _ssh(name: str, wanted: Wanted) -> JobTrait:
    python = dict(wanted.options).get("python", "python3")
    job = _class(wanted, "ssh", "SSHJob")(python, wanted.words, **_partial(wanted))
    job.add_mesh(name, list(wanted.places), spares=_number(wanted, "spares") or 0)
    made: JobTrait = job
    return made


def _slurm(name: str, wanted: Wanted) -> JobTrait:
    given = _renamed(wanted, {"time": "time_limit", "python": "python_exe"})
    job: JobTrait = _class(wanted, "slurm.slurm_job", "SlurmJob")(
        meshes={name: wanted.hosts},
        gpus_per_node=wanted.gpus or None,
        slurm_args=list(wanted.words),
        **given,
        **_spares(wanted),
        **_partial(wanted),
    )
    return job


def _kubernetes(name: str, wanted: Wanted) -> JobTrait:
    options = dict(wanted.options)
    resources = {"nvidia.com/gpu": wanted.gpus} if wanted.gpus else None
    job = _class(wanted, _KUBERNETES, "KubernetesJob")(
        namespace=options["namespace"], **_partial(wanted)
    )
    spec = _class(wanted, _KUBERNETES, "ImageSpec")(options["image"], resources=resources)
    job.add_mesh(name, num_replicas=wanted.hosts, image_spec=spec, **_spares(wanted))
    made: JobTrait = job
    return made


def _ray(name: str, wanted: Wanted) -> JobTrait:
    job: JobTrait = _class(wanted, "ray.ray_job", "RayJob")(
        {name: wanted.hosts},
        num_gpus=wanted.gpus,
        **_renamed(wanted, {}),
        **_spares(wanted),
        **_partial(wanted),
    )
    return job


def _applied(name: str, wanted: Wanted) -> JobTrait:
    held = dict(wanted.options)["job"]
    job: JobTrait = _class(wanted, "kept.held_hosts", "HeldHosts")(name, held, wanted.hosts)
    return job


def _renamed(wanted: Wanted, names: Mapping[str, str]) -> dict[str, str]:
    given = [option for option in wanted.options if option[0] not in (*_SPARES, *_PARTIAL)]
    return {names.get(name, name): value for name, value in given}


def _spares(wanted: Wanted) -> dict[str, int]:
    return {} if (given := _number(wanted, "spares")) is None else {"spares": given}


def _partial(wanted: Wanted) -> dict[str, int]:
    given = _number(wanted, "min-hosts")
    if given is not None and not 1 <= given <= wanted.hosts:
        raise ValueError(f"--min-hosts {given}: 1 to {wanted.hosts}, as so many are asked for")
    return {} if given is None else {"min_hosts": given}


def _number(wanted: Wanted, name: str) -> int | None:
    given = dict(wanted.options).get(name)
    if given is not None and not given.isdecimal():
        raise ValueError(f"--{name} {given}: {_SAY[name]}, as 1")
    return None if given is None else int(given)


ENGINES: Final[dict[str, Engine]] = {
    "processes": Engine(
        _processes,
        "%mesh up --on processes --hosts 2 --gpus 4",
        options=_SPARES,
        is_here=True,
    ),
    "ssh": Engine(
        _ssh,
        "%mesh up --on ssh:node1,node2 --gpus 8",
        options=("python", *_SPARES, *_PARTIAL),
        words="options of ssh",
        has_places=True,
        command="ssh",
    ),
    "slurm": Engine(
        _slurm,
        "%mesh up --on slurm --hosts 4 --gpus 8 --time 4:00:00 --partition h100",
        options=("time", "partition", "account", "qos", "python", *_SPARES, *_PARTIAL),
        words="options of sbatch",
        command="sbatch",
    ),
    "k8s": Engine(
        _kubernetes,
        "%mesh up --on k8s --hosts 4 --gpus 8 --namespace ml --image IMAGE",
        options=("namespace", "image", *_SPARES, *_PARTIAL),
        required=("namespace", "image"),
        package="kubernetes",
    ),
    "ray": Engine(
        _ray,
        "%mesh up --on ray --hosts 4 --gpus 8",
        options=("address", *_SPARES, *_PARTIAL),
        package="ray",
    ),
    APPLIED: Engine(_applied, "%mesh up --on NAME", options=("job",), required=("job",)),
}
"""By the word behind `--on`."""
UNTYPED: Final = ENGINES[APPLIED].options
"""Options that stand for the name of a job; nobody types them."""
NAMED: Final = tuple(name for name in ENGINES if name != APPLIED)
"""Those that people name; a job that is applied goes by its own name."""
