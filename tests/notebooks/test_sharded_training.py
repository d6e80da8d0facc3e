"""The notebook on a transformer over 2 x 2 ranks: what it shows is what one process computes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import nbformat
import pytest

from tests.notebooks import reading

SHARDED = reading.NOTEBOOKS / "sharded_training.ipynb"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * reading.LIMIT_S)]


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The notebook, run now."""
    return reading.execute(SHARDED, tmp_path_factory.mktemp("sharded"))


@pytest.fixture(params=["committed", "executed"])
def shown(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """What the cell with this source shows: in the repository, and when it is run now."""
    if request.param == "committed":
        notebook = nbformat.read(SHARDED, as_version=4)
    else:
        notebook = request.getfixturevalue("executed")
    return lambda source: reading.text_of(reading.find(notebook, source))


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
    reading.check_committed(SHARDED, executed)


def test_it_names_no_place_of_this_machine():
    assert not reading.places(SHARDED)
