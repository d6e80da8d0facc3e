"""The progress bars of a cell's ranks, drawn as one display.

Rules of the file: ranks that move together are one bar, the slowest is always seen. A bar that was
asked to go when it ends goes; all others stay as they were last. A bar that moves no more when its
cell has ended says so.
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable, Mapping
from typing import Final

from monarch_nb.core.errors.folding import rank_label
from monarch_nb.core.text import bars
from monarch_nb.core.text.bars import Bar, Row
from monarch_nb.notebook.output.mime import Content, text_content

DRAW_S: Final = 0.2
MAX_ROWS: Final = 30  # of them those that have ended first are left out first
MAX_BARS: Final = 200  # of one rank

Place = tuple[str, int]  # mesh, rank

_TD = "text-align:left;padding:0 0.7em 0 0;white-space:pre"


class Bars:
    """The picture of all bars of one cell."""

    def __init__(self) -> None:
        self._bars: dict[Place, dict[int, Bar]] = {}  # by their place in the rank's order
        self._orders: dict[Place, dict[int, int]] = {}  # bar's id -> that place
        self._sizes: dict[str, int] = {}
        self._changed_at: float | None = None
        self._drawn_at = float("-inf")

    def add(self, mesh: str, rank: int, size: int, content: Content, now: float) -> None:
        """Take what a rank says of its bars."""
        self._sizes[mesh] = size
        known = self._bars.setdefault((mesh, rank), {})
        orders = self._orders.setdefault((mesh, rank), {})
        for body in content["bars"]:
            bar = Bar.read(body)
            order = orders.setdefault(bar.id, len(orders))
            if order in known and known[order].serial > bar.serial:
                continue  # it was overtaken
            known[order] = bar
            if bar.closed and not bar.stays:
                del known[order]
        for order in _oldest(known):
            del known[order]
        self._changed_at = self._changed_at or now

    def stop(self, mesh: str, now: float) -> None:
        """Mark what moves no more as the cell has ended on this mesh; until it moves again."""
        for (of, _), known in self._bars.items():
            for order, bar in known.items():
                if of == mesh and not bar.closed:
                    known[order] = dataclasses.replace(bar, closed=True)
                    self._changed_at = self._changed_at or now

    @property
    def deadline(self) -> float | None:
        """Five times a second at most."""
        if self._changed_at is None:
            return None
        return max(self._changed_at, self._drawn_at + DRAW_S)

    def draw(self, now: float) -> Content:
        self._changed_at, self._drawn_at = None, now
        found = [one for mesh in self._sizes for one in self._rows(mesh)]
        left_out = _left_out(found)
        note = f"... {len(left_out)} bars that have ended" if left_out else ""
        shown = [
            (label, row) for number, (label, row) in enumerate(found) if number not in left_out
        ]
        plain = [
            " ".join(filter(None, [label, bars.line(row.bar, row.farthest)]))
            for label, row in shown
        ]
        rows = "".join(f"<tr>{_cells(label, row)}</tr>" for label, row in shown)
        first = f"<div>{note}</div>" if note else ""
        # rows of a `tbody` have stripes in JupyterLab, which swallow the bars
        table = f'<table style="margin:0"><tfoot>{rows}</tfoot></table>' if rows else ""
        return text_content("\n".join(filter(None, [note, *plain])), first + table)

    def _rows(self, mesh: str) -> Iterable[tuple[str, Row]]:
        by_order: dict[int, dict[int, Bar]] = {}
        for (of, rank), known in self._bars.items():
            for order, bar in known.items():
                if of == mesh:
                    by_order.setdefault(order, {})[rank] = bar
        for order in sorted(by_order):
            for row in bars.rows(by_order[order]):
                yield rank_label(row.ranks, self._sizes[mesh]), row


def _oldest(known: Mapping[int, Bar]) -> list[int]:
    ended = [order for order in sorted(known) if known[order].closed]
    return ended[: max(len(known) - MAX_BARS, 0)]


def _left_out(found: list[tuple[str, Row]]) -> set[int]:
    ended = [number for number, (_, row) in enumerate(found) if row.bar.closed]
    return set(ended[: max(len(found) - MAX_ROWS, 0)])


def _cells(label: str, row: Row) -> str:
    # A table's cells: `progress` is drawn by the browser, in its own colours
    bar = row.bar
    value = "" if bar.fraction is None else f' value="{bar.fraction:.4f}" max="1"'
    if bar.fraction is None and bar.closed:
        value = ' value="1" max="1"'
    name = html.escape(bar.description)
    drawing = f'<progress{value} style="width:14em" title="{name}"></progress>'
    texts = [label, bar.description]
    told = [bars.position(bar, row.farthest).strip(), bars.counts(bar)]
    return "".join(
        f'<td style="{_TD}">{content}</td>'
        for content in (*map(html.escape, texts), drawing, *map(html.escape, told))
    )
