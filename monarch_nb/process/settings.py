"""`configure`: settings of a process that runs already."""

from __future__ import annotations

import dataclasses
import os

from monarch_nb.config import Config
from monarch_nb.process import current


def configure(**settings: float | str) -> None:
    """Change settings of this process, and of what it starts from now on.

    Names and meanings are those of the `MONARCH_NB_*` variables, in small letters, which are set
    too. Limits of messages, `attach_s`, `cleanup_s` and `exit_s` count at once, also for ranks that
    are spawned from now on; what concerns the start of ranks, logs and the failure detector counts
    when the client starts.

    Raises `TypeError` for a name that is none.

    Example:
        >>> configure(cleanup_s=10.0)                      # doctest: +SKIP
    """
    dataclasses.replace(Config(), **settings)  # type: ignore[arg-type]  # checks the names
    for name, value in settings.items():
        os.environ[f"MONARCH_NB_{name.upper()}"] = str(value)
    Config.from_environ()  # checks the values
    runtime = current.running()
    if runtime is not None:
        proc = runtime.proc
        proc.reconfigure(dataclasses.replace(proc.config, **settings))  # type: ignore[arg-type]  # as above
