"""Which jobs `monarch-nb` knows, and which one is meant: a file for each, of this user alone.

Rules: a record is JSON of mode 0600 in a folder of mode 0700, and names a process: by its number
and the time of its start. It is of no use once that has ended, and is removed by who sees that.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from monarch_nb.host.guard import started_at
from monarch_nb.net.keys import key_folder
from monarch_nb.net.private import make_private, read_record, write_new

_FORMAT: Final = "monarch_nb context 1"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CURRENT: Final = "current"


@dataclass(frozen=True)
class Record:
    """A job, and the process that holds its hosts: where that listens, what it was asked for.
    `job`: as it was saved; None where it cannot be."""

    name: str
    pid: int
    started: int
    run_dir: str
    asked: str
    job: dict[str, Any] | None

    def is_alive(self) -> bool:
        return started_at(self.pid) == self.started

    def write(self) -> None:
        """Keep it. Raises `AuthError` where another user could get at it, `FileExistsError` where
        there is one of this name."""
        _make_folder()
        write_new(_file(self.name), json.dumps({"format": _FORMAT, **asdict(self)}, indent=1))

    def remove(self) -> None:
        """Forget it, and its log if nothing is in that; harmless when repeated."""
        _file(self.name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            if not _log(self.name).stat().st_size:
                _log(self.name).unlink()


def check_name(name: str) -> None:
    """Raise `ValueError` for a text that is no name of a job here."""
    if not _NAME.fullmatch(name) or name == _CURRENT:
        raise ValueError(f"{name!r} is no name of a job: letters, digits, points and dashes")


def find(name: str) -> Record | None:
    """Return a job that lives; None where there is none of this name. Raises `AuthError`."""
    if not _file(name).exists():
        return None
    with contextlib.suppress(ValueError, TypeError, KeyError):
        found = Record(**read_record(_file(name), _FORMAT, ("pid", "started")))
        if found.is_alive():
            return found
    _file(name).unlink(missing_ok=True)
    return None


def all_records() -> list[Record]:
    """Return all jobs that live, by their names."""
    names = sorted(path.stem for path in _folder().glob("*.json"))
    return [found for name in names if (found := find(name)) is not None]


def current() -> str | None:
    """Return the name of the job that is meant where none is named; None where none was chosen."""
    file = _folder() / _CURRENT
    return file.read_text().strip() if file.exists() else None


def use(name: str) -> None:
    """Mean this job from now on."""
    _make_folder()
    new = _folder() / f"{_CURRENT}.{os.getpid()}"
    write_new(new, name)
    new.replace(_folder() / _CURRENT)


def new_log(name: str) -> Path:
    """Make the file into which the process of a job writes what goes wrong with itself."""
    _make_folder()
    log = _log(name)
    log.unlink(missing_ok=True)
    write_new(log, "")
    return log


def _make_folder() -> None:
    make_private(key_folder())  # which has keys too
    make_private(_folder())


def _folder() -> Path:
    return key_folder() / "contexts"


def _log(name: str) -> Path:
    return _folder() / f"{name}.log"


def _file(name: str) -> Path:
    return _folder() / f"{name}.json"
