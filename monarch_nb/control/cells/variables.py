"""Variables of parts of a mesh, for a caller that waits: ranks that are no regular grid are several
parts, and are served as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from monarch_nb.data import stacking
from monarch_nb.meshes import variables

if TYPE_CHECKING:
    from monarch_nb.core.shape.values import ValueMesh
    from monarch_nb.meshes.proc_mesh import ProcMesh


def put(parts: Sequence[ProcMesh], values: Mapping[str, Any]) -> None:
    """Set variables on all ranks of the parts."""
    variables.put([each._part for each in parts], values).get()


def get(parts: Sequence[ProcMesh], name: str) -> ValueMesh[Any]:
    """A variable of all ranks of the parts; several have one axis, `rank`."""
    return variables.get([each._part for each in parts], name).get()


def get_stacked(parts: Sequence[ProcMesh], name: str) -> Any:
    """As `get`, as one tensor or array. Raises `ValueError` if the values do not fit."""
    found = get(parts, name)
    ranks = [rank for part in parts for rank in part.ranks]
    values = dict(zip(ranks, found.values(), strict=True))
    return stacking.stack(name, values, tuple(found.sizes.values()))
