"""The table of faults: its tests exist, runs are summed up, and the observer measures a pause."""

import ast
import json
import subprocess
import sys
import time

import pytest

from benchmarks.faults import found, page, rows
from benchmarks.faults.observer import Observer
from benchmarks.faults.rows import ROWS
from tests.source import ROOT

TRIED = """
import pytest

@pytest.mark.parametrize("bad", [False, True])
def test_one(bad, record_property):
    record_property("figure", ("it takes", 0.2 if bad else 0.1, 0.15))
    assert not bad, "so it ends"
"""


def line(outcome="passed", seconds=0.1):
    return {
        "test": "tests/x.py::test_x",
        "case": "test_x[a]",
        "outcome": outcome,
        "why": "because" if outcome == "failed" else "",
        "figures": [["told", seconds, 0.5]],
        "pause_s": seconds / 10,
    }


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.number))
def test_the_tests_of_a_row_are_there(row):
    for name in row.tests:
        file, _, function = name.partition("::")
        defined = ast.parse((ROOT / file).read_text()).body
        assert function in [each.name for each in defined if isinstance(each, ast.FunctionDef)]


def test_each_row_has_its_number():
    assert [row.number for row in ROWS] == list(range(1, len(ROWS) + 1))


def test_runs_are_summed_up_and_kept(tmp_path):
    row = found.sum_up([line(seconds=s / 100) for s in range(1, 51)], "today", 0.5)
    [figure] = row.figures
    assert (figure.count, figure.least, figure.median) == (50, 0.01, 0.255)
    assert (figure.p99, figure.most) == (0.5, 0.5)
    assert row.is_kept
    assert row.pause_s == pytest.approx(0.05)
    path = tmp_path / "kept.json"
    found.save({3: row}, path)
    assert found.load(path) == {3: row}


@pytest.mark.parametrize("bad", [line("failed"), line(seconds=0.6)], ids=["failed", "too long"])
def test_one_run_that_is_bad_is_seen_in_the_page(bad):
    row = found.sum_up([line()] * 49 + [bad], "today", 0.5)
    assert not row.is_kept
    shown = page.text({7: row}, [], "a machine")
    assert "short of their goal: 7." in shown
    assert ("failed: `test_x[a]`: because" in shown) == (bad["outcome"] == "failed")
    assert ("| over |" in shown) == (bad["outcome"] == "passed")


def test_a_controller_that_does_not_answer_for_long_is_short_of_its_goal():
    row = found.sum_up([line(), {**line(), "pause_s": 0.31}], "today", 0.5)
    assert not row.is_kept
    assert "| 0.31 over |" in page.text({7: row}, [], "a machine")


def test_what_could_not_be_run_is_counted_apart():
    row = found.sum_up([line(), line("skipped")], "today", 0.5)
    assert (row.runs, row.held, row.skipped, row.is_kept) == (1, 1, 1, True)


def test_each_case_is_run_as_often_as_is_wanted(tmp_path):
    (tmp_path / "test_tried.py").write_text(TRIED)
    record = tmp_path / "record"
    plugin = ["-p", "benchmarks.faults.repeating", "--runs", "8", "--record", str(record)]
    command = [sys.executable, "-m", "pytest", "-q", *plugin, "-c", "/dev/null", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=60)
    ran = [json.loads(each) for each in record.read_text().splitlines()]
    row = found.sum_up(ran, "today", 0.0)
    assert (row.runs, row.held) == (10, 5)  # at least five of each
    assert [each.most for each in row.figures] == [0.2]
    assert all("so it ends" in why for why in row.failures.values())


def test_a_pause_of_this_process_is_seen_from_outside():
    observer = Observer()
    try:
        observer.longest_s()
        until = time.monotonic() + 0.1
        assert sum(range(10_000_000)) > 0  # in one call of C, which lets no other thread run
        while time.monotonic() < until:
            continue
        assert 0.05 < observer.longest_s() < 10
    finally:
        observer.close()


def test_tests_that_take_long_are_run_less_often():
    slow = [f"{min(rows.SLOW)}::{number}" for number in range(9)]
    row = rows.Row(1, "a fault", "a promise", ("tests/x.py::test_x", *slow[:3]))
    assert list(row.runs(50).values()) == [50, 10, 10, 10]
    assert list(rows.Row(1, "a fault", "a promise", tuple(slow[:3])).runs(50).values()) == [17] * 3
    assert list(rows.Row(1, "a fault", "a promise", tuple(slow)).runs(50).values()) == [10] * 9
