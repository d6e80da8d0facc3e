"""When a run begins, and runs as a table."""

import importlib
import importlib.util
import types

import pytest

from monarch_nb.control.metrics_table import as_table
from monarch_nb.control.output.metrics import LoggedRun
from monarch_nb.core.curves import Sample
from monarch_nb.core.runs import Row, as_csv, rows, starts_again


@pytest.mark.parametrize("step, first, last, again", [
    (0, 0, 1000, True), (10, 0, 1000, True), (499, 0, 1000, True), (501, 0, 1000, False),
    (900, 0, 1000, False), (1001, 0, 1000, False), (0, 500, 1000, True), (5, 5, 5, False),
])  # fmt: skip
def test_steps_that_start_again_begin_a_run_and_a_resume_does_not(step, first, last, again):
    assert starts_again(step, first, last, is_other_cell=False) == again


def test_a_cell_of_one_step_that_is_run_again_begins_a_run():
    assert starts_again(5, 5, 5, is_other_cell=True)
    assert not starts_again(6, 5, 5, is_other_cell=True)


def two_runs() -> list[LoggedRun]:
    found = []
    for number, name in ((1, "=SUM(A1)"), (2, "")):
        run = LoggedRun(number, name, 16)
        for rank in range(2):
            run.curve("loss").add(rank, [Sample.of(0, number + rank), Sample.of(1, float("nan"))])
        run.curve("lr").add(0, [Sample.of(0, 0.1)])
        found.append(run)
    return found


def test_csv_has_every_point_and_no_formula():
    assert as_csv(list(rows(two_runs(), name="loss"))) == (
        "run,run_number,name,rank,step,value\n"
        "'=SUM(A1),1,loss,0,0,1.0\n'=SUM(A1),1,loss,0,1,\n"
        "'=SUM(A1),1,loss,1,0,2.0\n'=SUM(A1),1,loss,1,1,\n"
        "run 2,2,loss,0,0,2.0\nrun 2,2,loss,0,1,\nrun 2,2,loss,1,0,3.0\nrun 2,2,loss,1,1,\n"
    )


def test_rows_are_of_the_ranks_that_are_asked_for():
    assert {row.rank for row in rows(two_runs(), ranks=[1])} == {1}
    assert {row.name for row in rows(two_runs())} == {"loss", "lr"}


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_table_is_of_the_library_that_is_installed(library, monkeypatch):
    found = importlib.util.find_spec
    fake = types.SimpleNamespace(DataFrame=lambda columns: (library, columns))
    installed = lambda name: (name == library) or (name not in {"pandas", "polars"} and found(name))
    monkeypatch.setattr(importlib.util, "find_spec", installed)
    monkeypatch.setattr(importlib, "import_module", lambda _: fake)
    made, columns = as_table([Row("a", 1, "loss", 0, 3, 0.5)])
    assert (made, columns["step"], list(columns)) == (library, [3], list(Row._fields))
    assert as_table([])[1] == {name: [] for name in Row._fields}
