"""JupyterLab, started so that the notebook of a run opens on the kernel that runs it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from monarch_nb.control.batch.run_record import RunRecord

_SERVER: Final = "monarch_nb.control.batch.attached_server"
_CLASSES: Final = {
    "contents_manager_class": "RunContents",
    "kernel_manager_class": "RunKernels",
    "kernel_websocket_connection_class": "RunConnection",
    "session_manager_class": "RunSessions",
}


def attach(run: RunRecord, options: Sequence[str]) -> NoReturn:
    """Become JupyterLab, with these options of its own besides."""
    command = [*words(run), *options]
    sys.stdout.write(f"{shlex.join(command)}\n")
    sys.stdout.flush()
    os.execv(sys.executable, command)  # noqa: S606  no shell: words


def words(run: RunRecord) -> list[str]:
    """Return the command that opens a run."""
    output = Path(run.output)
    return [
        *(sys.executable, "-m", "jupyterlab", str(output)),
        f"--ServerApp.root_dir={output.parent}",
        "--ServerApp.allow_external_kernels=True",
        f"--ServerApp.external_connection_dir={run.connections}",
        *(f"--ServerApp.{trait}={_SERVER}.{name}" for trait, name in _CLASSES.items()),
        *(f"--{name}.run={run.name}" for name in ("RunContents", "RunSessions")),
    ]
