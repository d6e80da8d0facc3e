"""What holds for each notebook of the repository, run or not."""

from pathlib import Path

import pytest

from tests.notebooks import reading


@pytest.mark.parametrize("path", sorted(reading.NOTEBOOKS.glob("*.ipynb")), ids=lambda at: at.stem)
def test_it_names_no_place_of_this_machine(path: Path):
    assert not reading.places(path)
