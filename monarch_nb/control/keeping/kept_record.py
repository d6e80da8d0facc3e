"""Which kept meshes there are: a file for each controller that keeps some, of this user alone.

Rules: a record is JSON of mode 0600 in a folder of mode 0700. It names an agent, by its number and
the time of its start, and has the key that the agent asks for: without it nobody takes over. It is
of no use once the agent has ended, and is removed by who sees that. One of meshes on hosts of jobs
has, beside the key, what these look for; it is removed once their time must be over.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from monarch_nb.host.guard import started_at
from monarch_nb.net.keys import KeyPair, key_folder
from monarch_nb.net.private import make_private, read_record, write_new

_FORMAT: Final = "monarch_nb kept meshes 1"
_NUMBERS: Final = ("controller_pid", "controller_started", "agent_pid", "agent_started")
TOUCH_S: Final = 60.0
_UNHEARD_S: Final = 60.0  # until hosts that hear nothing begin to count, and end


@dataclass(frozen=True)
class KeptMesh:
    """A mesh for people: its name and its axes."""

    name: str
    sizes: dict[str, int]


@dataclass(frozen=True)
class KeptJob:
    """Hosts that have joined with one ticket, by their places; `keys` is its public key."""

    id: str
    keys: str
    hosts: list[int]


@dataclass(frozen=True)
class KeptHead:
    """What another controller needs to be the head of these hosts: the key pair, what was asked to
    listen at and at what it does, and the jobs."""

    public: str
    secret: str = field(repr=False)
    listens: list[tuple[str | None, str]]
    jobs: list[KeptJob]

    @property
    def keys(self) -> KeyPair:
        return KeyPair(self.public.encode(), self.secret.encode())


@dataclass(frozen=True)
class KeptHosts:
    """Hosts of jobs that look for their controller: `head` is where, `names` are theirs by number,
    `jobs` what their jobs know of them, by mesh: `(mesh, wanted, state)`. Through the `run_dir` of
    their controller other processes reach them."""

    run_dir: str
    head: KeptHead
    names: list[tuple[int, str]]
    jobs: list[tuple[str, list[Any], dict[str, Any]]]

    @staticmethod
    def from_json(said: dict[str, Any]) -> KeptHosts:
        """Raises `KeyError`, `TypeError` and `ValueError` for what is none."""
        head = said["head"]
        head["listens"] = [(asked, at) for asked, at in head["listens"]]
        head["jobs"] = [KeptJob(**job) for job in head["jobs"]]
        names = [(number, name) for number, name in said["names"]]
        jobs = [(mesh, wanted, state) for mesh, wanted, state in said["jobs"]]
        return KeptHosts(said["run_dir"], KeptHead(**head), names, jobs)


@dataclass(frozen=True)
class KeptRecord:
    """Meshes that one controller keeps, on this host or on those of jobs, and what takes them over.

    `controller` is its process id in the mesh, `controller_pid` in the system, `agent` and
    `agent_pid` are the agent's; times of starts are in clock ticks after the host's own. `config`
    are its settings. `hosts`: those of jobs, which look for their controller on this host; then
    `run_dir` is only the folder in which meshes are written down, and no agent is meant. `for_s`:
    the meshes end so long after it has gone. `notebook`: the path of the notebook whose kernel it
    is, or was; empty where no Jupyter server has told it.
    """

    host: str
    run_dir: str
    controller: int
    controller_pid: int
    controller_started: int
    agent: int
    agent_pid: int
    agent_started: int
    key: str = dataclasses.field(repr=False)
    for_s: float
    config: dict[str, Any]
    notebook: str
    meshes: list[KeptMesh]
    hosts: KeptHosts | None = None

    @property
    def name(self) -> str:
        """Return the name of its file."""
        return Path(self.run_dir).name

    def is_alive(self) -> bool:
        """Tell whether its ranks live, as far as this host knows."""
        if self.hosts is not None:
            return self.is_driven() or time.time() < self._ends_at()
        return started_at(self.agent_pid) == self.agent_started

    def is_driven(self) -> bool:
        """Tell whether the controller that has written it lives, and is another process: this one
        has lost the hosts if it asks."""
        if self.controller_pid == os.getpid():
            return False
        return started_at(self.controller_pid) == self.controller_started

    def is_in_force(self) -> bool:
        """Tell whether its controller lives, and no other one has taken its place."""
        now = _read(_file(self.name))
        is_same = now is not None and now.controller == self.controller
        return is_same and started_at(self.controller_pid) == self.controller_started

    def is_left_here(self) -> bool:
        """Tell whether an earlier kernel of this process's notebook has left them, and nobody
        drives them."""
        return bool(self.notebook) and self.notebook == own_notebook() and not self.is_driven()

    def _ends_at(self) -> float:
        # seconds since the epoch; no earlier than the ranks do
        with contextlib.suppress(FileNotFoundError):
            return _file(self.name).stat().st_mtime + TOUCH_S + _UNHEARD_S + self.for_s
        return 0.0

    def write(self) -> None:
        """Keep it, in place of an older one. Raises `AuthError` where another user could get at
        it."""
        make_private(key_folder())
        make_private(_folder())
        draft = _folder() / f".{self.name}.{os.getpid()}"
        draft.unlink(missing_ok=True)
        write_new(draft, json.dumps({"format": _FORMAT, **asdict(self)}, indent=1))
        draft.replace(_file(self.name))

    def end(self) -> None:
        """Have the agent of this host end, with all its ranks; harmless where it has. Hosts of jobs
        are told by `ending.py`."""
        if self.hosts is None and self.is_alive():
            os.kill(self.agent_pid, signal.SIGTERM)
        self.remove()

    def remove(self) -> None:
        """Forget it; harmless when repeated."""
        _file(self.name).unlink(missing_ok=True)
        if self.hosts is not None:  # in our folder, whatever the file says
            shutil.rmtree(_folder() / self.name, ignore_errors=True)


def folder_for(name: str) -> Path:
    """Make the private folder where meshes on hosts of jobs are written down, of this name."""
    make_private(key_folder())
    make_private(_folder())
    make_private(_folder() / name)
    return _folder() / name


def touch(name: str) -> None:
    """Note that the controller of a record lives, every `TOUCH_S`."""
    with contextlib.suppress(FileNotFoundError):
        os.utime(_file(name))


def own_notebook() -> str:
    """Return the path of the notebook whose kernel this process is, or nothing."""
    return os.environ.get("JPY_SESSION_NAME", "")


def all_records() -> list[KeptRecord]:
    """Return those of this host whose ranks live, the newest first. Raises `AuthError`."""
    found = [record for path in _folder().glob("*.json") if (record := _read(path)) is not None]
    here = [record for record in found if record.host == socket.gethostname()]
    living = [record for record in here if record.is_alive()]
    for record in here:
        if record not in living:
            record.remove()
    return sorted(living, key=lambda record: record.controller_started, reverse=True)


def _read(path: Path) -> KeptRecord | None:
    with contextlib.suppress(FileNotFoundError, ValueError, TypeError, KeyError):
        said = read_record(path, _FORMAT, _NUMBERS)
        meshes = [KeptMesh(**each) for each in said.pop("meshes")]
        hosts = said.pop("hosts", None)
        found = None if hosts is None else KeptHosts.from_json(hosts)
        record = KeptRecord(meshes=meshes, hosts=found, **said)
        return record if record.name == path.stem else None
    return None


def _folder() -> Path:
    return key_folder() / "kept"


def _file(name: str) -> Path:
    return _folder() / f"{name}.json"
