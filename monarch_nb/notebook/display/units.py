"""Meshes in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch_nb.core.text.units import count, sizes_text

if TYPE_CHECKING:
    from monarch_nb.control.api import ProcMesh


def mesh_text(mesh: ProcMesh) -> str:
    """Return `4 ranks (hosts=2 gpus=2)`."""
    ranks, axes = count(len(mesh), "rank"), sizes_text(mesh.sizes)
    return f"{ranks} ({axes})" if axes else ranks
