"""Ranks that were started again: the panel offers to run there what cells have defined."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.lab import Notebook
from tests.browser.mesh_page import MeshPage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]


def test_a_button_gives_a_healed_rank_what_cells_have_defined(notebook: Notebook) -> None:
    lab = MeshPage(notebook)
    lab.open()
    notebook.run("%mesh up --gpus 3")
    notebook.run("%%mesh\nimport math")
    notebook.run("%%mesh\ndef area(r):\n    return round(math.pi * r * r, 2)")
    numbers = [int(notebook.cell(index).prompt.strip("[]:")) for index in (1, 2)]
    lab.view().says("3 ranks: 3 idle")
    row = lab.panel.get_by_role("group", name="Ranks that were started again")
    assert not row.is_visible()
    notebook.run("%%mesh 2\nimport os\nos.kill(os.getpid(), 9)")
    expect(lab.page).to_have_title(re.compile(r"^2/3 ranks - Untitled.* - JupyterLab$"))

    lab.view().press("heal")
    row.wait_for()
    cells = f"cells {numbers[0]}-{numbers[1]}"
    assert row.inner_text().split("\n") == [
        f"Rank 2 has nothing of what {cells} have defined",
        f"Run {cells} there",
    ]
    expect(lab.page).to_have_title(re.compile(r"^Untitled.* - JupyterLab$"))
    lab.pictures("replay-offered")
    row.get_by_role("button", name=f"Run {cells} there").focus()
    lab.page.keyboard.press("Enter")
    notebook.cell(4).shows(f"In[{numbers[0]}-{numbers[1]}] ran again on rank 2")
    row.wait_for(state="hidden")
    assert notebook.run("%%mesh\narea(1)").text == "[0-2] 3.14"
