"""The same notebook where people open it besides the JupyterLab of today: the oldest one that is
supported, Notebook 7, a page that two people share, the path of a JupyterHub, Voilà."""

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import jupyterlab
import nbformat
import pytest
from playwright.sync_api import Browser, Page, expect

from tests import support
from tests.browser.lab import READY_S, SIZE, STOP, Notebook, Server, picture
from tests.conftest import PRELOAD

pytestmark = [pytest.mark.browser, pytest.mark.nightly, pytest.mark.timeout(400)]

CELLS = [
    "%mesh up --gpus 2",
    "%%mesh\nimport time\nprint('hi'); time.sleep(rank)\nrank",
    "%mesh show",
    "%%mesh\n1 / rank",
    "%%mesh\nfor i in range(1000): print('line', i); time.sleep(0.05)",
]
KERNEL = {"kernelspec": {"name": "monarch", "display_name": "Monarch", "language": "python"}}
HERE = Path(sys.prefix)


def environment(folder: Path, *packages: str) -> Path:
    """An environment with these packages above those of this one; its Python."""
    venv.create(folder, with_pip=True)
    below = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    [packages_folder] = folder.glob("lib/python*/site-packages")
    (packages_folder / "below.pth").write_text(below)
    python = folder / "bin/python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, *packages], check=True, capture_output=True)
    return python


@pytest.fixture(scope="module")
def older(tmp_path_factory) -> Path:
    """A Python with the oldest JupyterLab that is supported."""
    return environment(tmp_path_factory.mktemp("older"), "--no-deps", "jupyterlab==4.4.0")


@pytest.fixture(scope="module")
def others(tmp_path_factory) -> Path:
    """A Python with other front ends, and the JupyterLab of today."""
    wanted = ["notebook>=7.4,<8", "jupyter-collaboration>=4", "voila>=0.5"]
    python = environment(tmp_path_factory.mktemp("others"), *wanted)
    above = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--ignore-installed"]
    subprocess.run(
        [*above, f"jupyterlab=={jupyterlab.__version__}"], check=True, capture_output=True
    )
    return python


@pytest.fixture
def start(tmp_path, monkeypatch) -> Iterator[Callable[..., Server]]:
    """`start(python, "notebook", ...)` is a server of that environment with the cells above."""
    running: list[Server] = []
    files = tmp_path / "work"
    files.mkdir()
    cells = list(map(nbformat.v4.new_code_cell, CELLS))
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL), files / "cells.ipynb")
    monkeypatch.setenv(PRELOAD, "none")
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(HERE / "etc/jupyter"))

    def serve(python: Path, module: str, *options: str, base: str = "/") -> Server:
        folders = [python.parent.parent / "share/jupyter", HERE / "share/jupyter"]
        monkeypatch.setenv("JUPYTER_PATH", os.pathsep.join(map(str, folders)))
        command = [str(python), "-m", module, f"--ServerApp.root_dir={files}", *options]
        running.append(Server(tmp_path, command=command, base=base))
        return running[-1].__enter__()

    yield serve
    for server in running:
        server.end_kernels()
        server.__exit__()


@pytest.fixture
def enter(browser: Browser) -> Iterator[Callable[[str], Page]]:
    """`enter(url)` is a page of another person's."""
    contexts = []

    def go(url: str) -> Page:
        contexts.append(browser.new_context(viewport=SIZE))
        page = contexts[-1].new_page()
        page.set_default_timeout(READY_S * 1000)
        page.goto(url)
        return page

    yield go
    for each in contexts:
        each.close()


def run(notebook: Notebook, index: int) -> None:
    notebook.cells.nth(index).locator(".cm-content").click()
    notebook.page.keyboard.press("Shift+Enter")


def tell_of_a_mesh(notebook: Notebook, name: str) -> None:
    """Bring one up, run a cell, look at the view, in the cell and in the panel, and at an error."""
    for index in range(4):
        run(notebook, index)
        notebook.cell(index).finish()
    notebook.cell(0).shows("mesh0 is up: 2 ranks")
    notebook.cell(1).shows("[0-1] hi")
    notebook.cell(1).shows("[1] 1")
    notebook.cell(2).shows("2 ranks: 1 idle, 1 failed")
    notebook.cell(3).shows("rank 0: ZeroDivisionError")
    notebook.command("monarch-nb:open-panel")
    panel = notebook.page.locator("#monarch-nb-panel")
    expect(panel.get_by_text("2 ranks: 1 idle, 1 failed")).to_be_visible()
    picture(notebook.page, f"front_{name}")


def test_the_oldest_jupyterlab(older, start, enter):
    server = start(older, "jupyterlab")
    tell_of_a_mesh(Notebook(enter(server.url("lab/tree/cells.ipynb"))), "jupyterlab_4_4")


def test_notebook_7(others, start, enter):
    told = ["--JupyterNotebookApp.expose_app_in_browser=True", "--YDocExtension.disable_rtc=True"]
    server = start(others, "notebook", *told)
    tell_of_a_mesh(Notebook(enter(server.url("notebooks/cells.ipynb"))), "notebook_7")


def test_below_the_path_of_a_hub(older, start, enter, monkeypatch):
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/ann/")
    server = start(older, "jupyterlab", base="/user/ann/")
    tell_of_a_mesh(Notebook(enter(server.url("lab/tree/cells.ipynb"))), "hub")


def test_two_people_share_a_notebook_and_its_mesh(others, start, enter):
    at = start(others, "jupyterlab").url("lab/tree/cells.ipynb")
    first, second = Notebook(enter(at)), Notebook(enter(at))
    for index in range(3):
        run(first, index)
        first.cell(index).finish()
    second.cell(1).shows("[0-1] hi")
    second.cell(2).shows("2 ranks: 2 idle")
    run(second, 3)
    first.cell(3).shows("rank 0: ZeroDivisionError")
    first.cell(2).shows("2 ranks: 1 idle, 1 failed")
    run(first, 4)
    second.cell(4).shows("line 20")
    second.page.locator(STOP).first.click()
    for each in (first, second):
        each.cell(4).shows("KeyboardInterrupt")
    picture(second.page, "front_shared")
    first.page.close()  # the mesh is the notebook's, not the person's
    again = Notebook(enter(at))
    again.cell(2).shows("2 ranks: 2 idle")
    second.cell(2).shows("2 ranks: 2 idle")


def test_voila_shows_what_cells_show(others, start, enter, tmp_path):
    file = tmp_path / "work/cells.ipynb"
    cells = list(map(nbformat.v4.new_code_cell, [*CELLS[:3], "%mesh down"]))
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL), file)
    page = enter(start(others, "jupyter_server").url("voila/render/cells.ipynb"))
    support.eventually(lambda: "mesh0 is down" in page.inner_text("body"), READY_S)
    shown = page.inner_text("body")
    assert "mesh0 is up: 2 ranks" in shown
    assert "[0-1] hi" in shown
    assert "mesh0 2 ranks (gpus=2): 2 idle" in shown
