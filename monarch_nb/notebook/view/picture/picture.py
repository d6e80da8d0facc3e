"""A picture of a mesh for a reader without a kernel: plain text, and HTML with a drawing.

Rules of the file: the text says all that the drawing says, and the lines around the drawing too,
because some pages show no drawings in notebooks they do not trust. Whatever a rank could have
written is escaped and short. It is one piece: no scripts, no styles, no addresses.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator
from typing import Final

from monarch_nb.core.errors.folding import rank_words
from monarch_nb.notebook.display.grids import grid_of, grid_text
from monarch_nb.notebook.display.units import count, duration, sizes_text
from monarch_nb.notebook.view.picture.drawing import Group, svg
from monarch_nb.notebook.view.picture.marks import BAD, Mark, in_order, is_alarming, mark_of
from monarch_nb.notebook.view.picture.snapshots import MeshSnapshot, Row

MAX_LINES: Final = 8
MAX_GROUPS: Final = 16
MAX_GRID: Final = 128  # ranks in a grid of text
_SOFT: Final = "opacity:.65"


def text(snapshot: MeshSnapshot) -> str:
    """The `repr`, a summary, the grid, what the ranks run and what failed."""
    lines = [snapshot.part.said, f"{snapshot.part.title}: {_summary(snapshot)}"]
    lines += [snapshot.status.ended] if snapshot.status.ended else []
    if 1 < len(snapshot.part.ranks) <= MAX_GRID:
        verdicts = snapshot.verdicts()
        grid = grid_of(snapshot.part.sizes)
        lines.append(grid_text(grid, lambda place: mark_of(verdicts[place]).sign))
    lines += [f"{mark_of(verdict).sign} {told}" for verdict, told in _told_rows(snapshot)]
    lines += [f"{BAD.sign} {who}: {what}" for who, what in _failures(snapshot)]
    return "\n".join(lines)


def page(snapshot: MeshSnapshot) -> str:
    """The same in HTML."""
    title = f"<b>{html.escape(snapshot.part.title)}</b> {html.escape(_summary(snapshot))}"
    taken = f'<span style="{_SOFT}">as of {snapshot.taken:%H:%M:%S, %-d %b %Y}</span>'
    ended = f"<div>{html.escape(snapshot.status.ended)}</div>" if snapshot.status.ended else ""
    drawing = svg(snapshot.part.sizes, snapshot.part.ranks, list(_groups(snapshot)))
    left_out = grid_of(snapshot.part.sizes).left_out
    more = f"<div>... {left_out} more</div>" if left_out else ""
    rows = "".join(_line(mark_of(verdict), told) for verdict, told in _told_rows(snapshot))
    failures = "".join(_line(BAD, f"{who}: {what}") for who, what in _failures(snapshot))
    return (
        f'<div style="line-height:1.6">{title} {taken}{ended}'
        f'<div style="margin:6px 0">{drawing}</div>{more}{rows}{failures}</div>'
    )


def _line(mark: Mark, told: str) -> str:
    return f'<div><span style="color:{mark.colour}">{mark.sign}</span> {html.escape(told)}</div>'


def _summary(snapshot: MeshSnapshot) -> str:
    # `8 ranks (hosts=2 gpus=4) on mesh0: 7 busy, 1 exited`
    part = snapshot.part
    axes = sizes_text(part.sizes)
    home = f" on {part.mesh}" if part.title != part.mesh else ""
    found = Counter(snapshot.verdicts())
    counts = ", ".join(f"{found[verdict]} {verdict}" for verdict in in_order(found))
    return f"{count(len(part.ranks), 'rank')}{f' ({axes})' if axes else ''}{home}: {counts}"


def _told_rows(snapshot: MeshSnapshot) -> list[tuple[str, str]]:
    """Verdicts and lines of those of which there is more to say than their number; the lost come
    first."""
    telling = [row for row in snapshot.rows() if row.what or row.detail]
    telling.sort(key=lambda row: not is_alarming(row.verdict))
    lines = [(row.verdict, _row(snapshot, row)) for row in telling[:MAX_LINES]]
    if len(telling) > MAX_LINES:
        last = telling[MAX_LINES]
        lines.append((last.verdict, f"... {len(telling) - MAX_LINES} more"))
    return lines


def _row(snapshot: MeshSnapshot, row: Row) -> str:
    # `busy ranks 0-6: cell In[5], 12 s`
    doing = " ".join(filter(None, (row.what, row.detail)))
    age = f", {duration(snapshot.at - row.since)}" if row.since and row.what else ""
    return f"{row.verdict} {rank_words(row.ranks)}: {doing}{age}"


def _failures(snapshot: MeshSnapshot) -> Iterator[tuple[str, str]]:
    """Who failed, and how: `ranks 2,5`, `ValueError: bad (train.py, line 12; step; 3 times)`. How
    processes ended that are still lost is told with their state."""
    seen = set(snapshot.part.ranks)
    for failure in snapshot.failures:
        is_told = failure.died and all(
            is_alarming(snapshot.verdict(rank)) for rank in failure.ranks
        )
        if seen.intersection(failure.ranks) and not is_told:
            times = f"{failure.count} times" if failure.count > 1 else ""
            aside = "; ".join(filter(None, (failure.where, failure.what, times)))
            told = f"{failure.headline} ({aside})" if aside else failure.headline
            yield rank_words(failure.ranks), told


def _groups(snapshot: MeshSnapshot) -> Iterator[Group]:
    places: dict[int, list[int]] = {}
    for place, rank in enumerate(snapshot.part.ranks):
        places.setdefault(rank, []).append(place)
    for row in snapshot.rows(MAX_GROUPS):
        found = tuple(place for rank in row.ranks for place in places[rank])
        doing = " ".join(filter(None, (row.what, row.detail)))
        told = f"{rank_words(row.ranks)}: {row.verdict}"
        yield Group(row.verdict, f"{told}, {doing}" if doing else told, found)
