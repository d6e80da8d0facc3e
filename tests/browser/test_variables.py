"""The variables of ranks in the side panel, and a tensor as a table and as an image."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.lab import Notebook
from tests.browser.mesh_page import MeshPage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

DEFINE = """%%mesh
import torch
model = torch.nn.Linear(64, 32)
loss = 0.5 + rank
x = torch.ones(3, 4 if rank == 2 else 1)
waves = torch.sin(torch.arange(300.0) / 20)[:, None] * torch.cos(torch.arange(120.0) / 9)
waves = torch.stack([waves, -10 * waves])
waves[1, 40:60, 30:34] = float("nan")
if rank == 1:
    only = "here"
"""


class Variables:
    """The section of a mesh in the panel, and the tab of a tensor."""

    def __init__(self, lab: MeshPage) -> None:
        self.mesh = lab.panel.get_by_label("Mesh mesh0", exact=True)
        self.table = self.mesh.get_by_role("table", name="Variables of mesh0")
        self.rows = self.table.locator("tbody > tr:visible")
        self.tab = lab.page.locator(".mnb-tensor:visible")
        self.says = self.tab.locator(".mnb-log-count")
        self.numbers = self.tab.get_by_role("table")

    def find(self, text: str) -> None:
        self.mesh.get_by_label("Find variables of mesh0").fill(text)

    def choose(self, field: str, value: str) -> None:
        """Type it into a field of the tab."""
        named = self.tab.get_by_label(re.compile(f"^{field}"))
        named.fill(value)
        named.press("Enter")


def test_variables_are_looked_into_from_the_panel(notebook: Notebook) -> None:
    lab = MeshPage(notebook)
    lab.open()
    notebook.run("%mesh up --gpus 3")
    notebook.run(DEFINE)
    lab.view().says("3 ranks: 3 idle")
    shown = Variables(lab)
    _section_of_the_panel(lab, shown, notebook)
    _tensor_as_a_table(lab, shown)
    _tensor_as_an_image(lab, shown)


def _section_of_the_panel(lab: MeshPage, shown: Variables, notebook: Notebook) -> None:
    assert shown.table.count() == 0, "nothing is asked for before somebody opens it"
    shown.mesh.locator("summary", has_text="Variables").press("Enter")
    expect(shown.rows).to_have_count(5)
    assert [" ".join(text.split()) for text in shown.rows.all_inner_texts()] == [
        "loss≠ 0.5, 1.5, 2.5",
        "model Linear, 2,080 parameters 8.1 KB",
        "only≠ 'here' not on ranks 0,2",
        "waves [2, 300, 120] float32 281.3 KB",
        "x≠ [3, 1] float32 rank 2: [3, 4] float32 48 B",
    ]
    note = shown.mesh.locator(".mnb-vars-note")
    expect(note).to_have_text(re.compile(r"^5 variables, 3 differ, at [\d:]{8}$"))

    # a cell has ended: what is open is asked again
    notebook.run("%%mesh\nx[0, 0] = float('nan') if rank == 1 else 7")
    notebook.run("%%mesh 0\nlate = 1")
    expect(shown.rows.filter(has_text="late")).to_have_count(1)
    lab.pictures("variables")
    shown.table.get_by_role("button", name="memory").click()
    expect(shown.rows.first).to_contain_text("waves")
    shown.find("differs float32")
    expect(shown.rows).to_have_count(1)

    # what is in it is asked for when its row is opened, by keys too
    shown.table.get_by_role("button", name="x", exact=True).press("Enter")
    facts = shown.table.locator(".mnb-var-below")
    expect(facts).to_contain_text("rank 0: 1 to 7, mean 3")
    expect(facts).to_contain_text("rank 1: 1 to 1, mean 1, 1 NaN")
    expect(facts).to_contain_text("1 to 7, mean 1.5")
    lab.pictures("variable-opened")


def _tensor_as_a_table(lab: MeshPage, shown: Variables) -> None:
    shown.table.get_by_role("button", name="Open x").press("Enter")
    tab, numbers = shown.tab, shown.numbers
    head = re.compile(r"^x on rank 0: \[3, 1\] float32 on cpu, at [\d:]{8}$")
    expect(tab.locator(".mnb-tensor-head")).to_have_text(head)
    shown.choose("rank", "1")
    expect(numbers.locator("td.mnb-tensor-odd")).to_have_text("nan")
    expect(numbers.get_by_role("row")).to_have_text(["0", "0nan", "11", "21"])
    shown.choose("rank", "3")
    expect(shown.says).to_contain_text("mesh0 has no rank 3")

    shown.find("waves")
    shown.table.get_by_role("button", name="waves", exact=True).click()
    shown.table.get_by_role("button", name="Open waves").click()
    tab.get_by_text("waves on rank 0: [2, 300, 120] float32 on cpu").wait_for()
    expect(shown.says).to_have_text("rows 0-199 of 300, columns 0-49 of 120")
    tab.get_by_role("button", name="next columns").click()
    tab.get_by_role("button", name="next rows").click()
    expect(shown.says).to_have_text("rows 200-299 of 300, columns 50-99 of 120")
    expect(numbers.get_by_role("columnheader").first).to_have_text("50")
    lab.pictures("tensor-table")


def _tensor_as_an_image(lab: MeshPage, shown: Variables) -> None:
    shown.choose("dim 0", "1")
    shown.tab.get_by_role("button", name="as image").press("Enter")
    image = shown.tab.get_by_role("img", name="waves as an image")
    expect(image).to_have_attribute(
        "aria-label", "waves as an image of 150 x 120 dots, from -9.996 to 9.996, 40 with NaN"
    )
    expect(shown.says).to_have_text("each dot is the mean of 2 x 1 numbers")
    scale = image.evaluate("canvas => canvas.clientWidth / canvas.width")
    image.hover(position={"x": 31.5 * scale, "y": 25.5 * scale})
    expect(shown.tab.locator(".mnb-tensor-said")).to_have_text("rows 50-51, column 31: NaN")
    lab.pictures("tensor-image")
