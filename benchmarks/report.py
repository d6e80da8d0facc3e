"""Writes RESULTS.md from the outcomes of runs. Knows texts and tables; measures nothing.

A row is of one run, so what stands beside each other was measured in the same hour.
"""

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from statistics import median

from benchmarks.catalog import MEASURES
from benchmarks.runner import Outcome
from benchmarks.targets import OURS, Measure, Row, Target, Unit, Verdict

NOT_OFFERED = "-"
NOT_MEASURED = "not measured"


def machine() -> str:
    """Return what this machine is, in a few words."""
    memory_gb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    return f"{os.cpu_count()} cores, {memory_gb:.0f} GB, {platform.platform(terse=True)}"


@dataclass
class Run:
    """Everything that one run of the benchmarks found out."""

    systems: Sequence[str]
    measures: Sequence[Measure]
    versions: Mapping[str, Mapping[str, str]]  # interpreter's role -> distribution -> version
    remarks: Sequence[str] = ()  # about the run as a whole
    outcomes: dict[tuple[str, str], list[Outcome]] = field(default_factory=dict)
    begun: datetime = field(default_factory=lambda: datetime.now(UTC))
    load: float = field(default_factory=lambda: os.getloadavg()[0])
    machine: str = field(default_factory=machine)

    def figure(self, system: str, measure: str, name: str) -> float | None:
        """The median over the rounds, where there is a number."""
        found = [outcome.figures.get(name) for outcome in self.outcomes.get((system, measure), ())]
        numbers = [value for value in found if isinstance(value, int | float)]
        return median(numbers) if numbers else None

    def failed(self, system: str, measure: str) -> list[str]:
        """The rounds that gave no figures at all: why."""
        outcomes = self.outcomes.get((system, measure), ())
        return [outcome.error for outcome in outcomes if outcome.error]

    def reason(self, system: str, measure: str, name: str) -> str | None:
        """Why there is no number; None where it was never asked for."""
        outcomes = self.outcomes.get((system, measure), ())
        texts = [
            outcome.error or str(outcome.figures.get(name, "no figure")) for outcome in outcomes
        ]
        return texts[-1] if texts else None

    def without(self, measures: Sequence[Measure]) -> "Run":
        """What is left of it when these are of another run."""
        kept = [measure for measure in self.measures if measure not in measures]
        names = {measure.name for measure in kept}
        outcomes = {key: found for key, found in self.outcomes.items() if key[1] in names}
        return replace(self, measures=kept, outcomes=outcomes)


def text(runs: Sequence[Run]) -> str:
    """Of runs that have no measure in common."""
    notes = Notes()
    table = _table(runs, notes)
    parts = [_head(runs), table, *notes.section(), *_left(runs)]
    return "\n\n".join(parts) + "\n"


def with_run(run: Run, runs: Sequence[Run]) -> list[Run]:
    """The runs, where this one takes the place of what it measures again."""
    others = [other.without(run.measures) for other in runs]
    return [*(other for other in others if other.measures), run]


class Notes:
    """Numbered footnotes, equal ones once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, note: str) -> str:
        return f"[{self._numbers.setdefault(note, len(self._numbers) + 1)}]"

    def section(self) -> list[str]:
        return (
            ["\n".join(f"- [{number}] {note}" for note, number in self._numbers.items())]
            if self._numbers
            else []
        )


def shown(value: float, unit: Unit) -> str:
    match unit:
        case Unit.SECONDS:
            return _seconds(value)
        case Unit.PER_SECOND:
            return f"{value:,.0f}/s".replace(",", " ")
        case Unit.BYTES_PER_SECOND:
            return f"{value / 1e9:.2f} GB/s"
        case Unit.BYTES:
            return f"{value / 1e6:.1f} MB" if value >= 1e6 else f"{value / 1e3:.0f} kB"
        case Unit.TIMES:
            return f"{value:.2f} x"
        case Unit.COUNT:
            return f"{value:.0f}"


def verdict(measure: Measure, row: Row, run: Run, notes: Notes) -> str:
    if row.target is None:
        return ""
    holds, compared = judge(measure, row.target, run)
    word = {True: "pass", False: "**falls short**", None: "not known"}[holds]
    why = f" {notes.mark(row.target.why)}" if holds is False and row.target.why else ""
    return f"{row.target.text}: {word}{f' ({compared})' if compared else ''}{why}"


def judged(run: Run) -> list[tuple[str, Verdict]]:
    """Each target of a run with its verdict."""
    rows = [(measure, row) for measure in run.measures for row in measure.rows]
    return [(row.label, judge(measure, row.target, run)) for measure, row in rows if row.target]


def judge(measure: Measure, target: Target, run: Run) -> Verdict:
    """A target is not met by the rounds that went well."""
    holds, compared = target.judge(run.figure)
    failed = run.failed(OURS, measure.name)
    if holds and failed:
        return False, f"{len(failed)} of {measure.rounds} rounds failed"
    return holds, compared


def _seconds(value: float) -> str:
    if value < 1e-3:
        return f"{value * 1e6:.0f} us"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.1f} s"


def _head(runs: Sequence[Run]) -> str:
    lines = [
        "# Benchmarks: results",
        "",
        "Written by `python -m benchmarks` from `RESULTS.json`; do not edit.",
        "What is measured and how: `measures.py`; targets: `catalog.py`.",
        "",
    ]
    for run in runs:
        lines += _about(run, whole=len(runs) == 1)
    lines += [
        "",
        f"Medians. In brackets: how many times worse than {OURS} (below 1: better).",
        f"`{NOT_OFFERED}`: the system has no such thing, or it would show nothing.",
    ]
    return "\n".join(lines)


def _about(run: Run, *, whole: bool) -> list[str]:
    """When, where and with what."""
    rows = "" if whole else ": " + ", ".join(f"`{measure.name}`" for measure in run.measures)
    facts = [run.machine]
    for role, found in run.versions.items():
        facts.append(
            f"{role}: " + ", ".join(f"{name} {version}" for name, version in found.items())
        )
    facts += run.remarks
    begun = f"- {run.begun:%Y-%m-%d %H:%M} UTC, load {run.load:.1f} before the run{rows}"
    return [begun, *(f"  - {fact}" for fact in facts)]


def _table(runs: Sequence[Run], notes: Notes) -> str:
    systems = list(dict.fromkeys(chain.from_iterable(run.systems for run in runs)))
    head = ["work", *systems, "target"]
    lines = [_line(head), _line(["---"] * len(head))]
    run_of = {measure.name: run for run in runs for measure in run.measures}
    for measure in MEASURES:
        if (run := run_of.get(measure.name)) is not None:
            lines += _rows(run, measure, systems, notes)
    return "\n".join(lines)


def _rows(run: Run, measure: Measure, systems: Sequence[str], notes: Notes) -> Iterator[str]:
    for row in measure.rows:
        cells = [_cell(run, system, measure, row, notes) for system in systems]
        if set(cells) - {NOT_OFFERED, NOT_MEASURED}:
            yield _line([row.label, *cells, verdict(measure, row, run, notes)])


def _cell(run: Run, system: str, measure: Measure, row: Row, notes: Notes) -> str:
    if system not in run.systems:
        return NOT_MEASURED
    value = run.figure(system, measure.name, row.figure)
    failed = run.failed(system, measure.name)
    told = _figure(run, system, measure, row, notes)
    if value is None or not failed:
        return told
    return f"{told}; {len(failed)} of {measure.rounds} rounds failed {notes.mark(failed[0])}"


def _figure(run: Run, system: str, measure: Measure, row: Row, notes: Notes) -> str:
    value = run.figure(system, measure.name, row.figure)
    if value is None:
        reason = run.reason(system, measure.name, row.figure)
        if reason is None:
            return NOT_OFFERED
        return reason if reason.startswith("not within") else f"not run {notes.mark(reason)}"
    ours = run.figure(OURS, measure.name, row.figure)
    if system == OURS or not ours or not value or row.unit is Unit.TIMES:
        return shown(value, row.unit)
    times = ours / value if row.unit.more_is_better else value / ours
    return (
        f"{shown(value, row.unit)} ({times:.2g} x)"
        if times < 100
        else f"{shown(value, row.unit)} ({times:.0f} x)"
    )


def _left(runs: Sequence[Run]) -> list[str]:
    """Which systems left processes behind, and when."""
    worst: dict[str, list[str]] = {}
    for (system, measure), outcomes in chain.from_iterable(run.outcomes.items() for run in runs):
        if left := max(outcome.left for outcome in outcomes):
            worst.setdefault(system, []).append(f"{measure} ({left})")
    if not worst:
        return []
    told = [f"- {system}: {', '.join(items)}" for system, items in worst.items()]
    return [
        "Processes still there after the measure's own process had ended (they were ended):\n\n"
        + "\n".join(told)
    ]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"
