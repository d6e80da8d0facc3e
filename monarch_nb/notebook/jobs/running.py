"""The jobs of a session, by the mesh that each was started for.

Rule of the file: a job is known from before it asks for anything until its hosts are given back,
so whatever stops the way there, it can be ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final

from monarch_nb.errors import MeshError
from monarch_nb.notebook.errors import MagicError

if TYPE_CHECKING:
    from monarch_nb.control.api import Control, JobStatus, JobTrait, Wanted

POLL_S: Final = 0.2
_COMING: Final = ("queued", "joining")
_GONE: Final = "gone"

Follow = Callable[["JobStatus"], None]


class RunningJobs:
    """Jobs by the names of their meshes."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._jobs: dict[str, JobTrait] = {}

    def start(self, name: str, wanted: Wanted, follow: Follow) -> JobTrait:
        """Ask for hosts, and wait until they are there or will not come, with what is known of
        them going to `follow`. Raises what the job raises."""
        self.end(name)  # its mesh was stopped in Python
        job = self._jobs[name] = self._control.job(name, wanted)
        job.apply()
        try:
            self.follow(job, lambda status: follow(_with_way_on(job, status)))
        except KeyboardInterrupt:
            if not job.has_enough():
                raise
            job.settle()
        return job

    def follow(self, job: JobTrait, follow: Follow) -> None:
        """Wait until hosts that were asked for are there or will not come. Raises what the job
        raises."""
        while (status := _status(job)) is not None:
            if status.stage.value == _GONE:
                job.state(cached_path=None)  # raises with more words, if the engine has them
                raise RuntimeError(status.reason or "its hosts have gone")
            follow(status)
            if status.stage.value not in _COMING:
                return
            time.sleep(POLL_S)

    def end(self, name: str) -> bool:
        """Give the hosts of a mesh back; whether it had any of its own."""
        job = self._jobs.get(name)
        if job is None:
            return False
        job.kill()
        del self._jobs[name]
        return True

    def find(self, name: str) -> JobTrait | None:
        """Return the job of a mesh; None where its ranks are on this machine."""
        return self._jobs.get(name)

    def job(self, name: str) -> JobTrait:
        """Return the job of a mesh. Raises `MagicError` where it has none."""
        if name not in self._jobs:
            raise MagicError(f"{name} has no hosts of its own: its ranks are on this machine")
        return self._jobs[name]

    def without(self, meshes: Collection[str]) -> list[str]:
        """Return the names of jobs whose mesh is none of these: it was stopped in Python."""
        return [name for name in self._jobs if name not in meshes]

    def all(self) -> Mapping[str, JobStatus | None]:
        """Return where each stands; None where nobody can tell."""
        return {name: _status_if_told(job) for name, job in self._jobs.items()}


def _with_way_on(job: JobTrait, status: JobStatus) -> JobStatus:
    if status.stage.value not in _COMING or not job.has_enough():
        return status
    first = status.reason.partition("\n")[0]
    way_on = f"the stop button goes on with {status.joined}"
    return status._replace(reason="; ".join(filter(None, [first, way_on])))


def _status(job: JobTrait) -> JobStatus | None:
    try:
        return job.status()
    except RuntimeError:
        return None


def _status_if_told(job: JobTrait) -> JobStatus | None:
    try:
        return _status(job)
    except MeshError:  # its engine does not answer
        return None
