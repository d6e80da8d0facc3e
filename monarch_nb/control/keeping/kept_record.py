"""Which kept meshes there are: a file for each controller that keeps some, of this user alone.

Rules: a record is JSON of mode 0600 in a folder of mode 0700. It names an agent, by its number and
the time of its start, and has the key that the agent asks for: without it nobody takes over. It is
of no use once the agent has ended, and is removed by who sees that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from monarch_nb.host.guard import started_at
from monarch_nb.net.keys import key_folder
from monarch_nb.net.private import make_private, read_private, write_new

_FORMAT: Final = "monarch_nb kept meshes 1"


@dataclass(frozen=True)
class KeptMesh:
    """A mesh for people: its name and its axes."""

    name: str
    sizes: dict[str, int]


@dataclass(frozen=True)
class KeptRecord:
    """Meshes that one controller keeps on this host, and what takes them over.

    `controller` is its process id in the mesh, `controller_pid` in the system, `agent` and
    `agent_pid` are the agent's; times of starts are in clock ticks after the host's own. `config`
    are its settings. `for_s`: the meshes end so long after it has gone. `notebook`: the path of the
    notebook whose kernel it is, or was; empty where no Jupyter server has told it.
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

    @property
    def name(self) -> str:
        """Return the name of its file."""
        return Path(self.run_dir).name

    def is_alive(self) -> bool:
        return started_at(self.agent_pid) == self.agent_started

    def is_driven(self) -> bool:
        """Tell whether the controller that has written it lives."""
        return started_at(self.controller_pid) == self.controller_started

    def is_left_here(self) -> bool:
        """Tell whether an earlier kernel of this process's notebook has left them, and nobody
        drives them."""
        return bool(self.notebook) and self.notebook == own_notebook() and not self.is_driven()

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
        """Have the agent end, with all its ranks; harmless where it has."""
        if self.is_alive():
            os.kill(self.agent_pid, signal.SIGTERM)
        self.remove()

    def remove(self) -> None:
        """Forget it; harmless when repeated."""
        _file(self.name).unlink(missing_ok=True)


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
        said = json.loads(read_private(path))
        if said.pop("format") == _FORMAT:
            meshes = [KeptMesh(**each) for each in said.pop("meshes")]
            return KeptRecord(meshes=meshes, **said)
    return None


def _folder() -> Path:
    return key_folder() / "kept"


def _file(name: str) -> Path:
    return _folder() / f"{name}.json"
