"""Which job is meant in a folder: the place of a job in a program's modules, kept beside what
`JobTrait.state` saves there.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Final

from monarch_nb.control.jobs.job import DEFAULT_JOB_PATH, JobTrait

_NAME: Final = "spec"
_DEFAULT: Final = "default"


def set_current_job(module_path: str) -> None:
    """Note which job programs in this folder mean, for `load_current_job`.

    Args:
        module_path: a module that can be imported, a dot, the name of a `JobTrait` in it.

    Raises:
        ValueError: for a text without a dot.

    Example:
        >>> set_current_job("my_hosts.job")                      # doctest: +SKIP
    """
    _split(module_path)
    file = _file()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(module_path)


def load_current_job() -> JobTrait:
    """Return the job that `set_current_job` has named in this folder: imports its module. Its hosts
    come with `.state()`.

    Raises:
        FileNotFoundError: none was named here.
        AttributeError: the module has no such name.
        TypeError: what stands there is no job.

    Example:
        >>> hosts = load_current_job().state().trainers          # doctest: +SKIP
    """
    file = _file()
    if not file.exists():
        raise FileNotFoundError(
            f"{file}: no job was named in this folder. Type: set_current_job('my_hosts.job')"
        )
    module, name = _split(file.read_text().strip())
    job = getattr(importlib.import_module(module), name, None)
    if job is None:
        raise AttributeError(f"module {module!r} has no job {name!r}")
    if not isinstance(job, JobTrait):
        raise TypeError(f"{module}.{name} is no job, but of type {type(job).__name__}")
    return job


def _split(module_path: str) -> tuple[str, str]:
    module, _, name = module_path.rpartition(".")
    if not module or not name:
        raise ValueError(
            f"{module_path!r} names no job: write the module, a dot, and the job's name in it, as "
            "in 'my_hosts.job'"
        )
    return module, name


def _file() -> Path:
    saved = Path(DEFAULT_JOB_PATH)
    if saved.is_symlink():  # programs of Monarch's keep several, and link the one that is meant
        return saved.parent / saved.readlink().parent / _NAME
    return saved.parent / _DEFAULT / _NAME
