"""Which notebooks run without a page, and how those ended that have: a folder for each run.

Rules: a folder of mode 0700 of this user's, with files of mode 0600: the record in JSON, what the
run has said, and what opens its kernel. A record names the process of the run, by its number and
the time of its start. Who lists runs removes those that are over since a week.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from monarch_nb.host.guard import started_at
from monarch_nb.net.keys import key_folder
from monarch_nb.net.private import make_private, read_record, write_new

_FORMAT: Final = "monarch_nb run 1"
_KEPT_S: Final = 7 * 86_400
RUNNING, PASSED, FAILED, STOPPED, KILLED = "running", "passed", "failed", "stopped", "killed"
CODES: Final = {PASSED: 0, FAILED: 1, STOPPED: 130, KILLED: 137}
"""What `monarch-nb run` and `follow` exit with."""


@dataclass(frozen=True)
class RunRecord:
    """A run: what it was asked for, the process that does it, and how far it is.

    `kernel`: the name of its kernelspec. `on`: options of `%mesh up`, for meshes that name no
    hosts. `cell` of `cells` runs; times are in seconds since the epoch. `said`: why it is over.
    """

    name: str
    host: str
    notebook: str
    output: str
    kernel: str
    parameters: dict[str, Any]
    on: str
    pid: int
    started: int
    began_s: float
    cell: int = 0
    cells: int = 0
    state: str = RUNNING
    said: str = ""
    ended_s: float | None = None

    @property
    def folder(self) -> Path:
        return _folder() / self.name

    @property
    def log(self) -> Path:
        """Return the file with what it has said."""
        return self.folder / "log"

    @property
    def connections(self) -> Path:
        """Return the folder in which Jupyter finds its kernel, and nothing else."""
        return self.folder / "kernel"

    def is_here(self) -> bool:
        return self.host == socket.gethostname()

    def is_alive(self) -> bool:
        """Tell whether it goes on; of another host's, as it was written there."""
        if self.state != RUNNING:
            return False
        return not self.is_here() or started_at(self.pid) == self.started

    def now(self) -> RunRecord:
        """Return it as it is by now. Raises `AuthError`, `OSError` where it has gone."""
        found = _read(self.name)
        if found.state == RUNNING and not found.is_alive():
            said = f"its process was killed while cell {found.cell} of {found.cells} ran"
            return dataclasses.replace(found, state=KILLED, said=said)
        return found

    def by_this_process(self) -> RunRecord:
        """Return it as one that this process does."""
        pid = os.getpid()
        return dataclasses.replace(self, pid=pid, started=started_at(pid) or 0)

    def write(self) -> None:
        """Keep it, in place of an older one."""
        draft = self.folder / f".record.{os.getpid()}"
        draft.unlink(missing_ok=True)
        write_new(draft, json.dumps({"format": _FORMAT, **asdict(self)}, indent=1))
        draft.replace(self.folder / "record.json")


def new_folder(notebook: Path, output: Path | None) -> tuple[str, Path]:
    """Make the folder of a new run, with an empty log; its name, and where the executed notebook
    goes: beside the notebook, under a name that nothing has, unless `output` says it. Raises
    `AuthError`."""
    make_private(key_folder())
    make_private(_folder())
    stem = re.sub(r"[^\w.-]", "-", notebook.stem).lstrip(".-") or "run"
    number = 1
    while True:
        place = output or notebook.with_name(f"{notebook.stem}.run-{number}.ipynb")
        name = f"{stem}-{number}"
        if output is not None or not place.exists():
            try:
                (_folder() / name).mkdir(mode=0o700)
                break
            except FileExistsError:
                pass
        number += 1
    write_new(_folder() / name / "log", "")
    (_folder() / name / "kernel").mkdir(mode=0o700)
    return name, place


def find(name: str) -> RunRecord | None:
    """Return a run as it is now; None where there is none of this name, or of another version of
    monarch_nb only. Raises `AuthError`."""
    if not re.fullmatch(r"[\w.-]+", name) or not (_folder() / name / "record.json").exists():
        return None
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return _read(name).now()
    return None


def all_runs() -> list[RunRecord]:
    """Return those that go on, and those that are over since less than a week, the newest first.
    Raises `AuthError`."""
    found = []
    for run in _all():
        over_s = run.ended_s or (run.folder / "record.json").stat().st_mtime
        if not run.is_alive() and time.time() - over_s > _KEPT_S:
            shutil.rmtree(run.folder)
            continue
        if run.state == KILLED:  # it has not removed what opened its kernel
            for each in run.connections.iterdir():
                each.unlink(missing_ok=True)
        found.append(run)
    return sorted(found, key=lambda run: run.began_s, reverse=True)


def _all() -> Iterator[RunRecord]:
    for path in sorted(_folder().glob("*/record.json")):
        if (run := find(path.parent.name)) is not None:
            yield run


def _read(name: str) -> RunRecord:
    path = _folder() / name / "record.json"
    found = RunRecord(**read_record(path, _FORMAT, ("pid", "started")))
    times = found.began_s, found.ended_s or 0.0
    is_whole = found.state in {RUNNING, *CODES} and all(isinstance(at, float | int) for at in times)
    if found.name != name or not is_whole:  # its folder is removed one day
        raise ValueError(f"{path} is no record of the run {name!r}")
    return found


def _folder() -> Path:
    return key_folder() / "runs"
