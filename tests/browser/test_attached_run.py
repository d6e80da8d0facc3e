"""`monarch-nb attach`: a notebook that runs without a browser, opened while it does."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page

from monarch_nb.control.batch.run_record import FAILED, PASSED, RunRecord
from tests.batch.terminal import COMMAND, notebook, shown, start, typed, until_shown
from tests.browser.lab import READY_S, STOP, Notebook, Server, picture
from tests.browser.mesh_page import MeshPage
from tests.browser.test_reload import goes_on, going_on, is_at_work, lines_of
from tests.support import eventually

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

SAVES_AT_ONCE = {"@jupyterlab/docmanager-extension:plugin": {"autosaveInterval": 1}}
IS_DIRTY = "() => window.jupyterapp.shell.currentWidget.context.model.dirty"
READ_ONLY = "notebook is read-only"


@pytest.fixture
def seen(tmp_path: Path) -> list[Path]:
    return [tmp_path / "ranks", tmp_path / "loop"]


@pytest.fixture
def run(tmp_path: Path, seen: list[Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[RunRecord]:
    """Ranks that print until a file is there, then a loop of the kernel's that does."""
    monkeypatch.setenv("MONARCH_NB_HOME", str(tmp_path / "monarch_nb"))
    (tmp_path / "work").mkdir()
    path = notebook(
        tmp_path / "work/train.ipynb",
        "%mesh up --gpus 2",
        f"%%mesh 0\n{going_on('step', seen[0])}",
        going_on("loop", seen[1]),
    )
    made = start(path)
    until_shown(made.output, 1, "step 3")
    yield made
    if made.now().is_alive():
        typed("stop", made.name)


@pytest.fixture
def lab(run: RunRecord, tmp_path: Path) -> Iterator[Server]:
    command = [*COMMAND, "attach", run.name, "--"]
    with Server(tmp_path, command=command, settings=SAVES_AT_ONCE) as made:
        yield made


@pytest.fixture
def page(profile: BrowserContext) -> Iterator[Page]:
    opened = profile.new_page()
    yield opened
    opened.close()


def load(page: Page, lab: Server, run: RunRecord, *, is_busy: bool = True) -> Notebook:
    name = os.path.basename(run.output)
    page.goto(lab.url(f"lab/tree/{name}"), wait_until="domcontentloaded")
    return Notebook(page, is_busy=is_busy)


def test_cells_go_on_in_the_page(run: RunRecord, seen: list[Path], lab: Server, page: Page):
    opened = load(page, lab, run)
    ranks, loop = opened.cell(1), opened.cell(2)
    goes_on(ranks, "[0] step")
    page.get_by_text(READ_ONLY).wait_for()
    mesh = MeshPage(opened)
    mesh.open()
    mesh.view().says("2 ranks: 1 busy, 1 idle")
    assert len(lab.api("GET", "kernels")) == 1
    picture(page, "attached-run")
    assert page.evaluate(IS_DIRTY), "else nothing would be saved anyway"
    seen[0].touch()
    ranks.finish()
    is_at_work(loop)
    goes_on(loop, "loop")
    for cell, name in ((ranks, "[0] step"), (loop, "loop")):
        lines = lines_of(cell, name)
        assert lines == list(range(len(lines)))
    assert page.locator(".jp-Dialog").count() == 0
    seen[1].touch()
    loop.finish()
    eventually(lambda: run.now().state == PASSED, READY_S)
    lines = lines_of(loop, "loop")
    assert shown(run.output, 2) == "".join(f"loop {number}\n" for number in lines)
    assert page.locator(".jp-Dialog").count() == 0


def test_the_stop_button_stops_the_run(run: RunRecord, lab: Server, page: Page):
    opened = load(page, lab, run)
    ranks = opened.cell(1)
    goes_on(ranks, "[0] step")
    page.click(STOP)
    ranks.shows("KeyboardInterrupt")
    eventually(lambda: run.now().state == FAILED, READY_S)
    assert "cell 2 of 3" in run.now().said
    assert "CellInterrupted" in shown(run.output, 1)
    assert page.locator(".jp-Dialog").count() == 0


def test_the_run_goes_on_when_jupyterlab_ends(
    run: RunRecord, seen: list[Path], tmp_path: Path, page: Page
):
    with Server(tmp_path, command=[*COMMAND, "attach", run.name, "--"]) as lab:
        goes_on(load(page, lab, run).cell(1), "[0] step")
    assert run.now().is_alive()
    for each in seen:
        each.touch()
    code, out, _ = typed("follow")
    assert code == 0, out
