"""What came of the runs of a row: counted, summed up, kept in FAULTS.json."""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

PAUSE_GOAL_S: Final = 0.3  # the longest that the controller may take to answer `1+1`


@dataclass(frozen=True)
class Figure:
    """A time, or another number, that a test has measured in `count` runs: the least, the median
    and so on, with the goal that the worst run has to keep."""

    what: str
    goal: float
    count: int
    least: float
    median: float
    p99: float
    most: float

    @property
    def is_kept(self) -> bool:
        return self.most <= self.goal


@dataclass(frozen=True)
class Found:
    """The outcome of all runs of one row: how many `held`, and what they measured. `failures` are
    the tests that have failed, with the last words of one run each."""

    runs: int
    held: int
    skipped: int
    pause_s: float  # the longest that the controller took to answer `1+1`
    pause_median_s: float
    figures: Sequence[Figure]
    failures: Mapping[str, str]
    tests: Sequence[str]
    when: str
    load: float

    @property
    def is_kept(self) -> bool:
        is_within = self.pause_s <= PAUSE_GOAL_S and all(each.is_kept for each in self.figures)
        return self.held == self.runs > 0 and is_within


def sum_up(lines: Iterable[Mapping[str, Any]], when: str, load: float) -> Found:
    """Sum up what the plugin wrote, a line for each run of a test."""
    ran = list(lines)
    counted = [each for each in ran if each["outcome"] != "skipped"]
    values: dict[tuple[str, float], list[float]] = defaultdict(list)
    for each in counted:
        for what, value, goal in each["figures"]:
            values[what, goal].append(value)
    pauses = [each["pause_s"] for each in counted] or [0.0]
    return Found(
        runs=len(counted),
        held=sum(each["outcome"] == "passed" for each in counted),
        skipped=len(ran) - len(counted),
        pause_s=max(pauses),
        pause_median_s=median(pauses),
        figures=[_figure(what, goal, found) for (what, goal), found in values.items()],
        failures={each["case"]: each["why"] for each in counted if each["outcome"] == "failed"},
        tests=sorted({each["test"] for each in ran}),
        when=when,
        load=load,
    )


def save(found: Mapping[int, Found], path: Path) -> None:
    """Write it whole or not at all."""
    whole = path.with_suffix(".tmp")
    rows = {str(number): asdict(each) for number, each in sorted(found.items())}
    whole.write_text(json.dumps(rows, indent=1) + "\n")
    whole.replace(path)


def load(path: Path) -> dict[int, Found]:
    """Return what was saved, by the number of its row; nothing where there is no file."""
    if not path.exists():
        return {}
    return {int(number): _found(fields) for number, fields in json.loads(path.read_text()).items()}


def _found(fields: dict[str, Any]) -> Found:
    return Found(**{**fields, "figures": [Figure(**each) for each in fields["figures"]]})


def _figure(what: str, goal: float, values: list[float]) -> Figure:
    values.sort()
    p99 = values[math.ceil(0.99 * len(values)) - 1]
    return Figure(what, goal, len(values), values[0], median(values), p99, values[-1])
