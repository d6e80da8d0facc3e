"""The notebook on a pipeline: the losses of one process, from stages that work at the same time."""

import re

import pytest

from tests.notebooks import reading

NOTEBOOK = reading.NOTEBOOKS / "pipeline.ipynb"

pytestmark = pytest.mark.timeout(2 * reading.LIMIT_S)


def test_each_step_has_the_loss_of_one_process(shown):
    text = shown("zip(alone, losses)")
    steps = re.findall(r"^ +(\d+) +(\d\.\d{5}) +(\d\.\d{5})  #+$", text, re.MULTILINE)
    assert [int(step) for step, _, _ in steps] == list(range(12))
    for _, one, three in steps:
        assert float(three) == pytest.approx(float(one), abs=1.1e-4)
    assert float(steps[-1][2]) < float(steps[0][2]) / 1.5
    assert text.endswith("equal to 1e-4: True\n")


def test_autograd_goes_through_the_stages(shown):
    assert shown("autograd.grad") == "the same gradient: True\n"


def test_micro_batches_go_through_every_stage_in_order(shown):
    rows = re.findall(r"^stage (\d) \|(.*)\|$", shown("work ="), re.MULTILINE)
    assert [int(number) for number, _ in rows] == [0, 1, 2]
    for _, row in rows:
        seen = "".join(dict.fromkeys(row.replace(" ", "")))
        assert re.fullmatch(r"0?1?2?3?a?b?c?d?", seen)
    begins = [len(row) - len(row.lstrip()) for _, row in rows]
    ends = [len(row.rstrip()) for _, row in rows]
    assert begins == sorted(begins)
    assert ends == sorted(ends, reverse=True)


def test_stages_work_at_the_same_time(shown):
    assert shown("def overlap") == (
        "stages 0 and 1 at the same time: True\nstages 1 and 2 at the same time: True\n"
    )


def test_the_committed_notebook_is_what_runs(executed):
    reading.check_committed(NOTEBOOK, executed)
