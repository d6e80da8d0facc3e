"""What a job is: the host meshes that a program wants, and those that it was given.

A job can be saved, so that the next run of a program finds its hosts again. Rule: what is saved is
JSON, although the name of the file is Monarch's: a folder that came from elsewhere runs nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from monarch_nb.control.jobs.status import JobStatus
from monarch_nb.errors import LaunchError
from monarch_nb.meshes.proc_mesh import HostMesh
from monarch_nb.process.futures.future import Future

DEFAULT_JOB_PATH: Final = ".monarch/job_state.pkl"
BATCH: Final = "MONARCH_BATCH_JOB"
"""Monarch's variable that tells a program: you are the client script of the job saved here."""
_FORMAT: Final = "monarch_nb job 1"
_LIVE: Final = "_job_"  # attributes that begin so are not saved
_log: Final = logging.getLogger(__name__)


@dataclasses.dataclass
class TelemetryConfig:
    """Monarch's settings of its telemetry service. Accepted; nothing is served: the live view shows
    a mesh, `monarch_nb.log` its curves, `span` and `get_meter` go to OpenTelemetry."""

    retention_secs: int = 3600
    include_dashboard: bool = False
    dashboard_port: int = 8265
    snapshot_interval_secs: float = 30.0


@dataclasses.dataclass
class MeshAdminConfig:
    """Monarch's settings of its admin server. Accepted; no server is started."""

    admin_addr: str | None = None


class JobState:
    """The hosts of a job: one `HostMesh` for each name, as attributes.

    `dashboard_url`, `admin_url`, `telemetry_url`, `query_engine` and `query_engine_client` are
    None: there is no such server.
    """

    dashboard_url: str | None = None
    admin_url: str | None = None
    telemetry_url: str | None = None
    query_engine: ClassVar[None] = None
    query_engine_client: ClassVar[None] = None

    def __init__(self, hosts: Mapping[str, HostMesh]) -> None:
        self._hosts = dict(hosts)

    def all_meshes(self) -> dict[str, HostMesh]:
        """Return all of them, by name."""
        return dict(self._hosts)

    def __getattr__(self, name: str) -> HostMesh:
        found = self.__dict__.get("_hosts", {})
        if name not in found:
            raise AttributeError(f"{name!r} is no host mesh of this job; it has {sorted(found)}")
        return found[name]  # type: ignore[no-any-return]  # `__dict__` is untyped

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._hosts})

    def __repr__(self) -> str:
        return f"JobState({self._hosts})"


class JobTrait(ABC):
    """A set of hosts that can be asked for, found again, and given back.

    A kind of job says how: `_create` gets the hosts, `_state` returns their meshes, `can_run` tells
    whether what was got by a saved job will do for another, `_kill` gives the hosts back, also what
    a `_create` has got that failed halfway.

    Example:
        >>> job = ProcessJob({"trainers": 2})                    # doctest: +SKIP
        >>> hosts = job.state(cached_path=None).trainers         # doctest: +SKIP
        >>> job.kill()                                           # doctest: +SKIP
    """

    def __init__(self) -> None:
        self._job_id: str | None = None
        self._job_found: JobTrait | None = None  # a saved one, which has the hosts

    @abstractmethod
    def _create(self, client_script: str | None) -> None: ...

    @abstractmethod
    def _state(self) -> JobState: ...

    @abstractmethod
    def can_run(self, spec: JobTrait) -> bool:
        """Tell whether the hosts of this job are there and are what `spec` wants."""

    @abstractmethod
    def _kill(self) -> None: ...

    def status(self) -> JobStatus:
        """Return where the job stands now, as its engine tells.

        Raises `RuntimeError` where nobody can tell: the hosts of such a job are there or not.
        """
        raise RuntimeError(f"a {type(self).__name__} has no states")

    def script(self) -> str:
        """Return what the engine is given: a batch script, a manifest, or commands.

        Raises `RuntimeError` where there is none.
        """
        raise RuntimeError(f"a {type(self).__name__} has no script")

    def scale(self, name: str, hosts: int, places: Sequence[str] = ()) -> HostMesh:
        """Have another number of hosts for a mesh; return all of them. Does not wait for new ones.

        More are asked for as the first were. Of fewer, the last are given back: end their ranks
        before, with `procs.resize(hosts.slice(hosts=slice(2)))`.

        Args:
            name: of the mesh.
            hosts: how many it is to have, spares aside.
            places: names of the new ones, where the engine does not choose them itself.

        Raises:
            LaunchError: the engine has no more, or refuses.
            RuntimeError: ranks are on a host that would be given back; or such a job has as many
                hosts as it has.
            ValueError: less than one host, or no mesh of this name.

        Example:
            >>> procs = procs.resize(job.scale("trainers", 6))   # doctest: +SKIP
        """
        del name, hosts, places
        raise RuntimeError(f"a {type(self).__name__} has as many hosts as it has")

    def has_enough(self) -> bool:
        """Tell whether `settle` will do: fewer hosts than were asked for are enough, and here."""
        return False

    def settle(self) -> None:
        """Wait no more: a mesh has the hosts that are here, once they are `min_hosts`.

        Raises `LaunchError` where they are fewer; nothing has changed then.
        """
        raise RuntimeError(f"a {type(self).__name__} has all its hosts or none")

    def shell_command(self, host: int) -> str:
        """Return what opens a shell on a host of this job, in a terminal; `host` is its number.

        Raises `RuntimeError` where nothing does.
        """
        del host
        raise RuntimeError("it is this machine: open a terminal here")

    def ask_to_stay(self) -> None:
        """Say, before `apply`, that its hosts are to go on without this program. Raises
        `LaunchError` where they cannot."""
        self.check_kept()

    def check_kept(self) -> None:
        """Raise `LaunchError` where its hosts cannot go on without this program."""
        raise LaunchError(f"the hosts of a {type(self).__name__} end with the program")

    def let_stay(self) -> None:  # noqa: B027  most hosts need nothing for that
        """Have its hosts stay when this program ends: they go on by themselves now. Harmless when
        repeated; needs `check_kept`."""

    def leave(self) -> None:
        """Have no hosts any more: another program has them, and `kill` is not to end them."""
        self._job_id = self._job_found = None

    def kept_hosts(self) -> list[int]:
        """Return the numbers of the hosts that go on without this program; needs `check_kept`."""
        return []

    def kept_state(self) -> dict[str, Any]:
        """Return what `go_on` takes in another program, as JSON; needs `check_kept`."""
        return {}

    def go_on(self, state: dict[str, Any]) -> None:
        """Have the hosts that the same job of another program has had, and that are here."""
        self.check_kept()
        del state

    @property
    def active(self) -> bool:
        """Tell whether it has hosts."""
        return self._job_id is not None

    @property
    def apply_id(self) -> str | None:
        """Return the id of these very hosts, also after the job was saved; None without hosts."""
        return self._job_id

    def apply(self, client_script: str | None = None) -> None:
        """Get the hosts, unless the job has them. Where that fails, or is stopped, what it got so
        far is given back.

        Args:
            client_script: a program that is to run on them by itself, where the kind of job can.
        """
        if self._job_id is None:
            try:
                self._job_id = str(uuid.uuid4())
                self._create(client_script)
            except BaseException:  # the stop button too
                self.kill()
                raise

    def state(self, cached_path: str | None = DEFAULT_JOB_PATH) -> JobState:
        """Return the host meshes. The stop button gives back the hosts that were asked for here.

        Args:
            cached_path: a job that was saved there is used if it can run this one, and killed if it
                cannot; what is got anew is saved there. None: neither. In a client script, what was
                saved is used in any case: those are the hosts that it was started for.
        """
        if self._job_id is None and cached_path is not None:
            self._take_saved(Path(cached_path))
        if self._job_id is not None:
            return (self._job_found or self)._state()
        try:
            self.apply()
            if cached_path is not None:
                self.dump(cached_path)
            return self._state()
        except KeyboardInterrupt:
            self.kill()
            raise

    def kill(self) -> None:
        """Give the hosts back, with all that runs there. Harmless when repeated."""
        if self._job_id is not None:
            (self._job_found or self)._kill()
            self._job_id = self._job_found = None

    def enable_telemetry(
        self,
        config: TelemetryConfig | None = None,
        *,
        mesh_admin_config: MeshAdminConfig | None = None,
        **settings: Any,
    ) -> Self:
        """Accept Monarch's telemetry settings, see `TelemetryConfig`; return the job."""
        del mesh_admin_config
        _ = config or TelemetryConfig(**settings)
        return self

    def enable_admin(self, config: MeshAdminConfig | None = None, **settings: Any) -> Self:
        """Accept Monarch's admin settings, see `MeshAdminConfig`; return the job."""
        _ = config or MeshAdminConfig(**settings)
        return self

    # saved

    def dump(self, filename: str) -> None:
        """Save the job; whoever loads it finds its hosts. Raises `TypeError` as `dumps`."""
        path = Path(filename).resolve()  # what a link leads to is replaced, not the link
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.dumps())

    def dumps(self) -> bytes:
        """Return the job as JSON. Raises `TypeError` where an attribute is none."""
        saved = self._job_found or self
        record = {
            "format": _FORMAT,
            "class": _name_of(type(saved)),
            "apply_id": self._job_id,
            "fields": saved._saved_fields(),
        }
        try:
            return json.dumps(record, indent=1).encode()
        except TypeError as error:
            raise TypeError(f"{type(saved).__name__} cannot be saved: {error}") from None

    def _saved_fields(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith(_LIVE)}

    def _load_fields(self, fields: dict[str, Any]) -> None:
        vars(self).update(fields)

    def _take_saved(self, path: Path) -> None:
        if not path.exists():
            return
        try:
            saved = job_load(str(path))
        except (ValueError, TypeError) as error:
            _log.warning("the job saved in %s is not used: %s", path, error)
            return
        if saved.active and (os.environ.get(BATCH) == "1" or saved.can_run(self)):
            self._job_found, self._job_id = saved, saved.apply_id
        else:
            saved.kill()  # or its hosts would be forgotten
            path.unlink(missing_ok=True)


def job_load(filename: str = DEFAULT_JOB_PATH) -> JobTrait:
    """Return the job that `dump` saved. Raises `FileNotFoundError`, and `ValueError` as
    `job_loads`."""
    return job_loads(Path(filename).read_bytes())


def job_loads(data: bytes) -> JobTrait:
    """Return the job that `dumps` gave.

    Raises `ValueError` for anything else, and for a class of jobs that was not imported here: the
    record runs and imports nothing.
    """
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        record = None
    is_job = isinstance(record, dict) and record.get("format") == _FORMAT
    fields = record.get("fields") if is_job else None
    if not isinstance(fields, dict) or any(name.startswith(_LIVE) for name in fields):
        raise ValueError("this is no job that monarch_nb has saved")
    name = str(record.get("class"))
    kind = {_name_of(kind): kind for kind in _subclasses()}.get(name)
    if kind is None:
        raise ValueError(f"it is a {name}: import that class first")
    job = kind.__new__(kind)
    JobTrait.__init__(job)
    job._job_id = record.get("apply_id")
    try:
        job._load_fields(fields)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"this {name} was not saved as it should be: {error!r}") from None
    return job


def shut_down(meshes: Iterable[HostMesh], deadline: float) -> None:
    """Shut down hosts with all that runs there; wait for it until then, of `time.monotonic()`."""
    going: list[Future[None]] = []
    for mesh in meshes:
        with contextlib.suppress(RuntimeError):  # the program has done it
            going.append(mesh.shutdown())
    for each in going:
        with contextlib.suppress(TimeoutError):
            each.get(max(0.0, deadline - time.monotonic()))


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _subclasses(kind: type[Any] = JobTrait) -> Iterator[type[JobTrait]]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)
