"""The notebook on cells runs from top to bottom, and shows its reader what its text says."""

import re

import pytest

from tests.notebooks import reading

NOTEBOOK = reading.NOTEBOOKS / "cells.ipynb"

pytestmark = pytest.mark.timeout(2 * reading.LIMIT_S)


def test_where_cells_run(shown):
    assert shown("print('hello')") == "[0-3] hello\n[0] 0\n[1] 1\n[2] 4\n[3] 9\n"
    assert sorted(shown("gpus=1:3").splitlines()) == ["[1] I am 1", "[2] I am 2"]
    assert shown("%%mesh 0,3") == "[0,3] 'the first and the last'\n"


def test_a_cell_in_the_background(shown):
    text = shown("--noblock") + shown("job.result()")
    assert re.search(r"<cell In\[\d+\] on mesh0 \[0-3\]: done in \d", text)
    for epoch in range(3):
        assert f"epoch {epoch}\n" in text
    assert "gpus=   0   1   2   3\n        0  10  20  30\n" in text


def test_values_come_and_go(shown):
    assert "ValueMesh gpus=4: 0.1 to 0.1" in shown("learning_rate")
    assert "[3] array([8., 9.])" in shown("total = part.sum()")
    assert "(array([ 3., 12., 13., 17.]), np.float64(45.0))" in shown("--stack")
    assert "[3] np.float64(18.0)" in shown("scaled(part, 2)")


def test_output_in_columns_bars_and_logs(shown):
    assert "[2]\nstep 0: loss 0.333\nstep 1: loss 0.250\n" in shown("--layout columns")
    assert re.search(r"\[0-3\] train: 100%\|█+\| 50/50", shown("tqdm"))
    assert shown("%mesh logs").startswith("[1] step 0: loss 0.500\n[1] step 1: loss 0.333\n")


def test_errors_ends_and_limits_are_explained(shown):
    assert shown("share(6)").startswith("[1,3] 6.0\nranks 0,2: ZeroDivisionError")
    gone = shown("os._exit(3)")
    assert "[2] about to go\n" in gone
    assert "rank 2: the process exited with code 3" in gone
    assert shown("'still here'") == "[0-1,3] 'still here'\n"
    assert shown("%mesh heal") == (
        "mesh0 is whole again: 4 ranks (gpus=4); rank 2 started again, with an empty namespace. "
        "%mesh replay 5-6 --ranks 2 runs there what cells have defined\n"
    )
    late = "TimeoutError: ranks 2-3 had not ended after 1 s and were interrupted\n"
    assert shown("--timeout 1").endswith(late)


def test_scripts_and_auto(shown):
    assert shown("%mesh run") == "[0-3] average 11.5\n"
    assert shown("rank + 100") == "on mesh0 [0-3]\n[0] 100\n[1] 101\n[2] 102\n[3] 103\n"
    assert shown("'in the controller'") == "'in the controller'\n"


def test_the_committed_notebook_is_what_runs(executed):
    reading.check_committed(NOTEBOOK, executed, but=("--noblock", "job.result()"))
