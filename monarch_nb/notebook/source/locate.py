"""Where the body of a `%%mesh` cell stands: the file and line that tracebacks and debuggers show,
on both sides.
"""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from typing import Any

from monarch_nb.notebook.source import tracebacks


@dataclass(frozen=True)
class Source:
    """A file name, and the line (from 1) at which the body begins."""

    filename: str
    first_line: int


def of_body(shell: Any, cell: Any, body: str) -> Source:
    """The cell's own file and lines when the body is the rest of it; else a file of its own."""
    filename = tracebacks.file_of_cell(shell)
    if filename is not None and cell.source.rstrip().endswith(body.rstrip()):
        tracebacks.remember(filename, cell.source)
        return Source(filename, tracebacks.first_line(cell.source, body))
    filename = f"<mesh cell {cell.tag}>"
    tracebacks.remember(filename, body)
    return Source(filename, 1)


def line_of_cell(shell: Any, filename: str, lineno: int) -> str | None:
    """A line of a cell, for tracebacks of ranks; None for a file that is no cell."""
    if tracebacks.name_of_cell(shell, filename) is None:
        return None
    return linecache.getline(filename, lineno) or None


def line(shell: Any, filename: str, lineno: int) -> str:
    """A line of a cell or a file without its indent; empty where it is not known here."""
    return (line_of_cell(shell, filename, lineno) or linecache.getline(filename, lineno)).strip()
