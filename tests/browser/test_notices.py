"""A person who is elsewhere is told that a cell has ended, and which tab needs a look."""

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import from_launcher
from tests.browser.lab import Server
from tests.browser.mesh_page import MeshPage
from tests.support import code_until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

# What the system would show, and whether the person is in another window.
ELSEWHERE = """
    window.shown = [];
    window.isAway = false;
    document.hasFocus = () => !window.isAway;
    window.Notification = class {
        static permission = "default";
        static async requestPermission() {
            window.asked = navigator.userActivation.isActive;
            return (window.Notification.permission = "granted");
        }
        constructor(title, { body }) {
            Object.assign(this, { title, body });
            window.shown.push(this);
        }
        close() {}
    };
"""
TOAST = ".Toastify__toast"
LONG_S = 2


def shown(page: Page, count: int) -> list[Any]:
    """Titles and texts of the browser's notifications, when there are so many."""
    page.wait_for_function("count => window.shown.length >= count", arg=count)
    return page.evaluate("() => window.shown.map(({ title, body }) => [title, body])")


def test_a_person_is_told_of_the_end_of_a_cell(page: Page, server: Server, tmp_path: Path) -> None:
    page.add_init_script(ELSEWHERE)
    url = server.url("lab/api/settings/monarch-nb:plugin")
    assert page.request.put(url, data={"raw": f'{{"notifyAfter": {LONG_S}}}'}).ok
    lab = MeshPage(from_launcher(page, server))
    notebook = lab.notebook
    notebook.run("%mesh up --gpus 4")
    assert page.title().startswith("Untitled"), "nothing needs a look"

    go_on = tmp_path / "go_on"
    # it takes long by itself: the question may have come for the first cell, where that was slow
    cell = notebook.start(
        f"%%mesh\n{code_until(go_on)}\ntime.sleep({LONG_S})\nif rank == 2:\n    1 / 0"
    )
    question = page.locator(TOAST, has_text="Shall the browser tell you when cells end that run")
    question.wait_for()
    lab.pictures("notice-asked")
    question.get_by_role("button", name="Tell me").click()
    page.wait_for_function("() => window.asked")
    page.evaluate("() => { window.isAway = true; }")
    go_on.touch()
    [[title, body]] = shown(page, 1)
    assert re.fullmatch(r"Untitled\d*\.ipynb: cell \[2\] failed on rank 2 after \d+ s", title)
    assert body == "ZeroDivisionError: division by zero"
    expect(page).to_have_title(re.compile(r"^failed - Untitled.* - JupyterLab$"))
    page.evaluate("() => { window.shown[0].onclick(); }")
    cell.element.and_(page.locator(".mnb-mod-lit")).wait_for()

    notebook.run("%%mesh\n1")
    watch = notebook.run("%mesh watch")
    assert watch.text == "you will be told when the next cell ends"
    expect(page).to_have_title(re.compile(r"^Untitled.* - JupyterLab$"))
    page.evaluate("() => { window.isAway = false; }")
    go_on.unlink()
    cell = notebook.start(f"%%mesh\n{code_until(go_on)}")
    lab.status("4 ranks: 4 busy")  # the page knows of the cell
    notebook.command("launcher:create")
    cell.element.wait_for(state="hidden")
    go_on.touch()
    toast = page.locator(TOAST, has_text=re.compile(r"cell \[5\] has ended after"))
    toast.wait_for()
    lab.pictures("notice-in-page")
    assert len(shown(page, 1)) == 1, "a short cell is not told, and who is here is told by the page"
    toast.get_by_role("button", name="Show the cell").click()
    cell.element.and_(page.locator(".mnb-mod-lit")).wait_for()
