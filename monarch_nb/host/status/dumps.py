"""Where ranks are: they write it on a signal, also while C code holds their interpreter."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

from monarch_nb.core.hangs.stacks import file_name


def begin(run_dir: Path, procs: Iterable[int], send: Callable[[int, int], None]) -> None:
    """Have them write, by `send(proc, signal)`. A rank without the file does not know the
    signal, which would end it."""
    for proc in procs:
        if (path := run_dir / file_name(proc)).exists():
            os.truncate(path, 0)
            send(proc, signal.SIGRTMIN)


def texts(run_dir: Path, procs: Iterable[int]) -> dict[str, str]:
    """What they have written so far, by process id as text."""
    files = {str(proc): run_dir / file_name(proc) for proc in procs}
    return {proc: path.read_text() for proc, path in files.items() if path.exists()}


def forget(run_dir: Path, proc: int) -> None:
    """The rank has ended."""
    (run_dir / file_name(proc)).unlink(missing_ok=True)
