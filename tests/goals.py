"""Goals: the figures of faults that are published, and what a test makes of them.

A test fails at ten times its goal, so that a busy machine makes a slow run and not a red one. All
figures are printed at the end of a session; `python -m benchmarks faults` collects many runs.
"""

from collections.abc import Callable
from typing import Any, Final

import pytest

SLACK: Final = 10  # deadline / goal
FIGURE: Final = "figure"  # among the properties that a test records: what, how long, the goal


@pytest.fixture
def goal(record_property: Callable[[str, object], None]) -> Callable[[str, float, float], None]:
    """`goal(what, figure, goal)` records a figure, and fails at ten times its goal."""

    def record(what: str, figure: float, goal: float) -> None:
        record_property(FIGURE, (what, figure, goal))
        assert figure < SLACK * goal, f"{what}: {figure:.3f}, the goal is {goal}"

    return record


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the figures of all tests, with a word where one is over its goal."""
    reports = (each for found in terminalreporter.stats.values() for each in found)
    figures = [
        value
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, value in report.user_properties
        if name == FIGURE
    ]
    if figures:
        terminalreporter.section("figures (goal)")
    for what, figure, goal in figures:
        over = "" if figure <= goal else "   OVER"
        terminalreporter.write_line(f"{figure:10.4f} ({goal:g})  {what}{over}")
