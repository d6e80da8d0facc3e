"""A plugin of pytest: run each test many times, and write down what came of each run.

The cases of one test share the number of runs, but each has at least five. Each run is a line of
JSON: which test, how it ended, its figures with their goals, and how long this process took at most
to answer `1+1` meanwhile.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks.faults.observer import Observer
from tests.goals import FIGURE

LEAST_OF_A_CASE: Final = 5
_NUMBER: Final = "number_of_the_run"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--runs", type=int, default=1, help="of each test")
    parser.addoption("--record", type=Path, required=True, help="the file for what came of them")


def pytest_configure(config: pytest.Config) -> None:
    """Before conftest.py marks what belongs to the session: the observer is no leak of a test."""
    config.pluginmanager.register(Recorder(config.getoption("record")))


@pytest.fixture(autouse=True)
def number_of_the_run(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Ask for each test as often as is wanted."""
    sizes = [len(mark.args[1]) for mark in metafunc.definition.iter_markers("parametrize")]
    cases = math.prod(sizes)
    wanted: int = metafunc.config.getoption("runs")
    count = max(math.ceil(wanted / cases), min(wanted, LEAST_OF_A_CASE))
    numbers = [f"run {number}" for number in range(count)]
    metafunc.parametrize(_NUMBER, range(count), indirect=True, ids=numbers)


class Recorder:
    """What the reports of a test say, put together when it has ended."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")
        self._observer = Observer()
        self._ended: list[pytest.TestReport] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._ended.clear()
        self._observer.longest_s()
        result: Any = yield
        line = {"test": item.nodeid.partition("[")[0], "case": item.name, **self._told()}
        self._file.write(json.dumps({**line, "pause_s": self._observer.longest_s()}) + "\n")
        self._file.flush()
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._ended.append(report)

    def pytest_unconfigure(self) -> None:
        self._observer.close()
        self._file.close()

    def _told(self) -> dict[str, Any]:
        bad = next((each for each in self._ended if not each.passed), None)
        found = (each for report in self._ended[-1:] for each in report.user_properties)
        return {
            "outcome": bad.outcome if bad else "passed",
            "why": _last_words(bad) if bad else "",
            "figures": [value for name, value in found if name == FIGURE],
        }


def _last_words(report: pytest.TestReport) -> str:
    if report.skipped and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr)[:1000]
