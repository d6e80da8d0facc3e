"""From a `%%mesh` line and its body to a cell that runs on the ranks it names."""

from __future__ import annotations

from typing import Any

from monarch_nb.core.folding import rank_words
from monarch_nb.errors import SupervisionError
from monarch_nb.notebook import options, selection, verdicts
from monarch_nb.notebook.mesh_cell import MeshCell, Request
from monarch_nb.notebook.problems import CellError, MagicError
from monarch_nb.notebook.session import Session


def run(session: Session, line: str, body: str) -> MeshCell | None:
    """Run the body on the selected ranks and show what they say.

    Returns the cell when it goes on in the background. Raises `CellError` if a rank fails.
    """
    chosen = options.parse_cell(line)
    mesh = session.meshes.pick(chosen.name)
    parts = selection.parts(mesh, chosen.selection)
    request = Request(mesh, parts, body, chosen.timeout, chosen.layout)
    if chosen.layout.only not in (None, *request.ranks):
        raise MagicError(
            f"--layout rank={chosen.layout.only}: the cell does not run on that rank, "
            f"but on {rank_words(request.ranks)}"
        )
    if lost := set(session.runtime.lost(mesh)).intersection(request.ranks):
        raise MagicError(verdicts.which_are_lost(mesh.name, sorted(lost), request.ranks))
    session.stragglers.wait_for(mesh.name, request.ranks)
    session.attach()
    cell = MeshCell(session, session.cell(), request)
    if chosen.out:
        session.shell.user_ns[chosen.out] = cell
    try:
        return _begun(session, cell, chosen, body)
    except SupervisionError as error:  # lost a moment ago
        lost_now = verdicts.which_are_lost(mesh.name, error.ranks, request.ranks)
        raise MagicError(lost_now) from None


def _begun(session: Session, cell: MeshCell, chosen: Any, body: str) -> MeshCell | None:
    if chosen.block and not chosen.local:
        cell.conduct()
        return None
    cell.follow(tells=not chosen.block)
    if chosen.local:
        _run_here(session, body)
    if not chosen.block:
        return cell
    cell.result()
    return None


def _run_here(session: Session, body: str) -> None:
    """`--local`: the controller runs the body too, and shows its errors itself."""
    if not session.shell.run_cell(body, store_history=False).success:
        said = "the cell failed in the controller, see above"
        raise CellError(said, {}, said)
