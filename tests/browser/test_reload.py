"""A page that is loaded again while cells run: their outputs stand in it, each line once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Dialog, Page

from tests.browser.lab import READY_S, Cell, Notebook, Server, picture
from tests.support import eventually

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

GOING_ON = """import os, time
number = 0
while not os.path.exists({seen!r}) or number % 5:
    print('{name}', number); number += 1; time.sleep(0.1)
"""
CHANGING = """from IPython.display import clear_output
print('gone'); clear_output(wait=True)
bar = display({'text/plain': 'begun'}, raw=True, display_id=True)
"""
LOCKS = """async () => {
    const { held } = await navigator.locks.query();
    return held.filter(one => one.name.startsWith("monarch-nb:")).length;
}"""
CHANGED = "bar.update({'text/plain': 'done'}, raw=True)\n1 / 0"


def going_on(name: str, seen: Path) -> str:
    """Lines, one after the other, until the file is there."""
    return GOING_ON.format(name=name, seen=str(seen))


def load(page: Page, server: Server, path: str) -> Notebook:
    """The notebook of a kernel that is at work, in a page that has just come."""
    page.goto(server.url(f"lab/tree/{path}"), wait_until="domcontentloaded")
    return Notebook(page, is_busy=True)


def load_again(notebook: Notebook, server: Server) -> Notebook:
    """Another page in the place of this one; it has unsaved outputs, so the browser asks."""
    path, page, accept = notebook.save(), notebook.page, Dialog.accept
    page.on("dialog", accept)
    again = load(page, server, path)
    page.remove_listener("dialog", accept)
    return again


def lines_of(cell: Cell, name: str) -> list[int]:
    """Scroll to it first: Chromium draws no text outside the window, and that is what is read."""
    cell.element.scroll_into_view_if_needed()
    eventually(lambda: f"{name} " in cell.text, what=f"lines of {name}")
    return [int(line.split()[-1]) for line in cell.text.splitlines() if f"{name} " in line]


def is_at_work(cell: Cell) -> None:
    cell.element.locator(".jp-InputPrompt", has_text="[*]:").wait_for(timeout=READY_S * 1000)


def goes_on(cell: Cell, name: str) -> None:
    """More lines come to those that stand there."""
    is_at_work(cell)
    cell.shows(f"{name} {lines_of(cell, name)[-1] + 3}")


def test_cells_that_run_go_on_where_they_were(notebook: Notebook, server: Server, tmp_path: Path):
    seen = [tmp_path / "ranks", tmp_path / "loop"]
    notebook.run("%mesh up --gpus 2")
    ranks = notebook.start(f"%%mesh 0\n{going_on('step', seen[0])}")
    notebook.start(f"{CHANGING}{going_on('loop', seen[1])}{CHANGED}")
    ranks.shows("[0] step 3")
    again = load_again(notebook, server)
    ranks, loop = again.cell(1), again.cell(2)
    goes_on(ranks, "[0] step")
    picture(again.page, "reload-at-work")
    seen[0].touch()
    ranks.finish()
    loop.shows("loop 3")
    is_at_work(loop)
    again = load_again(again, server)
    ranks, loop = again.cell(1), again.cell(2)
    goes_on(loop, "loop")
    seen[1].touch()
    loop.finish()
    for cell, name, prompt in ((ranks, "[0] step", "[2]:"), (loop, "loop", "[3]:")):
        lines = lines_of(cell, name)
        assert lines == list(range(len(lines)))
        assert len(lines) > 5
        assert cell.prompt == prompt
    assert loop.text.startswith("done\nloop 0")
    assert "gone" not in loop.text
    assert "ZeroDivisionError: division by zero" in loop.text
    assert [said(one) for one in again.model()[2]["outputs"]] == [
        {"text/plain": "done"},
        "".join(f"loop {number}\n" for number in lines_of(loop, "loop")),
        "division by zero",
    ]


def said(output: Mapping[str, Any]) -> Any:
    """Return what is read in it, of whatever kind it is."""
    return next(output[key] for key in ("data", "text", "evalue") if key in output)


def test_a_cell_that_ends_while_no_page_is_there(
    notebook: Notebook, server: Server, tmp_path: Path
):
    seen = tmp_path / "seen"
    cell = notebook.start(going_on("line", seen))
    cell.shows("line 3")
    path = notebook.save()
    notebook.page.once("dialog", Dialog.accept)
    notebook.page.goto("about:blank")
    seen.touch()
    eventually(lambda: {one["execution_state"] for one in server.api("GET", "kernels")} == {"idle"})
    cell = load(notebook.page, server, path).cell(0).finish()
    lines = lines_of(cell, "line")
    assert lines == list(range(len(lines)))
    assert cell.prompt == "[1]:"


def test_two_views_and_another_page_show_each_line_once(
    notebook: Notebook, server: Server, tmp_path: Path
):
    seen = tmp_path / "seen"
    notebook.start(going_on("line", seen)).shows("line 1")
    notebook = load_again(notebook, server)
    page, cell = notebook.page, notebook.cell(0)
    is_at_work(cell)
    notebook.command("docmanager:clone")
    page.locator(".jp-NotebookPanel").nth(1).wait_for()
    with_it = page.context.new_page()
    other = load(with_it, server, notebook.save()).cell(0)
    other.shows("line 1")
    eventually(lambda: with_it.evaluate(LOCKS) == 3, what="both pages' locks, and the first's")
    page.bring_to_front()
    cell.shows(f"line {lines_of(cell, 'line')[-1] + 5}")
    seen.touch()
    lines = lines_of(cell.finish(), "line")
    assert lines == list(range(len(lines)))
    left = lines_of(other, "line")
    assert left == list(range(len(left)))
    assert (other.prompt, len(left) < len(lines)) == ("[ ]:", True)
    with_it.close()
