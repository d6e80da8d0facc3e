"""Meshes of an earlier kernel come back: their variables, and the cells that it has begun."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from monarch_nb.core.errors.folding import rank_words
from monarch_nb.core.errors.records import clip
from monarch_nb.core.text.units import are, duration
from monarch_nb.errors import MeshError
from monarch_nb.notebook import tracebacks
from monarch_nb.notebook.cells import wording
from monarch_nb.notebook.cells.mesh_cell import MeshCell, Request
from monarch_nb.notebook.cells.wording import cell_number
from monarch_nb.notebook.display.units import mesh_text
from monarch_nb.notebook.errors import CellError
from monarch_nb.notebook.jobs.scaling import HOSTS
from monarch_nb.notebook.meshes import Asked

if TYPE_CHECKING:
    from monarch_nb.control.api import Found, KeptRecord, LeftCell, LeftFailure, ProcMesh
    from monarch_nb.notebook.session import Session

MAX_SUMMARY: Final = 200


def attach(
    session: Session, record: KeptRecord, *, fence: bool, use: str | None = None
) -> list[str]:
    """Bring the meshes of a record back into this kernel, where `%%mesh` means the one to `use`, or
    the last; the lines that say what came."""
    found = session.control.adopt(record, who="another notebook", fence=fence)
    session.link.attach()
    for cell in found.files:
        tracebacks.name_cell(session.shell, cell.filename, cell_number(cell.what))
    said = [_came(session, record, found, use)]
    said += [f"not brought back: {text}" for text in found.untold]
    handles: list[MeshCell] = []
    tags: dict[int, int] = {}
    for left in found.cells:
        said.append(_resume(session, left, tags, handles))

    if found.failed is not None and found.failed.tag not in tags:
        said.append(_failed(session, found.failed))

    def recall() -> None:
        session.control.recall(found, tags)
        for handle in handles:
            handle.recalled()

    threading.Thread(target=recall, name="monarch-recall", daemon=True).start()
    return said


def look_at(session: Session, record: KeptRecord) -> str:
    """Look at the meshes of a record, whoever drives them; the line that says so."""
    cell = session.cells.here()

    def tell(line: str) -> None:
        session.output.say(cell, f"{line}\n")

    meshes = session.control.look_at(record, cell.tag, tell)
    session.link.attach()
    for mesh in meshes:
        session.meshes.keep(mesh.name, mesh)
    name = meshes[0].name
    return (
        f"{_listed(meshes)} {are(meshes)} looked at: {name} as a cell's last line, %mesh status, "
        f"logs and stacks show it; what its ranks print comes below. %mesh down {name} ends the "
        "look"
    )


def _listed(meshes: Sequence[ProcMesh]) -> str:
    return ", ".join(f"{mesh.name} ({mesh_text(mesh)})" for mesh in meshes)


def _came(session: Session, record: KeptRecord, found: Found, use: str | None) -> str:
    kept = [
        mesh.name
        for mesh in found.meshes
        if session.meshes.keep(mesh.name, mesh, _asked(session, record, found, mesh))
    ]
    if use is not None:
        session.meshes.use(use)
    for actors in found.actors:
        name = actors._state.name
        if name.isidentifier() and name not in session.shell.user_ns:
            session.shell.user_ns[name] = actors
            kept.append(name)
    alone = "" if found.alone_s is None else f" after {duration(found.alone_s)} alone"
    variables = f"; variables: {', '.join(kept)}" if kept else ""
    said = f"{_listed(found.meshes)} {are(found.meshes)} back{alone}{variables}"
    return said if len(found.meshes) == 1 else f"{said}; %%mesh means {session.meshes.current}"


def _asked(session: Session, record: KeptRecord, found: Found, mesh: ProcMesh) -> Asked:
    try:
        job_found = session.control.found_job(record, mesh)
    except (MeshError, RuntimeError, ValueError) as error:  # as an engine that is not there
        found.untold.append(f"the job of {mesh.name}: {error}")
        job_found = None
    if job_found is None:
        return Asked(tuple(mesh.sizes.items()))
    job, wanted = job_found
    session.jobs.go_on(mesh.name, job, wanted)
    sizes = [(label, size) for label, size in mesh.sizes.items() if label != HOSTS]
    return Asked(tuple(sizes), hosts=wanted)


def _failed(session: Session, left: LeftFailure) -> str:
    mesh, errors = left.mesh, left.errors
    shown = wording.traceback(session.shell, errors, len(mesh))
    why = wording.summary(errors)
    session.cells.failed_on_ranks(CellError(why, errors, shown, len(mesh)))
    return f"{left.what} had failed: {clip(why, MAX_SUMMARY)}. %mesh errors shows where"


def _resume(session: Session, left: LeftCell, tags: dict[int, int], handles: list[MeshCell]) -> str:
    asked = left.cell
    number = cell_number(asked.what)
    tracebacks.remember_body(asked.filename, asked.first_line, asked.code)
    cell = session.cells.resumed(asked.code, number)
    tags[asked.tag] = cell.tag
    request = Request(left.mesh, [part.mesh for part in left.parts], left, keep=asked.keep)
    handle = MeshCell(session, cell, request)
    handle.follow(tells=True)
    handles.append(handle)
    name = f"cell{number}"
    session.shell.user_ns[name] = handle
    how = "has ended meanwhile" if left.is_over else f"still runs on {rank_words(left.ranks)}"
    return f"{asked.what} {how}: its output is below, from its begin; {name} is its handle"
