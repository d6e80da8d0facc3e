"""The tour in JupyterLab: opened, run from top to bottom, looked at."""

import re

import pytest

from tests import support
from tests.browser.lab import READY_S, Notebook, picture
from tests.source import ROOT

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

ALL_S = 120
"""All cells of a notebook, on two busy cores."""
TOUR = ROOT / "notebooks/tour.ipynb"
FAIL_ON_PURPOSE = ["def check(images)", "os.kill(os.getpid(), signal.SIGKILL)"]


@pytest.fixture
def tour(page, server) -> Notebook:
    """Open the file as the file browser does."""
    server.add(TOUR)
    page.goto(server.url("lab/tree/tour.ipynb"), wait_until="domcontentloaded")
    return Notebook(page)


def test_run_all_reaches_the_end(tour):
    """Cells that are tagged as failing do not stop it."""
    assert tour.page.locator(".jp-Toolbar-kernelName").inner_text().strip() == "Monarch"
    tour.menu("Edit", "Clear Outputs of All Cells")
    tour.menu("Run", "Run All Cells")
    support.eventually(lambda: last_words(tour) == "mesh0 is down\n", ALL_S, "the tour to end")
    support.eventually(lambda: tour.model()[-1]["execution_count"], READY_S, "its last number")
    code = [cell for cell in tour.model() if cell["cell_type"] == "code"]
    failed = [code[index]["source"] for index in tour.errors()]
    assert len(failed) == len(FAIL_ON_PURPOSE)
    for source, part in zip(failed, FAIL_ON_PURPOSE, strict=True):
        assert part in source
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    for theme in ("Light", "Dark"):
        tour.theme(f"JupyterLab {theme}")
        look_at_every_screen(tour, f"tour-{theme.lower()}")


def last_words(tour: Notebook) -> str:
    outputs = tour.model()[-1]["outputs"]
    return "".join(outputs[0].get("text", "")) if outputs else ""


def look_at_every_screen(tour: Notebook, name: str) -> None:
    """Scroll through it. No escape code is to be seen."""
    scroller = tour.page.locator(".jp-NotebookPanel .jp-WindowedPanel-outer")
    height = scroller.evaluate("area => area.clientHeight")
    top, number = 0, 0
    while top < scroller.evaluate("area => area.scrollHeight"):
        scroller.evaluate("(area, top) => { area.scrollTop = top; }", top)
        tour.page.wait_for_function(
            "area => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
            ".then(() => true)",
            arg=scroller.element_handle(),
        )
        assert not re.search(r"\x1b|\[\d+(;\d+)*m", scroller.inner_text())
        picture(tour.page, f"{name}-{number:02d}")
        top, number = top + height - 40, number + 1
