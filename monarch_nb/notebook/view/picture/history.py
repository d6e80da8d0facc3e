"""What a mesh has done until now, beside its picture: the curves it has logged, and a strip of time
for each of its ranks.

Rules of the file as in `picture.py`: the text says what the drawings say, and all is one piece.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from monarch_nb.core.curves import Point
from monarch_nb.notebook.view.picture.marks import BLUE, GREY, MARKS, RED

MAX_TOLD: Final = 8
"""Curves of which the last value is told."""
MAX_DRAWN: Final = 4
MAX_POINTS: Final = 120
MAX_SECONDS: Final = 120
MAX_STRIPS: Final = 32
"""Of more ranks no strips are drawn."""
TEXT_SECONDS: Final = 40
TEXT_STRIPS: Final = 8

_WIDTH: Final = 260.0
_HEIGHT: Final = 60.0
_SECOND: Final = 3  # pixels
_ROW: Final = 12
_BAR: Final = 10
_LEFT: Final = 30
_STATES: Final = {"c": "collective", "p": "paused", "s": "starting", "z": "silent"}
_RAISED: Final = "e"
_ENDED: Final = "x"
_UNKNOWN: Final = "."
_SHARES: Final = " ▁▂▃▄▅▆▇██"
_SIGNS: Final = {
    **{letter: MARKS[state].sign for letter, state in _STATES.items()},
    _RAISED: MARKS["failed"].sign,
    _ENDED: MARKS["exited"].sign,
    _UNKNOWN: " ",
}
_COLOURS: Final = {
    **{letter: MARKS[state].colour for letter, state in _STATES.items()},
    _RAISED: RED,
    _ENDED: GREY,
}


@dataclass(frozen=True)
class History:
    """`curves` by name; `strips` by rank, letters as in `control.status.timeline`, oldest first."""

    curves: Mapping[str, Sequence[Point]]
    strips: Mapping[int, str]


NOTHING: Final = History({}, {})


def lines(history: History) -> list[str]:
    """Return lines of text: the last value of each curve, and what few ranks did lately."""
    return [*_told_curves(history), *_told_strips(history.strips)]


def page(history: History) -> str:
    """Return the same in HTML, with drawings; empty where there is nothing."""
    told = "".join(f"<div>{html.escape(line)}</div>" for line in _told_curves(history))
    drawn = [_curve(name, points) for name, points in list(_seen(history))[:MAX_DRAWN]]
    strips = _seen_strips(history.strips)
    if 0 < len(strips) <= MAX_STRIPS:
        drawn.append(_timeline(strips))
    return f"{told}{_beside(drawn)}"


def _beside(drawings: Sequence[str]) -> str:
    if not drawings:
        return ""
    style = "display:inline-block;margin:4px 16px 4px 0;vertical-align:top"
    return "<div>" + "".join(f'<div style="{style}">{one}</div>' for one in drawings) + "</div>"


# ---------------------------------------------------------------------------------------- curves


def _seen(history: History) -> Iterator[tuple[str, Sequence[Point]]]:
    for name, points in history.curves.items():
        if valued := [point for point in points if point[1] is not None]:
            yield name, valued


def _told_curves(history: History) -> list[str]:
    # `loss: 2.11 at step 99, of ranks 2.08 to 2.17`
    seen = list(_seen(history))
    told = [_last(name, points[-1]) for name, points in seen[:MAX_TOLD]]
    if len(seen) > MAX_TOLD:
        told.append(f"... {len(seen) - MAX_TOLD} more curves")
    return told


def _last(name: str, point: Point) -> str:
    step, mean, low, high, _ = point
    band = f", of ranks {low:.4g} to {high:.4g}" if low != high else ""
    return f"{name}: {mean:.4g} at step {step}{band}"


def _curve(name: str, points: Sequence[Point]) -> str:
    stride = -(-len(points) // MAX_POINTS)
    some = [*points[:-1:stride], points[-1]]
    steps = [float(step) for step, *_ in some]
    means, lows, highs = ([float(point[at] or 0.0) for point in some] for at in (1, 2, 3))
    across = _Scale(steps, 0.0, _WIDTH)
    up = _Scale([*lows, *highs], _HEIGHT - 2, 2.0)
    line = [f"{across(x)} {up(y)}" for x, y in zip(steps, means, strict=True)]
    over = [f"{across(x)} {up(y)}" for x, y in zip(steps, highs, strict=True)]
    under = [f"{across(x)} {up(y)}" for x, y in zip(steps, lows, strict=True)][::-1]
    band = f'<path fill="{BLUE}" fill-opacity=".2" d="M{"L".join([*over, *under])}z"/>'
    pen = 'fill="none" stroke-width="1.5" stroke-linejoin="round" stroke-linecap="round"'
    drawn = f'<path {pen} stroke="{BLUE}" d="M{"L".join(line)}L{line[-1]}"/>'
    axis = f"{name}: {min(lows):.4g} to {max(highs):.4g}, steps {steps[0]:g} to {steps[-1]:g}"
    return f"{_svg(_WIDTH, _HEIGHT, band + drawn, axis)}<div>{_small(axis)}</div>"


class _Scale:
    """Where values of a range are, in pixels."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        self._low = min(values)
        self._span = (max(values) - self._low) or 1.0
        self._first = first
        self._length = last - first

    def __call__(self, value: float) -> str:
        return f"{self._first + (value - self._low) / self._span * self._length:.1f}"


# ---------------------------------------------------------------------------------------- strips


def _seen_strips(strips: Mapping[int, str]) -> dict[int, str]:
    known = {rank: strip for rank, strip in strips.items() if strip.strip(_UNKNOWN)}
    longest = max((len(strip.lstrip(_UNKNOWN)) for strip in known.values()), default=0)
    return {rank: strip[-min(longest, MAX_SECONDS) :] for rank, strip in known.items()}


def _told_strips(strips: Mapping[int, str]) -> list[str]:
    seen = _seen_strips(strips)
    if not 0 < len(seen) <= TEXT_STRIPS:
        return []
    seconds = min(max(map(len, seen.values())), TEXT_SECONDS)
    width = max(len(str(rank)) for rank in seen)
    told = [f"the last {seconds} s, how busy:"]
    for rank, strip in seen.items():
        signs = "".join(_sign(letter) for letter in strip[-seconds:])
        told.append(f"{rank:>{width}} |{signs:>{seconds}}|")
    return told


def _sign(letter: str) -> str:
    return _SHARES[int(letter)] if letter.isdecimal() else _SIGNS.get(letter, " ")


def _timeline(strips: Mapping[int, str]) -> str:
    seconds = max(map(len, strips.values()))
    width = _LEFT + seconds * _SECOND
    rows = "".join(
        _row(at, rank, strip, seconds) for at, (rank, strip) in enumerate(strips.items())
    )
    told = f"the last {seconds} s of each rank, how busy"
    return f"{_svg(width, len(strips) * _ROW, rows, told)}<div>{_small(told)}</div>"


def _row(at: int, rank: int, strip: str, seconds: int) -> str:
    base = at * _ROW + _BAR + 1
    x = _LEFT + (seconds - len(strip)) * _SECOND
    drawn = [f'<text x="0" y="{base - 1}" opacity=".65">{rank}</text>']
    for letter, run in groupby(strip):
        width = len(list(run)) * _SECOND
        height = _bar_height(letter)
        if height:
            colour = _COLOURS.get(letter, BLUE)
            opacity = "" if letter.isdecimal() else ' fill-opacity=".75"'
            drawn.append(
                f'<path fill="{colour}"{opacity} d="M{x} {base}h{width}v-{height}h-{width}z"/>'
            )
        x += width
    return "".join(drawn)


def _bar_height(letter: str) -> int:
    # What is no share of a second is as high as half of one, but for what must not be missed
    if letter.isdecimal():
        return round(int(letter) / 9 * _BAR)
    return {_UNKNOWN: 0, _RAISED: _BAR, _ENDED: 2}.get(letter, _BAR // 2)


def _svg(width: float, height: float, body: str, told: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" role="img" style="max-width:100%;height:auto" '
        f'font-family="system-ui,sans-serif" font-size="10" fill="currentColor">'
        f"<title>{html.escape(told, quote=False)}</title>{body}</svg>"
    )


def _small(told: str) -> str:
    return f'<span style="opacity:.65;font-size:0.85em">{html.escape(told)}</span>'
