"""Progress bars as data: what a rank says of a bar, and what the bars of several ranks have in
common.

Rules of the file: pure. What comes from a rank is checked, not believed. Bars of ranks fold when
they are the same bar of the same program (the same place in their rank's order, the same total,
descriptions that differ in numbers only) and stand within a few percent; the slowest is always a
row of its own or the one whose position is told.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from monarch_nb.core.errors.records import clip

NEAR: Final = 0.05  # positions within this share of the total are one row
MAX_SPLIT: Final = 4  # rows of one bar
MAX_TEXT: Final = 200
WIDTH: Final = 20  # characters of a bar in plain text

_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclasses.dataclass(frozen=True, slots=True)
class Bar:
    """One bar of one rank. `total` is None where it is not known; `stays` says whether the bar is
    still shown when it is `closed`; with `scaled` counts are written as 1.2k."""

    id: int
    serial: int
    description: str = ""
    done: float = 0.0
    total: float | None = None
    unit: str = ""
    scaled: bool = False
    elapsed_s: float = 0.0
    rate: float | None = None
    postfix: str = ""
    closed: bool = False
    stays: bool = True

    @staticmethod
    def read(body: Mapping[str, Any]) -> Bar:
        """Read a rank's message. Raises `ValueError`, `TypeError` or `KeyError`."""
        total, rate = _number(body.get("total")), _number(body.get("rate"))
        return Bar(
            int(body["id"]),
            int(body["serial"]),
            clip(str(body.get("description", "")), MAX_TEXT),
            _number(body.get("done")) or 0.0,
            total if total and total > 0 else None,
            clip(str(body.get("unit", "")), MAX_TEXT),
            bool(body.get("scaled")),
            max(_number(body.get("elapsed_s")) or 0.0, 0.0),
            rate if rate and rate > 0 else None,
            clip(str(body.get("postfix", "")), MAX_TEXT),
            bool(body.get("closed")),
            bool(body.get("stays", True)),
        )

    @property
    def fraction(self) -> float | None:
        """How much is done, from 0 to 1; None where the total is not known."""
        return None if self.total is None else min(max(self.done / self.total, 0.0), 1.0)

    @property
    def is_complete(self) -> bool:
        return self.closed if self.total is None else self.done >= self.total

    @property
    def is_stopped(self) -> bool:
        return self.closed and not self.is_complete


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """Ranks whose bars stand together: the slowest of them, and the farthest position."""

    ranks: tuple[int, ...]
    bar: Bar
    farthest: Bar


def rows(bars: Mapping[int, Bar]) -> Iterator[Row]:
    """Return the rows for one bar of each of these ranks, the slowest first."""
    alike: dict[tuple[float | None, str, str], list[tuple[int, Bar]]] = {}
    for rank, bar in sorted(bars.items()):
        key = bar.total, bar.unit, _NUMBER.sub("#", bar.description)
        alike.setdefault(key, []).append((rank, bar))
    for members in alike.values():
        yield from _split(sorted(members, key=lambda one: (one[1].done, -one[1].elapsed_s)))


def _split(members: list[tuple[int, Bar]]) -> Iterator[Row]:
    parts: list[list[tuple[int, Bar]]] = []
    for member in members:
        if parts and _is_near(parts[-1][0][1], member[1], members[-1][1]):
            parts[-1].append(member)
        else:
            parts.append([member])
    if len(parts) > MAX_SPLIT:
        parts[1:] = [[member for part in parts[1:] for member in part]]
    yield from map(_row, parts)


def _is_near(slow: Bar, fast: Bar, fastest: Bar) -> bool:
    if slow.is_complete != fast.is_complete or slow.closed != fast.closed:
        return False
    return fast.done - slow.done <= NEAR * (slow.total or fastest.done)


def _row(part: list[tuple[int, Bar]]) -> Row:
    slowest, farthest = part[0][1], part[-1][1]
    if len({bar.description for _, bar in part}) > 1:
        text = _NUMBER.sub("#", slowest.description)
        slowest = dataclasses.replace(slowest, description=text)
    if len({bar.postfix for _, bar in part}) > 1:
        slowest = dataclasses.replace(slowest, postfix="")
    return Row(tuple(sorted(rank for rank, _ in part)), slowest, farthest)


def line(bar: Bar, farthest: Bar | None = None) -> str:
    """Return `train:  45%|█████   | 45/100 [00:03<00:04, 14.2it/s, loss=0.3]`."""
    percent = position(bar, farthest)
    drawing = f"{percent}|{_blocks(bar.fraction)}| " if bar.fraction is not None else ""
    name = f"{bar.description}: " if bar.description else ""
    return f"{name}{drawing}{counts(bar)}"


def lines(bars: Iterable[Bar]) -> str:
    """Return the last state of those bars that have ended and stay."""
    return "".join(f"{line(bar)}\n" for bar in bars if bar.closed and bar.stays)


def position(bar: Bar, farthest: Bar | None = None) -> str:
    """Return ` 45%`, or ` 45-60%` where ranks differ; empty where the total is not known."""
    if bar.fraction is None:
        return ""
    slow = math.floor(bar.fraction * 100)
    fast = math.floor(((farthest or bar).fraction or 0.0) * 100)
    return f"{slow:3}%" if fast - slow <= NEAR * 100 else f"{slow:3}-{fast}%"


def counts(bar: Bar) -> str:
    """Return `45/100 [00:03<00:04, 14.2it/s, loss=0.3]`."""
    total = "" if bar.total is None else f"/{_count(bar.total, bar.scaled)}"
    unit = bar.unit if bar.total is None else ""
    rate = bar.rate or (bar.done / bar.elapsed_s if bar.elapsed_s else None)
    left = ""
    if bar.total is not None and rate and not bar.closed:
        left = f"<{_clock(max(bar.total - bar.done, 0) / rate)}"
    details = [f"{_clock(bar.elapsed_s)}{left}"]
    if rate:
        details.append(_speed(rate, bar))
    if bar.postfix:
        details.append(bar.postfix)
    stopped = " stopped" if bar.is_stopped else ""
    return f"{_count(bar.done, bar.scaled)}{total}{unit} [{', '.join(details)}]{stopped}"


def _speed(rate: float, bar: Bar) -> str:
    unit = bar.unit or "it"
    if rate < 1 and not bar.scaled:
        return f"{1 / rate:.2f}s/{unit}"
    return f"{_count(rate, bar.scaled) if bar.scaled else f'{rate:.2f}'}{unit}/s"


def _blocks(fraction: float | None) -> str:
    return f"{'█' * math.floor((fraction or 0.0) * WIDTH):{WIDTH}}"


def _clock(seconds: float) -> str:
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes:02}:{left:02}"


def _count(number: float, scaled: bool) -> str:
    if not scaled or abs(number) < 1000:
        return f"{number:.12g}" if not scaled else f"{number:.3g}"
    power = min(int(math.log10(abs(number)) // 3), 6)
    return f"{number / 1000**power:.3g}{'kMGTPE'[power - 1]}"


def _number(value: str | float | None) -> float | None:
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None
