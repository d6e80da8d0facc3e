"""The notebook on a transformer over 2 x 2 ranks: what it shows is what one process computes."""

import re

import pytest

from tests.notebooks import reading

NOTEBOOK = reading.NOTEBOOKS / "sharded_training.ipynb"

pytestmark = pytest.mark.timeout(2 * reading.LIMIT_S)


def test_each_step_has_the_loss_of_one_process(shown):
    text = shown("zip(alone, together)")
    steps = re.findall(r"^ +(\d+) +(\d\.\d{5}) +(\d\.\d{5})  #+$", text, re.MULTILINE)
    assert [int(step) for step, _, _ in steps] == list(range(12))
    for _, one, four in steps:
        assert float(four) == pytest.approx(float(one), abs=1.1e-4)
    losses = [float(four) for _, _, four in steps]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 2.5
    assert text.endswith("equal to 1e-4: True\n")


def test_a_rank_holds_its_part_only(shown):
    assert "float32[256, 64]" in shown("module_to_mesh(model")
    assert shown("for place in range(2):") == (
        "model_parallel=0: [128, 64]\nmodel_parallel=1: [128, 64]\nthe whole: [256, 64]\n"
    )
    assert shown("copies =") == "equal along data_parallel: True\nits gradient: [128, 64]\n"


def test_a_spec_that_names_no_axis_is_explained(shown):
    assert shown("except ValueError") == (
        "sharding spec ['batch', None]: the mesh has no axis 'batch', only data_parallel, "
        "model_parallel\n"
    )


def test_the_state_comes_home(shown):
    assert shown("load_state_dict") == "close to the model of one process: True\n"
    assert shown("allclose") == "the same logits: True\n"


def test_the_committed_notebook_is_what_runs(executed):
    reading.check_committed(NOTEBOOK, executed)
