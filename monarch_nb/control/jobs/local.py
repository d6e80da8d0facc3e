"""`LocalJob`: the host of this process, for a program that will ask a scheduler one day."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from monarch_nb.control.jobs.job import BATCH, DEFAULT_JOB_PATH, JobState, JobTrait
from monarch_nb.meshes.proc_mesh import this_host

_END_S: Final = 6.0


class LocalJob(JobTrait):
    """A job on the host of this process: each mesh is `this_host()`.

    Example:
        >>> LocalJob().state(cached_path=None).hosts.spawn_procs({"gpus": 2})   # doctest: +SKIP
    """

    def __init__(self, hosts: Sequence[str] = ("hosts",)) -> None:
        super().__init__()
        self._names = list(hosts)
        self._job_script: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """Return the process of the script of `apply(client_script)`.

        Raises `ValueError` without one.
        """
        if self._job_script is None:
            raise ValueError("no client script was started: job.apply(client_script=...) does")
        return self._job_script

    def can_run(self, spec: JobTrait) -> bool:
        """Return False: there is nothing to find again."""
        del spec
        return False

    def apply(self, client_script: str | None = None) -> None:
        """Do as every job; run a script beside it, which finds this job whatever it asks for. A job
        that was saved in this folder before is killed, as by `state`."""
        if client_script is None or self.active:
            super().apply()
            return
        self._take_saved(Path(DEFAULT_JOB_PATH))
        super().apply()
        self.dump(DEFAULT_JOB_PATH)
        self._run(client_script)

    def _create(self, client_script: str | None) -> None:
        del client_script  # the host is there

    def _run(self, client_script: str) -> None:
        logs = Path(".monarch/logs")
        logs.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="job_", dir=logs))
        with (folder / "stdout.log").open("wb") as out, (folder / "stderr.log").open("wb") as err:
            self._job_script = subprocess.Popen(
                [sys.executable, client_script],
                env={**os.environ, BATCH: "1"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def _state(self) -> JobState:
        return JobState({name: this_host() for name in self._names})

    def _load_fields(self, fields: dict[str, Any]) -> None:
        super()._load_fields(fields)
        self._job_script = None

    def _kill(self) -> None:
        if self._job_script is not None and self._job_script.poll() is None:
            self._job_script.terminate()
            self._job_script.wait(_END_S)
