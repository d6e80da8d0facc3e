"""Several notebooks with a mesh each: one list of all, and tabs that outlive the notebooks."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page

from tests.browser.lab import Notebook
from tests.browser.mesh_page import MeshPage, View
from tests.support import code_until, eventually

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

TRAINING = """%%mesh
import monarch_nb
for step in range(20):
    monarch_nb.log(step, loss=1 / (step + 1) + 0.1 * rank)"""

LAYOUT = """() => jupyterapp.serviceManager.workspaces.fetch("default")
    .then(({ data }) => JSON.stringify(data))"""

SHUT_DOWN = """async path => {
    const { sessions, kernels } = jupyterapp.serviceManager;
    const { kernel } = [...sessions.running()].find(one => one.path === path);
    await kernels.shutdown(kernel.id);
}"""

CONNECTIONS = """() => [...jupyterapp.serviceManager.kernels._kernelConnections]
    .filter(one => !one.handleComms).length"""

WATCH = """list => {
    window.asked = [];
    const watch = () => { if (list.textContent.includes("asking")) asked.push(list.textContent); };
    const all = { childList: true, subtree: true, characterData: true };
    new MutationObserver(watch).observe(list, all);
}"""
ASKED = "() => asked"


def test_meshes_of_two_notebooks_are_listed_and_docked(
    new_notebook: Notebook, tmp_path: Path
) -> None:
    lab, page = MeshPage(new_notebook), new_notebook.page
    first = name_of(page)
    lab.notebook.run("%mesh up --gpus 2 --name alpha")
    lab.notebook.run(TRAINING)
    other = second_notebook(page, first)
    second = name_of(page)
    other.run("%mesh up --gpus 3 --name beta")
    found = tmp_path / "found"
    other.start(code_until(found))  # its kernel is busy from now on
    other.save()
    lab.open()
    assert lab.panel.locator(".mnb-lab-all-row").count() == 0
    lab.panel.get_by_text("Meshes of all notebooks (2)").click()
    beta = row(lab, "beta", second)
    beta.get_by_text("3 ranks, idle").wait_for()
    assert page.evaluate(CONNECTIONS) == 0, "the notebook's own is enough"
    row(lab, "alpha", first).get_by_text("2 ranks, idle").wait_for()
    lab.panel.locator(".mnb-lab-all-rows").evaluate(WATCH)

    close_notebook(page, second)
    beta.get_by_text("3 ranks, idle").wait_for()
    eventually(lambda: page.evaluate(CONNECTIONS) == 1, 20)
    row(lab, "alpha", first).get_by_text("2 ranks, idle").wait_for()
    beta.get_by_role("button", name=f"open beta of {second} as a tab").click()
    tab(page, "beta").says(
        "3 ranks: 3 idle"
    )  # while its kernel runs a cell, and no notebook is open
    palette(page, "Open the Curves of the Mesh as a Tab")
    curves = tab(page, "alpha")
    curves.root.get_by_text("step 19").wait_for()
    assert not curves.root.locator(".mnb-grid").is_visible()
    lab.pictures("all-meshes", checked=True)
    assert not page.evaluate(ASKED), "what was told stays while it is asked anew"

    beta.get_by_role("button", name=f"show beta of {second}").click()
    lab.view("beta").says("3 ranks: 3 idle")
    found.touch()
    eventually(lambda: "monarch-nb-meshes:" in page.evaluate(LAYOUT), 20)
    page.reload(wait_until="domcontentloaded")
    tabs(page, "Curves of alpha").wait_for()
    page.evaluate("() => jupyterapp.restored.then(() => null)")  # it puts a tab in front itself
    tabs(page, "beta").click()
    tab(page, "beta").says("3 ranks: 3 idle")
    page.evaluate(SHUT_DOWN, second)
    said = f"The tab of beta was closed: the kernel of {second} has ended."
    page.get_by_text(said).first.wait_for()
    tabs(page, "beta").wait_for(state="detached")


def name_of(page: Page) -> str:
    """Return the path of the notebook in front."""
    name: str = page.evaluate("() => jupyterapp.shell.currentWidget.context.path")
    return name


def second_notebook(page: Page, first: str) -> Notebook:
    """Open another notebook, on a kernel of its own."""
    page.evaluate(
        "() => jupyterapp.commands.execute('notebook:create-new', { kernelName: 'monarch' })"
    )
    page.wait_for_function(
        "first => jupyterapp.shell.currentWidget?.context?.path !== first", arg=first
    )
    return Notebook(page)


def close_notebook(page: Page, name: str) -> None:
    """Close the notebook in front, which is saved. Its kernel goes on."""
    page.evaluate("() => jupyterapp.shell.currentWidget.close()")
    tabs(page, name).wait_for(state="detached")


def tabs(page: Page, label: str) -> Locator:
    """Find the tabs of the main area that have this label."""
    exact = re.compile(f"^{re.escape(label)}$")
    return page.locator("#jp-main-dock-panel .lm-TabBar-tabLabel", has_text=exact)


def tab(page: Page, mesh: str) -> View:
    """Find the view in the tab of a mesh, or of its curves."""
    named = page.locator(".mnb-name", has_text=re.compile(f"^{mesh}$"))
    return View(page, page.locator(".mnb-lab-tab .mnb-root").filter(has=named))


def row(lab: MeshPage, mesh: str, notebook: str) -> Locator:
    """Find the row of a mesh in the list of all meshes."""
    named = lab.page.get_by_role("button", name=f"show {mesh} of {notebook}")
    return lab.panel.locator(".mnb-lab-all-row").filter(has=named)


def palette(page: Page, label: str) -> None:
    """Choose a command, with keys."""
    page.keyboard.press("Control+Shift+c")
    page.locator(".lm-CommandPalette-input:visible").fill(label)
    page.locator(".lm-CommandPalette-item:visible", has_text=label).first.click()
