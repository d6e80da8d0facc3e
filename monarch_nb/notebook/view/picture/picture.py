"""A picture of a mesh for a reader without a kernel: plain text, and HTML with a drawing.

Rules of the file: the text says all that the drawing says, and the lines around the drawing too,
because some pages show no drawings in notebooks they do not trust. Whatever a rank could have
written is escaped and short. It is one piece: no scripts, no styles, no addresses. The SVG has one
path for all tiles of a state, so that 1 024 ranks are some 40 KB; text is in the page's own colour.
"""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from monarch_nb.core.errors.folding import rank_words
from monarch_nb.core.text.units import count, duration, sizes_text
from monarch_nb.notebook.display.grids import Grid, grid_of, grid_text
from monarch_nb.notebook.view.picture import history
from monarch_nb.notebook.view.picture.history import NOTHING, History
from monarch_nb.notebook.view.picture.marks import BAD, Mark, in_order, is_alarming, mark_of
from monarch_nb.notebook.view.picture.snapshots import MeshSnapshot, Row

MAX_LINES: Final = 8
MAX_GROUPS: Final = 16
MAX_GRID: Final = 128  # ranks in a grid of text
_SOFT: Final = "opacity:.65"

NUMBERED: Final = 64  # ranks that have room for their number
CHARACTER: Final = 6.6  # width of a small one
HEAD: Final = 18
GAP: Final = 16
MAX_WIDTH: Final = 900
MIN_ROWS: Final = 8  # of a panel
MIDDLE: Final = ' text-anchor="middle"'


def text(snapshot: MeshSnapshot, past: History = NOTHING) -> str:
    """Return the `repr`, a summary, the grid, what the ranks run, what failed, and what was."""
    lines = [snapshot.part.said, f"{snapshot.part.title}: {_summary(snapshot)}"]
    lines += [snapshot.status.ended] if snapshot.status.ended else []
    if 1 < len(snapshot.part.ranks) <= MAX_GRID:
        states = snapshot.states()
        grid = grid_of(snapshot.part.sizes)
        lines.append(grid_text(grid, lambda place: mark_of(states[place]).sign))
    lines += [f"{mark_of(state).sign} {told}" for state, told in _told_rows(snapshot)]
    lines += [f"{BAD.sign} {who}: {what}" for who, what in _failures(snapshot)]
    return "\n".join([*lines, *history.lines(past)])


def page(snapshot: MeshSnapshot, past: History = NOTHING) -> str:
    """Return the same in HTML."""
    title = f"<b>{html.escape(snapshot.part.title)}</b> {html.escape(_summary(snapshot))}"
    taken = f'<span style="{_SOFT}">as of {snapshot.taken:%H:%M:%S, %-d %b %Y}</span>'
    ended = f"<div>{html.escape(snapshot.status.ended)}</div>" if snapshot.status.ended else ""
    drawing = svg(snapshot.part.sizes, snapshot.part.ranks, list(_groups(snapshot)))
    left_out = grid_of(snapshot.part.sizes).left_out
    more = f"<div>... {left_out} more</div>" if left_out else ""
    rows = "".join(_line(mark_of(state), told) for state, told in _told_rows(snapshot))
    failures = "".join(_line(BAD, f"{who}: {what}") for who, what in _failures(snapshot))
    return (
        f'<div style="line-height:1.6">{title} {taken}{ended}'
        f'<div style="margin:6px 0">{drawing}</div>{more}{rows}{failures}'
        f"{history.page(past)}</div>"
    )


def _line(mark: Mark, told: str) -> str:
    return f'<div><span style="color:{mark.colour}">{mark.sign}</span> {html.escape(told)}</div>'


def _summary(snapshot: MeshSnapshot) -> str:
    # `8 ranks (hosts=2 gpus=4) on mesh0: 7 busy, 1 exited`
    part = snapshot.part
    axes = sizes_text(part.sizes)
    home = f" on {part.mesh}" if part.title != part.mesh else ""
    found = Counter(snapshot.states())
    counts = ", ".join(f"{found[state]} {state}" for state in in_order(found))
    return f"{count(len(part.ranks), 'rank')}{f' ({axes})' if axes else ''}{home}: {counts}"


def _told_rows(snapshot: MeshSnapshot) -> list[tuple[str, str]]:
    # Of those of which there is more to say than their number; the lost come first
    telling = [row for row in snapshot.rows() if row.what or row.detail]
    telling.sort(key=lambda row: not is_alarming(row.state))
    lines = [(row.state, _row(snapshot, row)) for row in telling[:MAX_LINES]]
    if len(telling) > MAX_LINES:
        last = telling[MAX_LINES]
        lines.append((last.state, f"... {len(telling) - MAX_LINES} more"))
    return lines


def _row(snapshot: MeshSnapshot, row: Row) -> str:
    # `busy ranks 0-6: cell In[5], 12 s`
    doing = " ".join(filter(None, (row.what, row.detail)))
    age = f", {duration(snapshot.at - row.since)}" if row.since and row.what else ""
    return f"{row.state} {rank_words(row.ranks)}: {doing}{age}"


def _failures(snapshot: MeshSnapshot) -> Iterator[tuple[str, str]]:
    # `ranks 2,5`, `ValueError: bad (train.py, line 12; step; 3 times)`, the last if it was more
    # than once each; a cell is not told twice. How processes ended that are still lost is told with
    # their state.
    seen = set(snapshot.part.ranks)
    for failure in snapshot.failures:
        is_told = failure.died and all(
            is_alarming(snapshot.state_of(rank)) for rank in failure.ranks
        )
        if seen.intersection(failure.ranks) and not is_told:
            times = f"{failure.count} times" if failure.count > len(failure.ranks) else ""
            what = "" if failure.what.lower() in failure.where.lower() else failure.what
            aside = "; ".join(filter(None, (failure.where, what, times)))
            told = f"{failure.headline} ({aside})" if aside else failure.headline
            yield rank_words(failure.ranks), told


def _groups(snapshot: MeshSnapshot) -> Iterator[Group]:
    places: dict[int, list[int]] = {}
    for place, rank in enumerate(snapshot.part.ranks):
        places.setdefault(rank, []).append(place)
    for row in snapshot.rows(MAX_GROUPS):
        found = tuple(place for rank in row.ranks for place in places[rank])
        doing = " ".join(filter(None, (row.what, row.detail)))
        told = f"{rank_words(row.ranks)}: {row.state}"
        yield Group(row.state, f"{told}, {doing}" if doing else told, found)


@dataclass(frozen=True)
class Group:
    """Places of the grid that look alike. `told` is what a pointer above them is told."""

    state: str
    told: str
    places: tuple[int, ...]


@dataclass(frozen=True)
class _Scale:
    """Sizes in pixels: from tile to tile, of a tile, its corners, half of its mark."""

    step: float
    tile: float
    corner: float
    mark: float


_LARGE: Final = _Scale(42, 38, 6, 5)
_SMALL: Final = _Scale(16, 14, 3, 3.5)


def svg(sizes: Mapping[str, int], names: Sequence[int], groups: Sequence[Group]) -> str:
    """Return the drawing. `names` are the numbers of the ranks, by place."""
    grid = grid_of(sizes)
    drawing = _Drawing(grid, _LARGE if len(names) <= NUMBERED else _SMALL)
    numbers = drawing.numbers(names) if len(names) <= NUMBERED else ""
    body = "".join(map(drawing.group, groups))
    width, height = drawing.size
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" role="img" style="max-width:100%;height:auto" '
        f'font-family="system-ui,sans-serif" font-size="11" fill="currentColor">'
        f"{drawing.labels()}{numbers}{body}</svg>"
    )


class _Drawing:
    """Where things are. Many rows stand in several panels, side by side."""

    def __init__(self, grid: Grid, scale: _Scale) -> None:
        self._scale = scale
        self._columns = grid.columns if any(grid.columns) else ()
        self._heading = grid.heading if self._columns else ""
        longest = max(map(len, [self._heading, *(label for label, _ in grid.rows)]))
        self._left = longest * CHARACTER + 10 if longest else 0
        self._top = HEAD if self._columns else 0
        width = self._left + max(len(places) for _, places in grid.rows) * scale.step
        fitting = max(1, int(MAX_WIDTH // (width + GAP)))
        count = max(MIN_ROWS, math.ceil(len(grid.rows) / fitting))
        panels = [grid.rows[at : at + count] for at in range(0, len(grid.rows), count)]
        self._corners = [number * (width + GAP) for number in range(len(panels))]
        self._labels: list[tuple[float, float, str]] = []
        self._at: dict[int, tuple[float, float]] = {}
        for x, rows in zip(self._corners, panels, strict=True):
            self._place(x, rows)
        self.size = self._corners[-1] + width, self._top + len(panels[0]) * scale.step

    def _place(self, x: float, rows: Sequence[tuple[str, Sequence[int]]]) -> None:
        step = self._scale.step
        for row, (label, places) in enumerate(rows):
            y = self._top + row * step
            self._labels.append((x, y, label))
            for column, place in enumerate(places):
                self._at[place] = (x + self._left + column * step, y)

    def labels(self) -> str:
        half = self._scale.tile / 2
        texts = [_text(x + 2, y + half + 4, label) for x, y, label in self._labels if label]
        for x in self._corners if self._columns else ():
            texts.append(_text(x + 2, HEAD - 6, self._heading))
            texts += [
                _text(x + self._left + column * self._scale.step + half, HEAD - 6, name, MIDDLE)
                for column, name in enumerate(self._columns)
                if self._scale is _LARGE or column % 4 == 0  # there is no room for all
            ]
        return f'<g opacity=".65">{"".join(texts)}</g>'

    def numbers(self, names: Sequence[int]) -> str:
        half = self._scale.tile / 2
        texts = [
            _text(x + half, y + half + 13, str(names[place]), MIDDLE)
            for place, (x, y) in self._at.items()
        ]
        return f"<g>{''.join(texts)}</g>"

    def group(self, group: Group) -> str:
        scale, mark = self._scale, mark_of(group.state)
        corners = [self._at[place] for place in group.places if place in self._at]
        if not corners:
            return ""
        half, lift = scale.tile / 2, 6 if scale is _LARGE else 0  # for the number below
        draw, style = _SHAPES[mark.shape]
        marks = "".join(draw(x + half, y + half - lift, scale.mark) for x, y in corners)
        return (
            f'<g fill="{mark.colour}" stroke="{mark.colour}">'
            f"<title>{html.escape(group.told)}</title>"
            f"{_tiles(corners, scale, _TINTS.get(mark.shape, 0.14))}"
            f'<path {style.format(width=2 * scale.mark, half=scale.mark)} d="{marks}"/></g>'
        )


def _text(x: float, y: float, text: str, anchor: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}"{anchor}>{html.escape(text)}</text> '


def _tiles(corners: Sequence[tuple[float, float]], scale: _Scale, tint: float) -> str:
    if scale is _LARGE:
        outlines = "".join(_rounded(x + 0.5, y + 0.5, scale) for x, y in corners)
        return f'<path fill-opacity="{tint}" stroke-opacity=".5" d="{outlines}"/>'
    half = scale.tile / 2
    squares = "".join(_point(x + half, y + half) for x, y in corners)
    return f'<path stroke-opacity="{tint}" stroke-width="{scale.tile:g}" {_SQUARE} d="{squares}"/>'


def _rounded(x: float, y: float, scale: _Scale) -> str:
    side, r = scale.tile - 2 * scale.corner - 1, scale.corner
    a = f"a{r:g} {r:g} 0 0 1"
    return (
        f"M{x + r:g} {y:g}h{side:g}{a} {r:g} {r:g}v{side:g}{a}-{r:g} {r:g}"
        f"h-{side:g}{a}-{r:g}-{r:g}v-{side:g}{a} {r:g}-{r:g}z"
    )


# --------------------------------------------------------------------------------- shapes

Draw = Callable[[float, float, float], str]

_TINTS: Final[Mapping[str, float]] = {"cross": 0.3, "bang": 0.15, "triangle": 0.3, "dot": 0.06}
"""How full a tile is: what is bad stands out, what is idle stands back."""
_SQUARE: Final = 'stroke-linecap="square"'
_PLAIN: Final = 'stroke="none"'
_LINE: Final = 'fill="none" stroke-width="2" stroke-linecap="round"'


def _point(x: float, y: float, _r: float = 0) -> str:
    # Its cap is what is seen: the shortest way to write a disc or a square
    return f"M{x:g} {y:g}h0"


def _ring(x: float, y: float, r: float) -> str:
    half = f"a{r:g} {r:g} 0 1 0"
    return f"M{x - r:g} {y:g}{half} {2 * r:g} 0{half}-{2 * r:g} 0"


def _diamond(x: float, y: float, r: float) -> str:
    s = r + 1
    return f"M{x:g} {y - s:g}l{s:g} {s:g}l-{s:g} {s:g}l-{s:g}-{s:g}z"


def _bars(x: float, y: float, r: float) -> str:
    bar = f"v{2 * r:g}h{r * 0.7:g}v-{2 * r:g}z"
    return f"M{x - r:g} {y - r:g}{bar}M{x + r * 0.3:g} {y - r:g}{bar}"


def _triangle(x: float, y: float, r: float) -> str:
    return f"M{x:g} {y - r - 1:g}l{r + 1:g} {2 * r:g}h-{2 * r + 2:g}z"


def _cross(x: float, y: float, r: float) -> str:
    a = r * 0.8
    return f"M{x - a:g} {y - a:g}l{2 * a:g} {2 * a:g}m0-{2 * a:g}l-{2 * a:g} {2 * a:g}"


def _bang(x: float, y: float, r: float) -> str:
    return f"M{x:g} {y - r:g}v{r * 1.1:g}M{x:g} {y + r:g}h0"


_SHAPES: Final[Mapping[str, tuple[Draw, str]]] = {
    "full": (_point, 'stroke-width="{width:g}" stroke-linecap="round"'),
    "dot": (_point, 'stroke-width="{half:g}" stroke-linecap="round"'),
    "diamond": (_diamond, _PLAIN),
    "dashed": (_ring, f'{_LINE} stroke-dasharray="1 3"'),
    "hollow": (_ring, 'fill="none" stroke-width="1.5"'),
    "bars": (_bars, _PLAIN),
    "triangle": (_triangle, _PLAIN),
    "bang": (_bang, _LINE),
    "cross": (_cross, _LINE),
}
"""How each is drawn around a point, and with which pen."""
