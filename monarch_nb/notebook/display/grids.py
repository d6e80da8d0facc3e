"""Ranks laid out along the axes of their mesh: the last axis runs across, the others down.

Rule of the file: however many ranks there are, what is drawn is bounded, and says what it leaves
out.
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

MAX_CELLS = 1024
MAX_COLUMNS = 32
WRAP = 16
"""A longer axis continues in the next row."""


@dataclass(frozen=True)
class Grid:
    """Rows of ranks (row-major numbers). `heading` names the columns, `columns` their places."""

    heading: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[int, ...]], ...]
    left_out: int


def grid_of(sizes: Mapping[str, int]) -> Grid:
    *outer, (axis, width) = list(sizes.items()) or [("", 1)]
    chunk = width if width <= MAX_COLUMNS else WRAP
    rows: list[tuple[str, tuple[int, ...]]] = []
    places = itertools.product(*(range(size) for _, size in outer))
    chunks = itertools.product(enumerate(places), range(0, width, chunk))
    for (number, place), start in itertools.islice(chunks, max(1, MAX_CELLS // chunk)):
        names = [f"{label}={at}" for (label, _), at in zip(outer, place, strict=True)]
        if chunk < width:
            names.append(f"{axis}={start}-{min(start + chunk, width) - 1}")
        first = number * width + start
        rows.append((" ".join(names), tuple(range(first, first + min(chunk, width - start)))))
    columns = tuple(map(str, range(chunk))) if chunk == width else ("",) * chunk
    shown = sum(len(ranks) for _, ranks in rows)
    return Grid(axis, columns if axis else ("",), tuple(rows), prod(sizes.values()) - shown)


def grid_text(grid: Grid, cell: Callable[[int], str]) -> str:
    lines = [(label, [cell(rank) for rank in ranks]) for label, ranks in grid.rows]
    head = (f"{grid.heading}=" if any(grid.columns) else "", list(grid.columns))
    table = [head, *lines] if any(grid.columns) else lines
    left = max(len(label) for label, _ in table)
    width = max((len(text) for _, cells in table for text in cells), default=0)
    shown = (
        f"{label:<{left}}  {'  '.join(text.rjust(width) for text in cells)}".rstrip()
        for label, cells in table
    )
    return "\n".join([*(line if left else line.lstrip() for line in shown), *_note(grid)])


def grid_html(grid: Grid, cell: Callable[[int], str]) -> str:
    """Return a table; `cell(rank)` is a whole `<td>`."""
    head = ""
    if any(grid.columns):
        names = "".join(f"<th>{html.escape(name)}</th>" for name in grid.columns)
        head = f"<tr><th>{html.escape(grid.heading)}</th>{names}</tr>"
    body = "".join(
        f"<tr><th style='text-align:left'>{html.escape(label)}</th>{''.join(map(cell, ranks))}</tr>"
        for label, ranks in grid.rows
    )
    note = "".join(f"<div>{html.escape(text)}</div>" for text in _note(grid))
    return f"<table style='color:inherit'>{head}{body}</table>{note}"


def _note(grid: Grid) -> Sequence[str]:
    return [f"... {grid.left_out} more"] if grid.left_out else []
