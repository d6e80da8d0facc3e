"""`%mesh replay`: ranks that were started again run cells that ranks have run before."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from monarch_nb.core.errors.folding import rank_list
from monarch_nb.core.shape import selection
from monarch_nb.core.shape.selection import check_ranks
from monarch_nb.notebook.cells import mesh_cell, past_cells
from monarch_nb.notebook.cells.mesh_cell import Again, MeshCell, Request

if TYPE_CHECKING:
    from monarch_nb.control.api import PastCell, ProcMesh
    from monarch_nb.notebook.session import Session


def replay(
    session: Session,
    mesh: ProcMesh,
    numbers: Collection[int] | None,
    ranks: Sequence[int] | None,
) -> str:
    """Run cells again, one after the other, until one fails; the line that says which have run.

    Args:
        numbers: of the cells; None: those that define what the ranks have had.
        ranks: where to run them; None: those that lack each.

    Raises:
        CellError: a rank failed.
        MagicError: there is nothing to run, or a rank is lost.
    """
    if ranks is not None:
        check_ranks(mesh, ranks)
    past = session.control.past_cells(mesh)
    chosen = past_cells.choose(past, numbers, ranks)
    for each in chosen.run:
        _run(session, mesh, each)
    return past_cells.report(chosen, past)


def _run(session: Session, mesh: ProcMesh, past: PastCell) -> None:
    ranks, cell = past.lacking, past.cell
    mesh_cell.check_living(session, mesh, ranks)
    session.unfinished.wait_for(mesh.name, ranks)
    session.control.settle_groups(mesh)
    again = Again(cell.code, cell.filename, cell.first_line, cell.what)
    request = Request(mesh, selection.parts(mesh, [rank_list(ranks)]), again)
    MeshCell(session, session.cells.here(), request).conduct()
