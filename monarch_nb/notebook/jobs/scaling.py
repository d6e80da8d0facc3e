"""A mesh on more or fewer hosts than before: what `%mesh scale` does.

Rule of the file: what fails or is stopped leaves the mesh as it was, and gives new hosts back.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from monarch_nb.core.errors.folding import rank_words
from monarch_nb.core.text.units import are, count, duration
from monarch_nb.errors import MeshError
from monarch_nb.notebook.display.units import mesh_text
from monarch_nb.notebook.errors import CellInterrupted, MagicError
from monarch_nb.notebook.jobs.running import Cancelled, RunningJobs
from monarch_nb.notebook.jobs.steps import Steps
from monarch_nb.notebook.meshes import Meshes

if TYPE_CHECKING:
    from monarch_nb.control.api import Control, JobTrait, ProcMesh

HOSTS: Final = "hosts"
_KEEP: Final = "variables of {} are kept; process groups are to be made again"


@dataclass(frozen=True)
class Scaling:
    """Gives meshes of a session more hosts, or takes some away."""

    control: Control
    meshes: Meshes
    jobs: RunningJobs

    def scale(self, mesh: ProcMesh, hosts: int, places: Sequence[str], steps: Steps) -> str:
        """Have a mesh on so many hosts of its job; `places` names new ones. Returns the line that
        says so; raises `MagicError` where it cannot be."""
        name, before = mesh.name, mesh.sizes.get(HOSTS, 1)
        job = self.jobs.job(name)
        if hosts == before:
            return f"{name} has {count(hosts, 'host')} already: {mesh_text(mesh)}"
        if lost := self.control.lost(mesh):
            raise MagicError(f"{rank_words(lost)} of {name} {are(lost)} lost. Type: %mesh heal")
        if hosts < before:
            return self._fewer(job, mesh, hosts)
        with self._undone(job, name, before, steps):
            return self._more(job, mesh, hosts, places, steps)

    def _more(
        self, job: JobTrait, mesh: ProcMesh, hosts: int, places: Sequence[str], steps: Steps
    ) -> str:
        name, began = mesh.name, time.monotonic()
        job.scale(name, hosts, places)
        self.jobs.follow(name, steps)
        steps.add("ranks", "starting ranks")
        larger = self.control.resized(job, mesh, hosts)
        try:
            larger.initialized.get()
        except BaseException:
            self._keep(self.control.resized(job, larger, mesh.sizes[HOSTS]))
            raise
        took = duration(time.monotonic() - began)
        steps.add("ranks", f"ranks up in {took}")
        self._keep(larger)
        kept = _KEEP.format(rank_words(list(range(len(mesh)))))
        return f"{name} has {count(hosts, 'host')} now: {mesh_text(larger)}. {kept}"

    def _fewer(self, job: JobTrait, mesh: ProcMesh, hosts: int) -> str:
        name = mesh.name
        try:
            smaller = self.control.resized(job, mesh, hosts)
            self._keep(smaller)
            job.scale(name, hosts)
        except (MeshError, RuntimeError, ValueError) as error:
            raise MagicError(f"{name} was not scaled: {error}") from None
        ended = rank_words(list(range(len(smaller), len(mesh))))
        kept = _KEEP.format(rank_words(list(range(len(smaller)))))
        now = f"{name} has {count(hosts, 'host')} now: {mesh_text(smaller)}"
        return f"{now}. {ended} ended; {kept}"

    def _keep(self, mesh: ProcMesh) -> None:
        asked = self.meshes.asked(mesh.name)
        if asked is not None and asked.hosts is not None:
            hosts = asked.hosts._replace(hosts=mesh.sizes[HOSTS])
            asked = asked._replace(hosts=hosts)
        self.meshes.keep(mesh.name, mesh, asked)

    @contextlib.contextmanager
    def _undone(self, job: JobTrait, name: str, before: int, steps: Steps) -> Iterator[None]:
        # whatever ends it early, new hosts are given back
        try:
            yield
        except KeyboardInterrupt:
            steps.add("over", "cancelled")
            self._give_back(job, name, before)
            raise CellInterrupted(f"{name} was not scaled: it is as it was") from None
        except Cancelled:
            steps.add("over", "cancelled")
            self._give_back(job, name, before)
            raise Cancelled(f"{name} was not scaled: it is as it was") from None
        except (MeshError, RuntimeError, ValueError) as error:
            steps.add("over", "failed")
            self._give_back(job, name, before)
            raise MagicError(f"{name} was not scaled: {error}") from None
        finally:
            self.jobs.come(name)

    def _give_back(self, job: JobTrait, name: str, before: int) -> None:
        with contextlib.suppress(MeshError, RuntimeError):  # what was told already
            job.scale(name, before)
