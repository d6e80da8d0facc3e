"""Layouts and progress bars as JupyterLab draws them, and what it leaves of them untrusted."""

from textwrap import indent

import nbformat
import pytest

from monarch_nb.notebook.layouts.layout import SECTIONS, Section, drawn
from monarch_nb.notebook.output.progress import Bars
from tests.browser.lab import Notebook, picture
from tests.support import code_until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

SAYING = "print('hello from', rank)\nfor i in range(3): print('<b>line</b>', i * rank)"
BARS = """%%mesh
from tqdm.auto import tqdm
for i in tqdm(range(20), desc='train'):
    if rank == 3 and i == 10:
"""


def test_layouts_and_bars(notebook, tmp_path):
    notebook.run("%mesh up --gpus 4")
    columns = notebook.run(f"%%mesh --layout columns\n{SAYING}").element
    places = [columns.locator("pre", has_text=f"hello from {rank}") for rank in range(4)]
    boxes = [place.bounding_box() for place in places]
    assert len({box["y"] for box in boxes}) == 1
    assert [box["x"] for box in boxes] == sorted(box["x"] for box in boxes)

    tabs = notebook.run(f"%%mesh --layout tabs\n{SAYING}").element
    texts = [tabs.locator("pre", has_text=f"hello from {rank}") for rank in range(4)]
    assert [text.is_visible() for text in texts] == [True, False, False, False]
    tabs.locator("summary").nth(2).focus()
    notebook.page.keyboard.press("Enter")
    texts[2].wait_for(state="visible")
    assert not texts[0].is_visible()

    seen = tmp_path / "seen"
    bars = notebook.start(BARS + indent(code_until(seen), " " * 8))
    bars.element.locator("progress").nth(1).wait_for()  # the slow rank's, apart from the others
    picture(notebook.page, "output-bars")
    seen.touch()
    bars.finish()
    assert bars.element.locator("progress").count() == 1
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        notebook.theme(theme)
        picture(notebook.page, f"output-{theme[11:].lower()}")


def test_what_is_left_in_a_notebook_that_is_not_trusted(page, server, tmp_path):
    sections = [Section(f"[{rank}]", f"hello from {rank}") for rank in range(3)]
    contents = [drawn(kind, sections, "name") for kind in SECTIONS]
    bars = Bars()
    bar = {"id": 1, "serial": 1, "description": "train", "done": 5, "total": 10}
    bars.add("m", 0, 4, {"bars": [bar]}, 0.0)
    outputs = [
        nbformat.v4.new_output("display_data", content["data"])
        for content in (*contents, bars.draw(0.0))
    ]
    cell = nbformat.v4.new_code_cell("1", outputs=outputs)
    path = tmp_path / "untrusted.ipynb"
    kernel = {"kernelspec": {"name": "monarch", "display_name": "Monarch"}}
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=kernel), path)
    server.add(path)
    page.goto(server.url("lab/tree/untrusted.ipynb"), wait_until="domcontentloaded")
    Notebook(page)  # its kernel is there, so that it can be shut down
    page.locator("progress").wait_for()
    assert page.locator("progress").get_attribute("value") == "0.5000"
    assert page.locator("td pre", has_text="hello from").count() == 3
    shown = page.locator(".jp-OutputArea")
    assert shown.locator("details[open]").count() == 1
    shown.locator("summary").nth(1).click()
    shown.locator("details pre", has_text="hello from 1").wait_for(state="visible")
    picture(page, "output-untrusted")
