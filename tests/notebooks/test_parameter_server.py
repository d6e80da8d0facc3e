"""The notebook on RDMABuffer runs from top to bottom, and shows its reader what its text says."""

import re

import pytest

from tests.notebooks import reading

NOTEBOOK = reading.NOTEBOOKS / "parameter_server.ipynb"

pytestmark = pytest.mark.timeout(2 * reading.LIMIT_S)


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
    reading.check_committed(NOTEBOOK, executed)
