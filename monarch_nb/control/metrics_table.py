"""What ranks have logged as a table: of pandas, else of polars, else rows."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from monarch_nb.control.client import Client
from monarch_nb.core.runs import Row, rows
from monarch_nb.errors import LocalProtocolError
from monarch_nb.process import current


def table(mesh: str, ranks: Sequence[int]) -> Any:
    """Return what these ranks have logged. Raises `LocalProtocolError` on a rank."""
    client = current.running()
    if not isinstance(client, Client):
        raise LocalProtocolError(
            "mesh.metrics() works in the notebook or script that drives the mesh, not on a rank"
        )
    return as_table(list(rows(client.metrics.runs(mesh), ranks=ranks)))


def as_table(found: Sequence[Row]) -> Any:
    """Return the rows as a frame of a library that is installed, or as they are."""
    for library in ("pandas", "polars"):
        if importlib.util.find_spec(library) is not None:
            columns = zip(*found, strict=True) if found else ((),) * len(Row._fields)
            named = dict(zip(Row._fields, map(list, columns), strict=True))
            return importlib.import_module(library).DataFrame(named)
    return list(found)
