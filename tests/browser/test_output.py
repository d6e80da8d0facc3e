"""Layouts and progress bars as JupyterLab draws them, and what it leaves of them untrusted."""

from textwrap import indent

import nbformat
import pytest

from monarch_nb.notebook.layouts.layout import SECTIONS, Section, Shown, drawn
from monarch_nb.notebook.output.mime import as_html
from monarch_nb.notebook.output.progress import Bars
from tests.browser.lab import Notebook, picture
from tests.support import code_until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

SAYING = "print('hello from', rank)\nfor i in range(3): print('<b>line</b>', i * rank)"
DOT = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4"
    "2mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
DRAWING = """import matplotlib.pyplot as plt, pandas
print('loss of', rank)
plt.plot([0, rank, 1]); plt.show()
pandas.DataFrame({'rank': [rank], 'loss': [0.5 - rank / 10]})"""
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


def test_figures_and_tables_stand_beside_each_other(notebook):
    notebook.run("%mesh up --gpus 4")
    columns = notebook.run(f"%%mesh --layout columns\n{DRAWING}").element
    figures, tables = columns.locator("td > div > img"), columns.locator("td table.dataframe")
    assert [figures.count(), tables.count()] == [4, 4]
    boxes = [[one.nth(rank).bounding_box() for rank in range(4)] for one in (figures, tables)]
    for row in boxes:
        assert [box["x"] for box in row] == sorted(box["x"] for box in row)
        assert max(box["y"] for box in row) - min(box["y"] for box in row) < 10
    cell, last = columns.bounding_box(), boxes[0][3]
    assert last["x"] + last["width"] < cell["x"] + cell["width"]  # none is out of sight
    texts = [tables.nth(rank).inner_text().split() for rank in range(4)]
    assert [text[-2] for text in texts] == ["0", "1", "2", "3"]

    tabs = notebook.run(f"%%mesh --layout tabs\n{DRAWING}").element
    assert [one.is_visible() for one in tabs.locator("img").all()] == [True, False, False, False]
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        notebook.theme(theme)
        columns.scroll_into_view_if_needed()
        picture(notebook.page, f"output-figures-{theme[11:].lower()}")
    saved = [cell["outputs"] for cell in notebook.model() if "columns" in cell["source"]]
    [[output]] = saved
    assert output["data"]["text/html"].count("<img") == 4


def test_what_is_left_in_a_notebook_that_is_not_trusted(page, server, tmp_path):
    figure = Shown(as_html({"data": {"image/png": DOT}}), "<Figure>")
    page_of_a_rank = Shown("<b onclick='x()'>table</b><script>window.ran = 1</script>", "table")
    sections = [
        Section(f"[{rank}]", [f"hello from {rank}", figure, page_of_a_rank]) for rank in range(3)
    ]
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
    figures = page.locator("td img")
    assert figures.count() == 3
    assert all(figures.nth(rank).evaluate("one => one.naturalWidth") == 1 for rank in range(3))
    assert page.locator("td b", has_text="table").count() == 3
    assert page.locator("b[onclick], .jp-OutputArea script").count() == 0
    assert page.evaluate("window.ran") is None
    picture(page, "output-untrusted")
