"""The notebook on RDMABuffer runs from top to bottom, and shows its reader what its text says."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import nbformat
import pytest

from tests.notebooks import reading

SERVER = reading.NOTEBOOKS / "parameter_server.ipynb"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * reading.LIMIT_S)]


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The notebook, run now."""
    return reading.execute(SERVER, tmp_path_factory.mktemp("server"))


@pytest.fixture(params=["committed", "executed"])
def shown(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """What the cell with this source shows: in the repository, and when it is run now."""
    if request.param == "committed":
        notebook = nbformat.read(SERVER, as_version=4)
    else:
        notebook = request.getfixturevalue("executed")
    return lambda source: reading.text_of(reading.find(notebook, source))


def test_workers_learn_what_one_process_would(shown):
    assert shown("worker_sync_with_ps.call(server)") == "[True, True, True]\n"
    text = shown("losses = []")
    losses = [float(each) for each in re.findall(r"step \d+: loss ([\d.]+)", text)]
    assert len(losses) == 3
    assert losses[0] > losses[1] > losses[2]
    assert text.endswith("learned: True\n")


def test_the_notebook_reads_too(shown):
    assert shown("predicted =") == "close to sin(x): True\n128 bytes by cma\n"


def test_a_dropped_buffer_is_explained(shown):
    said = r"ClosedError - buffer \d+ not found: server\[0\] has dropped it, or has ended\n"
    assert re.fullmatch(said, shown(".drop()"))


def test_the_committed_notebook_is_what_runs(executed):
    reading.check_committed(SERVER, executed)


def test_it_names_no_place_of_this_machine():
    assert not reading.places(SERVER)
