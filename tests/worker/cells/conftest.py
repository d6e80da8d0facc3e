"""A rank that runs cells."""

import pytest

from tests.worker.cells.cell_rank import Rank


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def rank(home):
    rank = Rank(home)
    yield rank
    rank.close()
