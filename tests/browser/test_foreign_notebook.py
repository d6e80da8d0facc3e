"""A notebook of a stranger's that is opened, and not run: nothing of it runs in the page."""

import importlib.metadata
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from packaging.requirements import Requirement
from playwright.sync_api import Page

from tests.browser.lab import Notebook, Server, picture
from tests.browser.mesh_page import View

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

VIEW = "application/vnd.jupyter.widget-view+json"
MESH = "application/vnd.monarch-nb.mesh+json"
STATE = "application/vnd.jupyter.widget-state+json"
ATTACK = "window.attacked = true; export default { render() { window.attacked = true; } };"
REFUSED = "No version of module anywidget is registered"
EXTENSIONS = "share/jupyter/labextensions/"


def notebook_of(data: dict[str, Any], **metadata: Any) -> nbformat.NotebookNode:
    output = nbformat.v4.new_output("display_data", data)
    cell = nbformat.v4.new_code_cell("", outputs=[output], execution_count=1)
    kernel = {"name": "monarch", "display_name": "Monarch", "language": "python"}
    return nbformat.v4.new_notebook(cells=[cell], metadata={"kernelspec": kernel, **metadata})


def with_script() -> nbformat.NotebookNode:
    """One whose saved widget brings a script, as anywidget's do."""
    module = {"module": "anywidget", "version": "~0.11.*"}
    state = {
        "_esm": ATTACK,
        "_model_name": "AnyModel",
        "_view_name": "AnyView",
        **{f"_{part}_module": module["module"] for part in ("model", "view")},
        **{f"_{part}_module_version": module["version"] for part in ("model", "view")},
    }
    model = {
        "model_name": "AnyModel",
        "model_module": module["module"],
        "model_module_version": module["version"],
        "state": state,
    }
    saved = {STATE: {"version_major": 2, "version_minor": 0, "state": {"a" * 32: model}}}
    shown = {VIEW: {"model_id": "a" * 32, "version_major": 2, "version_minor": 0}}
    return notebook_of({"text/plain": "a widget", **shown}, widgets=saved)


def with_mesh(*sizes: int) -> nbformat.NotebookNode:
    mesh = {"labels": ["hosts", "gpus"], "sizes": sizes, "ranks": [["0-65535", "idle", "", "", 0]]}
    state = {
        "v": 1,
        "type": "state",
        "to": "",
        "n": 1,
        "at": 0,
        "seconds": 300,
        "hosts": [],
        "cell": None,
        "meshes": {"mesh0": mesh},
    }
    return notebook_of({MESH: {"v": 1, "mesh": "mesh0", "ranks": None, "snapshot": state}})


def needed(name: str, found: set[str]) -> set[str]:
    """What `pip install NAME` brings, without extras."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key not in found:
        found.add(key)
        for text in importlib.metadata.requires(key) or ():
            wish = Requirement(text)
            if wish.marker is None or wish.marker.evaluate({"extra": ""}):
                needed(wish.name, found)
    return found


def front_ends(folder: Path) -> Path:
    """A folder with the extensions of JupyterLab that come with us, and no others."""
    for name in needed("monarch_nb", set()):
        distribution = importlib.metadata.distribution(name)
        for file in distribution.files or ():
            if str(file).endswith("/package.json") and EXTENSIONS in str(file):
                real = Path(str(distribution.locate_file(file))).resolve().parent
                link = folder / str(real).partition(EXTENSIONS)[2]
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(real)
    return folder


@pytest.fixture
def ours_alone(tmp_path: Path) -> Iterator[Server]:
    """A server with what `pip install monarch_nb` brings."""
    world, extensions = tmp_path / "world", tmp_path / "extensions"
    world.mkdir()
    extensions.mkdir()
    with Server(world, front_ends(extensions)) as running:
        yield running
        running.end_kernels()


def opened(page: Page, server: Server, notebook: nbformat.NotebookNode) -> Notebook:
    nbformat.write(notebook, server.files / "foreign.ipynb")
    page.goto(server.url("lab/tree/foreign.ipynb"), wait_until="domcontentloaded")
    return Notebook(page)


def test_a_foreign_notebook_that_is_opened_runs_nothing(page: Page, ours_alone: Server):
    foreign = with_script()
    foreign.cells[0].source = "open('attacked', 'w')"
    foreign.cells[0].metadata["monarch"] = {"mesh": "@theirs <b>0-3</b>"}
    with page.expect_console_message(lambda said: REFUSED in said.text):
        cell = opened(page, ours_alone, foreign).cell(0)
    tag = cell.element.get_by_role("button", name="runs on @theirs <b>0-3</b>", exact=True)
    tag.wait_for()  # it is said where the cell would run
    assert cell.prompt == "[1]:"
    assert not (ours_alone.files / "attacked").exists()
    assert page.evaluate("() => window.attacked ?? false") is False
    loaded = page.evaluate("() => Object.keys(window._JUPYTERLAB ?? {})")
    assert {"monarch-nb", "@jupyter-widgets/jupyterlab-manager"} <= set(loaded)


def test_with_the_extra_for_other_front_ends_its_script_runs(page: Page, server: Server):
    opened(page, server, with_script())
    page.wait_for_function("() => window.attacked === true")


def test_a_small_file_does_not_make_the_page_draw_a_million_ranks(page: Page, server: Server):
    notebook = with_mesh(1024, 1024)
    assert len(nbformat.writes(notebook, indent=None)) < 1500
    cell = opened(page, server, notebook).cell(0)
    cell.shows("This output shows a mesh in a way that this page cannot read.")


def test_what_a_mesh_may_have_is_drawn(page: Page, server: Server):
    cell = opened(page, server, with_mesh(256, 256)).cell(0)
    cell.shows("65536 ranks: 65536 idle, as of")
    view = View(page, cell.element.locator(".mnb-root"))
    view.click(5)
    picture(page, "view-65536")
