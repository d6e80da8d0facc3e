"""The notebook on training that outlives a rank: one is killed, and nobody's losses are others."""

import re

import pytest

from tests.notebooks import reading

NOTEBOOK = reading.NOTEBOOKS / "elastic.ipynb"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * reading.LIMIT_S)]


def test_one_line_says_what_has_happened(shown):
    said = shown("os.kill(")
    assert re.search(
        r"rank 2 was killed by signal 9 \(SIGKILL\): it is back after \d\.\d s, "
        r"and the loop goes on at step \d+\n",
        said,
    )


def test_the_losses_are_those_of_a_run_without_a_fault(shown):
    lines = shown("enumerate(mesh0").splitlines()
    assert lines == [
        f"rank {rank}: {'a new' if rank == 2 else 'the same'} process, "
        "60 losses, all the same: True"
        for rank in range(4)
    ]


def test_the_committed_notebook_is_what_runs(executed):
    reading.check_committed(NOTEBOOK, executed)
