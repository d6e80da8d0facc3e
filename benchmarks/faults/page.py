"""Writes docs/faults.md: what was promised, how often it was kept, and what was measured."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from benchmarks.faults.found import PAUSE_GOAL_S, Figure, Found
from benchmarks.faults.rivals import SLOW_ROUNDS, SLOW_S, Rival
from benchmarks.faults.rows import ROWS, Row

HEAD: Final = """# Faults: what was promised, and what was kept

Written by `python -m benchmarks faults` (`make faults`); do not edit. Each row injects a fault into
real processes, fifty times: signals, cut networks, full memory, hostile values. The experiments are
tests of this project, named below each row; run one with `python -m pytest TEST`. Each is run fifty
times. One that takes long is run ten times beside quick ones; where all of a row take long, they
share the fifty runs.

Asserted in every run, besides what the row promises:

- P1: the call ends, with the right class of error and the right rank;
- P2: other ranks go on answering, or the error says why not;
- P3: nothing is left behind: processes, descriptors, threads, shared memory, ports, folders, by
  what `/proc`, `/dev/shm` and the temp folder say. Where runs share a controller, that is looked at
  after the last of them;
- P4: `repr(mesh)` and the status tell the truth;
- P5: the controller's process answers `1+1` all the time. Another process asks it a hundred times a
  second; the goal is 0.3 s.

That no call runs twice is read from files to which calls append, that no stranger's bytes are
unpickled from a spy on the one `loads`. A goal is for the *worst* run. A row falls short where an
assertion of a run has failed or a figure, or the longest `1+1`, is over its goal. Most rows were
run while others ran beside them, on the same two cores. A row that is run again is replaced.
"""


def text(kept: Mapping[int, Found], rivals: Sequence[Rival], machine: str) -> str:
    """Return the page."""
    return "\n".join(_lines(kept, rivals, machine)) + "\n"


def _lines(kept: Mapping[int, Found], rivals: Sequence[Rival], machine: str) -> Iterator[str]:
    yield HEAD
    yield f"Measured on: {machine}, without a GPU.\n"
    yield from _table(kept)
    yield from _not_run()
    yield from _of_rivals(rivals)
    for row in ROWS:
        if row.number in kept:
            yield from _section(row, kept[row.number])


def _table(kept: Mapping[int, Found]) -> Iterator[str]:
    short = [number for number, each in kept.items() if not each.is_kept]
    said = ", ".join(map(str, short)) if short else "none"
    yield f"{len(kept)} of {len(ROWS)} rows were run; short of their goal: {said}.\n"
    yield "| # | fault | runs that held | worst against its goal | longest `1+1` |"
    yield "|---|---|---|---|---|"
    for row in ROWS:
        yield f"| {row.number} | {row.fault} | {_summary(kept.get(row.number))} |"
    yield ""


def _summary(outcome: Found | None) -> str:
    if outcome is None:
        return "not run | | "
    held = f"{outcome.held} of {outcome.runs}"
    worst = max(outcome.figures, key=lambda each: each.most / each.goal, default=None)
    said = f"{_plain(worst.most)} ({_plain(worst.goal)}) {worst.what}" if worst else "-"
    over = " over" if outcome.pause_s > PAUSE_GOAL_S else ""
    return f"{held} | {said} | {_plain(outcome.pause_s)}{over}"


def _not_run() -> Iterator[str]:
    yield "Not run here, since it needs what this machine has not:\n"
    for row in ROWS:
        if row.needs:
            yield f"- row {row.number}: {row.needs}"
    yield ""


def _of_rivals(rivals: Sequence[Rival]) -> Iterator[str]:
    if not rivals:
        return
    yield "## Other systems\n"
    said = (
        "The same program on the same machine: four ranks, one of them in a call. Systems have the "
        "names of their packages; `benchmarks/RESULTS.md` has the versions. What took longer than "
        f"{SLOW_S:.0f} s was run {SLOW_ROUNDS} times only."
    )
    yield _prose(said)
    yield "| fault, in seconds | system | runs | min | median | max |"
    yield "|---|---|---|---|---|---|"
    for each in rivals:
        yield f"| {each.fault} | {each.system} | {each.told} |"
    yield ""


def _section(row: Row, outcome: Found) -> Iterator[str]:
    yield f"## {row.number}. {row.fault}\n"
    yield _prose(f"Promise: {row.promise}.")
    kept = f"{outcome.held} of {outcome.runs} runs held"
    left_out = f", {outcome.skipped} could not be run here" if outcome.skipped else ""
    yield f"{kept}{left_out}; {outcome.when} UTC, load {outcome.load:.1f} before.\n"
    if outcome.figures:
        yield "| seconds, unless it says otherwise | runs | goal | min | median | p99 | max | |"
        yield "|---|---|---|---|---|---|---|---|"
        yield from map(_figure, outcome.figures)
        yield ""
    for case, why in outcome.failures.items():
        yield f"- failed: `{case}`: {why.splitlines()[0] if why else ''}"
    if outcome.failures:
        yield ""
    for file, names in groupby(outcome.tests, lambda each: each.partition(":")[0]):
        yield f"`{file}`:\n"
        yield from (f"- `{each.rpartition(':')[2]}`" for each in names)
        yield ""


def _prose(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False) + "\n"


def _figure(each: Figure) -> str:
    shown = [each.goal, each.least, each.median, each.p99, each.most]
    numbers = " | ".join(map(_plain, shown))
    return f"| {each.what} | {each.count} | {numbers} | {'' if each.is_kept else 'over'} |"


def _plain(value: float) -> str:
    return f"{value:.3g}"
