"""The notebook on training that outlives a rank, in JupyterLab: a rank is killed in front of the
reader, and the cell goes on.
"""

import re

import pytest

from tests import support
from tests.browser.lab import Notebook
from tests.browser.test_tour import ALL_S, last_words, look_at_every_screen
from tests.source import ROOT

pytestmark = [pytest.mark.browser, pytest.mark.nightly, pytest.mark.timeout(240)]

BACK = re.compile(
    r"rank 2 was killed by signal 9 \(SIGKILL\): it is back after \d+\.\d s, "
    r"and the loop goes on at step \d+"
)


@pytest.fixture
def notebook(page, server) -> Notebook:
    server.add(ROOT / "notebooks/elastic.ipynb")
    page.goto(server.url("lab/tree/elastic.ipynb"), wait_until="domcontentloaded")
    return Notebook(page)


def test_a_rank_is_killed_in_front_of_the_reader(notebook):
    notebook.menu("Edit", "Clear Outputs of All Cells")
    notebook.menu("Run", "Run All Cells")
    support.eventually(lambda: last_words(notebook) == "mesh0 is down\n", ALL_S, "its end")
    assert notebook.errors() == []
    said = [str(cell.get("outputs")) for cell in notebook.model()]
    assert sum(bool(BACK.search(each)) for each in said) == 1
    assert "rank 2: a new process, 60 losses, all the same: True" in said[-2]
    for theme in ("Light", "Dark"):
        notebook.theme(f"JupyterLab {theme}")
        look_at_every_screen(notebook, f"elastic-{theme.lower()}")
