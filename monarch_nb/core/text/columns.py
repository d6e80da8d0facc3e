"""Rows of a table as lines of text, for who reads them in a fixed-width font."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Return a line for each row, as wide as it has to be; rows have as many cells as each other.

    Example:
        >>> list(columns([("name", "ranks"), ("x", "0-3")]))
        ['name  ranks', 'x     0-3']
    """
    flat = [[cell.replace("\n", " ") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*flat, strict=True)]
    for row in flat:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
