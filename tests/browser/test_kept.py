"""Meshes that have outlived their kernel: the panel offers them, and a click brings them back."""

import os
import re
import signal
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from monarch_nb.control.keeping import kept_record
from tests import support
from tests.browser.conftest import from_launcher
from tests.browser.lab import Notebook, Server
from tests.browser.mesh_page import MeshPage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

PID = "import os\nprint(os.getpid())"
KEPT = "These ranks have outlived their kernel."


@pytest.fixture
def lab(page: Page, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[MeshPage]:
    """A new notebook with the panel beside it. No mesh is left, should the test fail."""
    monkeypatch.setenv("MONARCH_NB_HOME", str(server.home))
    made = MeshPage(from_launcher(page, server))
    made.open()
    yield made
    server.end_kernels()
    for record in kept_record.all_records():
        record.end()


def kill_kernel(notebook: Notebook) -> None:
    """As a crash does; Jupyter starts another one, and says so."""
    pid = int(notebook.run(PID).text)
    os.kill(pid, signal.SIGKILL)
    notebook.page.locator(".jp-Dialog").get_by_role("button", name="Ok").click(timeout=60_000)


def test_a_click_brings_a_mesh_back_after_a_crash(lab: MeshPage) -> None:
    notebook, panel = lab.notebook, lab.panel
    notebook.run("%mesh up --gpus 2 --keep 10m")
    lab.view().says("2 ranks: 2 idle")
    notebook.run("%%mesh\nx = rank * 10")
    row = panel.get_by_role("group", name="Kept mesh0")
    assert not row.is_visible(), "it is this kernel's own"
    kill_kernel(notebook)
    row.wait_for()
    assert row.inner_text().split("\n") == ["mesh0", "Attach", "2 ranks, kept for 10 min"]
    panel.get_by_text(KEPT).wait_for()
    assert not panel.get_by_text("its mesh is gone").is_visible()
    lab.pictures("kept-offered")

    row.get_by_role("button", name="Attach").focus()
    lab.page.keyboard.press("Enter")
    lab.view().says("2 ranks: 2 idle")
    row.wait_for(state="hidden")
    attach = notebook.cell(3)
    attach.shows("mesh0 (2 ranks (gpus=2)) is back")
    notebook.cell(4).element.and_(lab.page.locator(".jp-mod-active")).wait_for()
    lab.pictures("kept-attached")
    assert attach.element.locator(".cm-content").inner_text() == "%mesh attach mesh0"
    assert notebook.run("%%mesh\nx").text == "[0] 0\n[1] 10"

    notebook.run("%mesh down")
    panel.get_by_text("No mesh is up yet.").wait_for()
    assert not row.is_visible()


def test_a_mesh_of_another_notebook_is_looked_at(lab: MeshPage, server: Server) -> None:
    lab.notebook.run("%mesh up --gpus 2 --keep 10m")
    pid = lab.notebook.run(PID).text
    other = MeshPage(from_launcher(lab.page.context.new_page(), server))
    other.open()
    notebook, panel = other.notebook, other.panel
    row = panel.get_by_role("group", name="Kept mesh0")
    row.get_by_text(f"2 ranks, driven by process {pid}").wait_for()
    assert row.get_by_role("button").all_inner_texts() == ["View"]
    panel.get_by_text("No mesh is up yet.").wait_for()
    other.pictures("kept-elsewhere")
    row.get_by_role("button", name="View").click()
    other.view().says("2 ranks: 2 idle")
    row.wait_for(state="hidden")
    notebook.cell(0).shows("mesh0 (2 ranks (gpus=2)) is looked at")
    assert re.search("looked at only", notebook.run("%%mesh\n1").text)

    notebook.run("%mesh down mesh0")
    row.wait_for()
    lab.notebook.run("%mesh down")
    support.eventually(lambda: not kept_record.all_records(), 10, "nothing is kept")


@pytest.mark.nightly
def test_a_mesh_on_hosts_of_another_notebook_is_looked_at_until_that_ends_it(
    lab: MeshPage, server: Server
) -> None:
    lab.notebook.run("%mesh up --on processes --hosts 2 --gpus 2 --device cpu --keep 10m")
    other = MeshPage(from_launcher(lab.page.context.new_page(), server))
    other.open()
    row = other.panel.get_by_role("group", name="Kept mesh0")
    row.get_by_role("button", name="View").click()
    other.view().says("4 ranks: 4 idle")
    lab.notebook.run(
        "%%mesh\nimport monarch_nb, time\nfor step in range(20):\n"
        "    monarch_nb.log(loss=1 / (1 + step + rank)); time.sleep(0.05)\nprint('hello', rank)"
    )
    look = other.notebook.cell(0)
    look.shows("hello 3")
    other.view().says("4 ranks: 4 idle")
    other.pictures("kept-looked-at")

    lab.notebook.run("%mesh down")
    look.shows("mesh0 was stopped")
    other.panel.get_by_text("No mesh is up yet.").wait_for()
    other.pictures("kept-look-over")


def test_a_mesh_that_is_ended_in_a_cell_is_offered_no_more(lab: MeshPage) -> None:
    notebook, panel = lab.notebook, lab.panel
    notebook.run("%mesh up --gpus 2 --keep 10m")
    kill_kernel(notebook)
    row = panel.get_by_role("group", name="Kept mesh0")
    row.wait_for()
    notebook.run("%mesh down --kept mesh0")
    row.wait_for(state="hidden")
    panel.get_by_text("No mesh is up yet.").wait_for()
