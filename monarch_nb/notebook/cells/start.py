"""From a `%%mesh` line and its body to a cell that runs on the ranks it names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from monarch_nb.core.errors.folding import rank_label, rank_words
from monarch_nb.core.shape import selection
from monarch_nb.errors import SupervisionError
from monarch_nb.notebook import options
from monarch_nb.notebook.cells import wording
from monarch_nb.notebook.cells.mesh_cell import MeshCell, Request, Script
from monarch_nb.notebook.errors import CellError, MagicError
from monarch_nb.notebook.options import RunOptions
from monarch_nb.notebook.output.mime import Content, note_html, text_content
from monarch_nb.notebook.session import Session

if TYPE_CHECKING:
    from monarch_nb.control.api import ProcMesh


def run(session: Session, line: str, body: str) -> MeshCell | None:
    """Run the body on the selected ranks and show what they say.

    Returns the cell when it goes on in the background. Raises `CellError` if a rank fails.
    """
    session.seen.learn(body)
    return start(session, options.parse_cell(line), body)


def start(session: Session, chosen: RunOptions, work: str | Script) -> MeshCell | None:
    """As `run`, with options that have been read, for the body of a cell or a script."""
    mesh = session.meshes.pick(chosen.name)
    parts = selection.parts(mesh, chosen.selection)
    keep = bool(chosen.out) or not chosen.block
    request = Request(mesh, parts, work, chosen.timeout, chosen.layout, keep)
    if chosen.layout.only not in (None, *request.ranks):
        raise MagicError(
            f"--layout rank={chosen.layout.only}: the cell does not run on that rank, "
            f"but on {rank_words(request.ranks)}"
        )
    check_living(session, mesh, request.ranks)
    session.unfinished.wait_for(mesh.name, request.ranks)
    session.link.attach()
    if chosen.progress_after is not None:
        session.cells.tell_waits_after(chosen.progress_after)
    cell = MeshCell(session, session.cells.here(), request)
    if session.auto.has_sent(session.cells.here().source):
        session.cells.here().output.show(_where(cell, len(mesh)))
    if chosen.out:
        session.shell.user_ns[chosen.out] = cell
    try:
        return _begun(session, cell, chosen, work)
    except SupervisionError as error:  # lost a moment ago
        lost_now = wording.which_are_lost(mesh.name, error.ranks, request.ranks)
        raise MagicError(lost_now) from None


def check_living(session: Session, mesh: ProcMesh, ranks: Sequence[int]) -> None:
    """Raise `MagicError` if some of these ranks are lost."""
    if lost := set(session.control.lost(mesh)).intersection(ranks):
        raise MagicError(wording.which_are_lost(mesh.name, sorted(lost), ranks))


def _begun(
    session: Session, cell: MeshCell, chosen: RunOptions, work: str | Script
) -> MeshCell | None:
    if chosen.block and not chosen.local:
        cell.conduct()
        return None
    cell.follow(tells=not chosen.block)
    if chosen.local:
        _run_here(session, str(work))
    if not chosen.block:
        return cell
    cell.check()
    return None


def _where(cell: MeshCell, total: int) -> Content:
    label = f"on {cell.mesh} {rank_label(cell.ranks, total)}".rstrip()
    return text_content(label, note_html(label))


def _run_here(session: Session, body: str) -> None:
    if not session.shell.run_cell(body, store_history=False).success:
        said = "the cell failed in the controller, see above"
        raise CellError(said, {}, said)
