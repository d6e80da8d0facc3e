"""The jobs of a session, by the mesh that each was started for.

Rule of the file: a job is known from before it asks for anything until its hosts are given back,
so whatever stops the way there, it can be ended: by the stop button of its cell, by a button of the
panel. Any thread may call.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from monarch_nb.errors import MeshError
from monarch_nb.notebook.errors import MagicError
from monarch_nb.notebook.jobs.steps import Steps

if TYPE_CHECKING:
    from monarch_nb.control.api import Control, JobStatus, JobTrait, Wanted

POLL_S: Final = 0.2
MAX_FAILURES: Final = 16
_COMING: Final = ("queued", "joining")
_GONE: Final = "gone"


State = Literal["coming", "up", "scaling", "failed"]
"""`coming`: its mesh is not up yet."""


class Cancelled(MagicError):
    """Somebody has said in the panel that hosts are not wanted any more."""


class JobSeen(NamedTuple):
    """What the panel shows of a job: what is known of it, without asking its engine."""

    number: int
    mesh: str
    """The name of its mesh; `""` of one that failed."""
    engine: str
    id: str
    """As the engine names it."""
    said: str
    """How far it has come, or why it failed."""
    state: State
    hosts: int
    """How many are asked for."""
    enough: int
    """How many are here, where those are enough to go on with; else 0."""
    ends_at: float | None
    """When its time is over, in seconds since the epoch."""


@dataclass
class _Running:
    job: JobTrait
    wanted: Wanted
    steps: Steps
    number: int
    status: JobStatus | None = None
    state: State = "coming"
    is_enough: bool = False
    """Whether somebody has said that it goes on with the hosts that are here."""
    is_too_long: bool = False
    """Whether somebody wants no more hosts than there were before."""

    def seen(self, mesh: str) -> JobSeen:
        known, engine = self.status, self.wanted.engine
        ends_at = None if known is None else known.ends_at
        joined = 0 if known is None else known.joined
        return JobSeen(
            self.number,
            mesh,
            engine,
            "" if known is None else known.id,
            self.steps.text or f"asking {engine}",
            self.state,
            self.wanted.hosts if known is None else known.hosts,
            joined if self.state == "coming" and self.job.has_enough() else 0,
            ends_at,
        )


class RunningJobs:
    """Jobs by the names of their meshes; `on_change` is called when one has come further."""

    def __init__(self, control: Control, on_change: Callable[[], None] = lambda: None) -> None:
        self._control = control
        self._on_change = on_change
        self._jobs: dict[str, _Running] = {}
        self._failures: list[JobSeen] = []
        self._numbers = itertools.count(1)

    def start(self, name: str, wanted: Wanted, steps: Steps, *, stay: bool = False) -> JobTrait:
        """Ask for hosts, and wait until they are there or will not come; `steps` say how far they
        have come; `stay`: they are to go on without the kernel. Raises what the job raises, and
        `MagicError` when it is cancelled."""
        self.end(name)  # its mesh was stopped in Python
        job = self._control.job(name, wanted)
        running = self._jobs[name] = _Running(job, wanted, steps, next(self._numbers))
        self._on_change()
        if stay:
            job.ask_to_stay()
        job.apply()
        try:
            self._follow(name, running)
        except KeyboardInterrupt:
            if not job.has_enough():
                raise
            job.settle()
        return job

    def go_on(self, name: str, job: JobTrait, wanted: Wanted) -> None:
        """Know the job of a mesh that an earlier kernel has left, whose hosts are here."""
        running = _Running(job, wanted, Steps(), next(self._numbers), state="up")
        running.steps.add("ranks", "ranks are up")
        self._jobs[name] = running
        self._on_change()

    def asked(self, name: str) -> tuple[JobTrait, Wanted] | None:
        """Return the job of a mesh and what was asked for; None where its ranks are on this
        machine."""
        running = self._jobs.get(name)
        return None if running is None else (running.job, running.wanted)

    def follow(self, name: str, steps: Steps) -> None:
        """Wait until more hosts of a job, which were asked for, are there or will not come. Raises
        as `start`."""
        running = self._jobs[name]
        running.steps, running.state, running.is_too_long = steps, "scaling", False
        self._on_change()
        self._follow(name, running)

    def come(self, name: str) -> None:
        """Take down that the ranks of a mesh are up, or that what was to come does not."""
        if (running := self._jobs.get(name)) is not None:
            running.state = "up"
            self._on_change()

    def _follow(self, name: str, running: _Running) -> None:
        job = running.job
        while True:
            status = _status(job)
            self._check_wanted(name, running)
            if status is None:
                return
            if status.stage.value == _GONE:
                job.state(cached_path=None)  # raises with more words, if the engine has them
                raise RuntimeError(status.reason or "its hosts have gone")
            if status != running.status:
                running.status = status
                running.steps.follow(_with_way_on(running, status))
                self._on_change()
            if status.stage.value not in _COMING:
                return
            if running.is_enough:
                job.settle()
                return
            time.sleep(POLL_S)

    def _check_wanted(self, name: str, running: _Running) -> None:
        if self._jobs.get(name) is not running:
            running.job.kill()  # again: it may have asked for hosts while it was cancelled
            raise Cancelled("it was cancelled")
        if running.is_too_long:
            raise Cancelled("it was cancelled")

    def end(self, name: str) -> bool:
        """Give the hosts of a mesh back; whether it had any of its own."""
        running = self._jobs.pop(name, None)
        if running is None:
            return False
        try:
            running.job.kill()
        except BaseException:
            self._jobs.setdefault(name, running)  # so that it can be ended once more
            raise
        self._on_change()
        return True

    # ------------------------------------------------------------------------ what buttons do

    def cancel(self, number: int) -> str:
        """End a job whose mesh is not up yet, ask for no more hosts of one that is, or forget a
        failure. Raises `MagicError` for what is none of these."""
        before = len(self._failures)
        self._failures = [each for each in self._failures if each.number != number]
        if len(self._failures) < before:
            self._on_change()
            return "it is not shown any more"
        name = self._numbered(number)
        running = self._jobs[name]
        if running.state == "up":
            raise MagicError(f"{name} is up. Type: %mesh down {name}")
        if running.state == "scaling":
            running.is_too_long = True
            return f"{name} stays as it is"
        self.end(name)
        return f"{name} is cancelled: its hosts are given back"

    def settle(self, number: int) -> str:
        """Go on with the hosts that are here. Raises `MagicError` where they are too few."""
        name = self._numbered(number)
        running = self._jobs[name]
        if not running.job.has_enough():
            raise MagicError(f"{name} has too few hosts to go on with")
        running.is_enough = True
        return f"{name} goes on with the hosts that are here"

    def tell_failure(self, engine: str, said: str) -> None:
        """Show in the panel why hosts did not come, until somebody has seen it."""
        failure = JobSeen(next(self._numbers), "", engine, "", said, "failed", 0, 0, None)
        self._failures = [*self._failures, failure][-MAX_FAILURES:]
        self._on_change()

    def _numbered(self, number: int) -> str:
        for name, running in list(self._jobs.items()):
            if running.number == number:
                return name
        raise MagicError("it is not there any more")

    # ------------------------------------------------------------------------- what is known

    def find(self, name: str) -> JobTrait | None:
        """Return the job of a mesh; None where its ranks are on this machine."""
        running = self._jobs.get(name)
        return None if running is None else running.job

    def job(self, name: str) -> JobTrait:
        """Return the job of a mesh. Raises `MagicError` where it has none."""
        if (job := self.find(name)) is None:
            raise MagicError(f"{name} has no hosts of its own: its ranks are on this machine")
        return job

    def without(self, meshes: Collection[str]) -> list[str]:
        """Return the names of jobs whose mesh is none of these: it was stopped in Python."""
        return [name for name in self._jobs if name not in meshes]

    def all(self) -> Mapping[str, JobStatus | None]:
        """Return where each stands; None where nobody can tell."""
        return {name: _status_if_told(each.job) for name, each in list(self._jobs.items())}

    def coming(self) -> int:
        """Count those that wait for hosts."""
        return sum(each.state in ("coming", "scaling") for each in list(self._jobs.values()))

    def seen(self) -> tuple[JobSeen, ...]:
        """Return what is known of all, and why others failed; no engine is asked."""
        return (*(each.seen(name) for name, each in list(self._jobs.items())), *self._failures)


def _with_way_on(running: _Running, status: JobStatus) -> JobStatus:
    is_for_cell = running.steps.is_of_cell  # the panel has a button that says it
    if status.stage.value not in _COMING or not is_for_cell or not running.job.has_enough():
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
