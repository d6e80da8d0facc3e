"""What a row of RESULTS.md is, and what judges it.

A measure is run in one process per system and yields figures; a row is one figure of one measure. A
target looks at the figures of the run, ours and others', and says whether it holds.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

OURS = "monarch_nb"

Lookup = Callable[[str, str, str], float | None]  # system, measure, figure
Verdict = tuple[bool | None, str]  # None: not known; the text says what it was compared with

MACHINE_WHY = (
    "the limit is a time, and the machine is shared: column raw tells what it could do in this run"
)


class Unit(Enum):
    SECONDS = "s"
    PER_SECOND = "/s"
    BYTES_PER_SECOND = "B/s"
    BYTES = "B"
    TIMES = "x"
    COUNT = ""

    @property
    def more_is_better(self) -> bool:
        return self in (Unit.PER_SECOND, Unit.BYTES_PER_SECOND)


@dataclass(frozen=True)
class Target:
    text: str
    judge: Callable[[Lookup], Verdict]
    why: str = ""  # it falls short where it does: what is known of the reason


@dataclass(frozen=True)
class Row:
    figure: str
    label: str
    unit: Unit
    target: Target | None = None


@dataclass(frozen=True)
class Measure:
    name: str
    rows: tuple[Row, ...]
    deadline_s: float = 120.0
    rounds: int = 1  # processes per system; the median of their figures is reported
    ranks: int = 0  # how many it spawns, where that alone may be too much for a machine
    quick: bool = True  # part of --quick


def at_most(measure: str, figure: str, limit: float, text: str, why: str = "") -> Target:
    return Target(text, lambda get: _compare(get(OURS, measure, figure), lambda x: x <= limit), why)


def at_least(measure: str, figure: str, limit: float, text: str) -> Target:
    return Target(text, lambda get: _compare(get(OURS, measure, figure), lambda x: x >= limit))


def within_times_of_raw(measure: str, figure: str, times: float, why: str) -> Target:
    text = f"<= {times:g} x raw"
    target = _against("raw", measure, figure, lambda ours, raw: ours <= times * raw, text)
    return replace(target, why=why)


def within_seconds_of_raw(measure: str, figure: str, seconds: float) -> Target:
    text = f"<= raw + {seconds:g} s"
    return _against("raw", measure, figure, lambda ours, raw: ours <= raw + seconds, text)


def at_least_part_of(other: str, measure: str, figure: str, part: float) -> Target:
    text = f">= {part:g} x {other}"

    def fits(ours: float, theirs: float) -> bool:
        return ours >= part * theirs

    return _against(other, measure, figure, fits, text, more="faster", less="slower")


def faster_than(peer: str, measure: str, figure: str, times: float) -> Target:
    text = f">= {times:g} x faster than {peer}"
    return _against(peer, measure, figure, lambda ours, theirs: times * ours <= theirs, text)


def both(*targets: Target) -> Target:
    def judge(get: Lookup) -> Verdict:
        verdicts = [target.judge(get) for target in targets]
        told = ", ".join(text for _, text in verdicts if text)
        if any(holds is False for holds, _ in verdicts):
            return False, told
        return (None if any(holds is None for holds, _ in verdicts) else True), told

    text = " and ".join(target.text for target in targets)
    return Target(text, judge, " ".join(target.why for target in targets if target.why))


def _against(
    other: str,
    measure: str,
    figure: str,
    holds: Callable[[float, float], bool],
    text: str,
    more: str = "slower",
    less: str = "faster",
) -> Target:
    def judge(get: Lookup) -> Verdict:
        ours, theirs = get(OURS, measure, figure), get(other, measure, figure)
        if ours is None or theirs is None:
            return None, f"{OURS if ours is None else other} was not measured"
        ratio = ours / theirs if ours > theirs else theirs / ours
        word = more if ours > theirs else less
        return holds(ours, theirs), f"{ratio:.1f} x {word} than {other}"

    return Target(text, judge)


def _compare(ours: float | None, holds: Callable[[float], bool]) -> Verdict:
    return (None, f"{OURS} was not measured") if ours is None else (holds(ours), "")
