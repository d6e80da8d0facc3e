"""A short soak: its answers are right and it leaves nothing. What slopes and the ledger decide."""

import re
import subprocess
import sys

import pytest

from tests.soak.measures import Sample
from tests.soak.slopes import growths, theil_sen
from tests.soak.stage import Ledger, label, lines_of, pids_in
from tests.source import ROOT

QUICK = "cells.,calls.,data.,faults.,looks.com"  # no other kernels and hosts: they take seconds


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.timeout(150)
def test_a_short_one_has_right_answers_and_leaves_nothing():
    words = ["--light", "--minutes", "0.05", "--seed", "7", "--only", QUICK]
    command = [sys.executable, "-m", "tests.soak", *words]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=140, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+ steps, \d+ cells: every answer was right$", done.stdout, re.MULTILINE)
    assert done.stdout.endswith("nothing is left\n"), done.stdout


def samples(**series) -> list[Sample]:
    """One every ten seconds; `name="..."` has underscores for spaces."""
    rows = [dict(zip(series, row, strict=True)) for row in zip(*series.values(), strict=True)]
    named = [{name.replace("_", " "): value for name, value in row.items()} for row in rows]
    return [Sample(10.0 * i, i, row, {}) for i, row in enumerate(named)]


def test_the_slope_is_that_of_most_pairs():
    assert theil_sen([(t, 5.0) for t in range(9)]) == 0
    assert theil_sen([(t, 2.0 * t + 900 * (t == 4)) for t in range(9)]) == 2.0


def test_memory_that_rises_is_found_and_a_step_in_the_warm_up_is_not():
    rises = [100 + 0.2 * i for i in range(40)]
    steps = [50.0] * 8 + [90.0, 91.0] * 16
    told = growths(samples(memory_of_kernel=rises, memory_of_a=steps))
    found = {each.name: each for each in told}
    assert found["memory of kernel"].is_too_much
    assert found["memory of kernel"].slope == pytest.approx(12.0)
    assert not found["memory of a"].is_too_much


def test_one_descriptor_more_is_too_much_and_one_for_a_moment_is_not():
    leaks = [20.0] * 25 + [21.0] * 15
    moments = [20.0, 20.0, 20.0, 23.0] * 10
    found = {each.name: each for each in growths(samples(fds_of_a=leaks, fds_of_b=moments))}
    assert found["fds of a"].is_too_much
    assert not found["fds of b"].is_too_much


def test_the_ledger_finds_what_ran_twice_or_not_at_all(tmp_path):
    ledger = Ledger(tmp_path / "ledger")

    def run(*lines: str) -> None:
        with open(ledger.name, "a") as file:
            file.writelines(f"{line}\n" for line in lines)

    run("one 0", "one 1", "two 0", "two 0")
    ledger.has_once("one", [0, 1])
    for wrong in (lambda: ledger.has_once("two", [0]), lambda: ledger.has_once("never", [0])):
        with pytest.raises(AssertionError):
            wrong()
    with pytest.raises(AssertionError, match="beyond"):
        ledger.has_at_most_once("two", [1])
    run("one 1")
    assert ledger.left() == {"two": {0: 2}, "one": {1: 1}}, "it came late"


def test_what_ranks_said_is_read_however_it_is_folded():
    assert lines_of("[0-1,3] a\n[2] b\nnot this\n") == {0: ["a"], 1: ["a"], 3: ["a"], 2: ["b"]}
    assert [label([2]), label([3, 0, 2])] == ["rank 2", "ranks 0,2-3"]
    assert pids_in("[1] pid 7\n[0] pid 8\n") == [8, 7]
    assert pids_in("pid 9\n") == [9]
