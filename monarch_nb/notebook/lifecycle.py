"""How meshes come, go and are mended: what `%mesh up` and a button of the mesh view both call.

Rule of the file: each method does one thing to a mesh and returns the line that says so; what
cannot be done raises. The magics call it in the main thread, buttons in a thread of their own, so
nothing here reads which cell runs.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from monarch_nb.core.errors.folding import rank_words
from monarch_nb.core.hangs.stack_tree import Node, tree
from monarch_nb.core.shape.selection import check_ranks
from monarch_nb.core.text.units import are, duration
from monarch_nb.errors import MeshError
from monarch_nb.notebook.cells import past_cells
from monarch_nb.notebook.cells.auto_transform import AutoTransform
from monarch_nb.notebook.client_link import ClientLink
from monarch_nb.notebook.display.units import mesh_text
from monarch_nb.notebook.errors import CellInterrupted, MagicError
from monarch_nb.notebook.jobs.running import Cancelled, RunningJobs
from monarch_nb.notebook.jobs.steps import Steps
from monarch_nb.notebook.meshes import NO_MESH, Asked, Meshes
from monarch_nb.notebook.output.router import OutputRouter

if TYPE_CHECKING:
    from monarch_nb.control.api import Control, ProcMesh, Wanted

STOP_S: Final = 10.0
CANCELLED: Final = "cancelled"
POLL_S: Final = 0.005

There = Literal["keep", "replace", "new"]
"""What becomes of a mesh that is up when another one is asked for."""


class _How(NamedTuple):
    steps: Steps
    stay: bool
    """Its hosts are to go on without the kernel."""


@dataclass(frozen=True)
class Lifecycle:
    """Of the meshes of a session."""

    control: Control
    meshes: Meshes
    link: ClientLink
    output: OutputRouter
    auto: AutoTransform
    jobs: RunningJobs

    def up(
        self,
        asked: Asked,
        name: str | None,
        there: There = "keep",
        steps: Steps | None = None,
        kept_s: float = 0.0,
    ) -> str:
        """Bring up a mesh; it becomes the current one, and a variable of its name. `steps` say how
        far its hosts have come; `kept_s`: it outlives the kernel by so long, or not at all.

        Where one is there already: keep it if it is the same, replace it, or start a new one.
        Raises `MagicError` for another one that nobody wants to lose by accident.
        """
        said = self._up(asked, name, there, _How(steps or Steps(), stay=kept_s > 0))
        if kept_s:
            mesh = self.whole_mesh(None)
            self.control.keep(mesh, kept_s, self.jobs.asked(mesh.name))
            said += f" It is kept for {duration(kept_s)} without the kernel."
        return said

    def _up(self, asked: Asked, name: str | None, there: There, how: _How) -> str:
        found = None if there == "new" else self.meshes.found(asked, name)
        if found is None:
            return self._start(asked, name, how)
        old, is_same = found
        if there == "replace":
            self.down([self.whole_mesh(old)])
            return self._start(asked, old, how)
        if is_same:
            return self._is_there(old)
        raise MagicError(_in_the_way(self.whole_mesh(old), asked, is_named=name is not None))

    def _is_there(self, name: str) -> str:
        mesh = self.whole_mesh(name)
        self.meshes.use(name)
        said = f"{name} is up already: {mesh_text(mesh)}, with all that they hold."
        if lost := self.control.lost(mesh):
            return f"{said} {rank_words(lost)} {are(lost)} lost: %mesh heal"
        return f"{said} --replace starts it anew, --new another one"

    def _start(self, asked: Asked, name: str | None, how: _How) -> str:
        with self.meshes.new_name(name) as chosen:
            started = time.monotonic()
            if asked.hosts is None:
                mesh = self.control.spawn(dict(asked.sizes), chosen, asked.device)
                self._wait_for_ranks(mesh, chosen)
            else:
                mesh = self._start_on(asked, asked.hosts, chosen, how)
            took = duration(time.monotonic() - started)
            has_variable = self.meshes.keep(chosen, mesh, asked)
        named = f"; the variable {chosen} is the mesh" if has_variable else ""
        return f"{chosen} is up: {mesh_text(mesh)} in {took}. %%mesh runs a cell on them{named}."

    def _start_on(self, asked: Asked, hosts: Wanted, chosen: str, how: _How) -> ProcMesh:
        steps = how.steps
        try:
            job = self.jobs.start(chosen, hosts, steps, stay=how.stay)
            began = time.monotonic()
            steps.add("ranks", "starting ranks")
            mesh = self.control.spawn_on(job, chosen, dict(asked.sizes), asked.device)
            self._wait_for_ranks(mesh, chosen)
        except KeyboardInterrupt:
            steps.add("over", CANCELLED)
            self.jobs.end(chosen)
            told = f"{chosen} was not started: its hosts were given back ({hosts.engine})"
            raise CellInterrupted(told) from None
        except (MeshError, RuntimeError, ValueError) as error:
            if not self.jobs.end(chosen):  # then whatever failed, failed for that
                steps.add("over", CANCELLED)
                raise Cancelled(f"{chosen} was not started: it was cancelled") from None
            steps.add("over", "failed")
            if isinstance(error, MagicError):
                raise
            raise MagicError(f"{chosen} was not started: {error}") from None
        except BaseException:
            self.jobs.end(chosen)
            raise
        steps.add("ranks", f"ranks up in {duration(time.monotonic() - began)}")
        self.jobs.come(chosen)
        return mesh

    def _wait_for_ranks(self, mesh: ProcMesh, chosen: str) -> None:
        self.link.attach()
        try:
            mesh.initialized.get()
        except BaseException as error:
            refused = self.control.refused(mesh)
            mesh.stop().get(timeout=STOP_S)
            if isinstance(error, KeyboardInterrupt):
                told = f"{chosen} was not started: stopped before its ranks were up"
                raise CellInterrupted(told) from None
            if refused is not None:
                raise MagicError(f"{chosen} could not be started: {refused}") from None
            raise

    def down(self, doomed: Sequence[ProcMesh]) -> str:
        if not doomed:
            raise MagicError(NO_MESH)
        stops = [mesh.stop() for mesh in doomed]
        for stop in stops:
            stop.get()
        names = list(dict.fromkeys(mesh.name for mesh in doomed))
        for name in names:
            self.meshes.forget(name)
        with_hosts = [name for name in names if self.jobs.end(name)]
        said = f"{', '.join(names)} {are(names)} down"
        if with_hosts:
            said += f", the hosts of {', '.join(with_hosts)} are given back"
        if self.auto.line is not None and not self.meshes.everything():
            said += "\ncells still go to the mesh; %mesh auto off keeps them here"
        return said

    def give_back(self, name: str) -> str:
        """End a job whose mesh was stopped before."""
        self.jobs.end(name)
        return f"the hosts of {name} are given back"

    def every_mesh(self) -> list[ProcMesh]:
        """Return every mesh once, however many slices of it have names."""
        found = {mesh.name: mesh for mesh in self.meshes.everything().values()}
        return [self.control.whole(mesh) for mesh in found.values()]

    def whole_mesh(self, name: str | None) -> ProcMesh:
        """Return the mesh of that name, or the current one; raise if it is a slice."""
        mesh = self.meshes.pick(name)
        whole = self.control.whole(mesh)
        if len(mesh) < len(whole) and name != whole.name:
            raise MagicError(
                f"{name or self.meshes.current} is a slice of {whole.name}, which has "
                f"{mesh_text(whole)}. Type: %mesh down {shlex.quote(whole.name)}"
            )
        return whole

    def use(self, name: str, mesh: ProcMesh | None = None) -> str:
        self.meshes.use(name, mesh)
        return f"%%mesh now means {name}"

    def heal(self, mesh: ProcMesh, *, shrink: bool = False) -> str:
        """Start lost ranks again, or go on without them."""
        if shrink and self.control.lost(mesh):  # else handles would end for nothing
            smaller = mesh.heal(shrink=True)
            self.meshes.keep(mesh.name, smaller)
            return f"{mesh.name} goes on with {mesh_text(smaller)}"
        lost = sorted(self.control.lost(mesh))
        said = f"{mesh.name} is whole again: {mesh_text(mesh.heal())}"
        again = [self._started_again(mesh, lost)] if lost else []
        return "; ".join([said, *again, *self.control.moves(mesh)])

    def restart(self, mesh: ProcMesh, ranks: Sequence[int]) -> str:
        """End these ranks, busy or not, and start them again, with those that are lost."""
        check_ranks(mesh, ranks)
        mesh = self.control.whole(mesh)
        lost = self.control.lost(mesh)
        mesh.heal()  # the lost come back too; and where none can, none shall be ended
        self._end(mesh, sorted(set(ranks).difference(lost)))
        mesh.heal()
        return f"{mesh.name}: {self._started_again(mesh, sorted({*ranks, *lost}))}"

    def _started_again(self, mesh: ProcMesh, ranks: Sequence[int]) -> str:
        empty = "an empty namespace" if len(ranks) == 1 else "empty namespaces"
        said = f"{rank_words(ranks)} started again, with {empty}"
        name = None if mesh.name == self.meshes.current else mesh.name
        offer = past_cells.offer(self.control.past_cells(mesh), ranks, name)
        return (
            said if offer is None else f"{said}. {offer.typed} runs there what cells have defined"
        )

    def interrupt(self, mesh: ProcMesh, ranks: Iterable[int] | None = None) -> str:
        """Interrupt the cells and calls that these ranks, or all, owe."""
        self.link.attach()
        wanted = tuple(mesh.ranks) if ranks is None else tuple(ranks)
        check_ranks(mesh, wanted)
        which = mesh.name if ranks is None else f"{mesh.name}: {rank_words(wanted)}"
        if self.control.interrupt(mesh, wanted):
            return f"{which}: interrupted"
        return f"{which}: nothing to interrupt. %mesh stacks shows where its ranks are"

    def kill(self, mesh: ProcMesh, ranks: Sequence[int]) -> str:
        self.link.attach()
        check_ranks(mesh, ranks)
        self._end(mesh, ranks)  # or the next cell would still run on them, and be lost
        return f"{mesh.name}: {rank_words(ranks)} killed. %mesh heal starts them again"

    def stacks(
        self, mesh: ProcMesh, ranks: Sequence[int], *, native: bool = False
    ) -> tuple[Node, dict[int, str]]:
        """Return where these ranks are in their code, as a tree, and why nothing is known of
        others.
        """
        check_ranks(mesh, ranks)
        if native and (xray := self.control.xray()) is not None:
            with_native, whys = xray.native_stacks(mesh, ranks)
            return tree(with_native), dict(whys)
        found = self.control.stacks(mesh, ranks)
        silent = sorted(set(ranks).difference(found))
        return tree(found), dict.fromkeys(silent, "no answer; %mesh status shows why")

    def _end(self, mesh: ProcMesh, ranks: Sequence[int]) -> None:
        before = self.control.processes(mesh, ranks)
        self.output.expect_exits(before)
        self.control.kill(mesh, ranks)
        deadline = time.monotonic() + STOP_S
        while not self._have_ended(mesh, ranks, before):
            if time.monotonic() > deadline:
                raise MagicError(f"{mesh.name}: {rank_words(ranks)} did not end; see %mesh status")
            time.sleep(POLL_S)

    def _have_ended(self, mesh: ProcMesh, ranks: Sequence[int], before: Sequence[int]) -> bool:
        # actors that restart may have brought back a rank already
        now, lost = self.control.processes(mesh, ranks), self.control.lost(mesh)
        pairs = zip(ranks, before, now, strict=True)
        return all(rank in lost or new != old for rank, old, new in pairs)


def _in_the_way(mesh: ProcMesh, asked: Asked, *, is_named: bool) -> str:
    axes = " ".join(f"{label}={size}" for label, size in asked.sizes)
    device = "" if asked.device == "auto" else f" --device {asked.device}"
    on = "" if asked.hosts is None else f" {asked.hosts.typed()}"
    name = f" --name {mesh.name}" if is_named else ""
    beside = "another --name" if is_named else "--new instead"
    return (
        f"{mesh.name} is up with {mesh_text(mesh)}. "
        f"Type: %mesh up {axes}{device}{on}{name} --replace, "
        f"which ends it and what its ranks hold; or {beside}, which starts one beside it"
    )
