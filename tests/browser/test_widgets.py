"""Widgets and displays of ranks in JupyterLab: moved, pressed, loaded again, looked at."""

import pytest

from tests import support
from tests.browser.lab import Cell, Notebook, picture

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

CONTROLS = """%%mesh
import ipywidgets as widgets
slider = widgets.IntSlider(value=rank, description=f"lr {rank}")
button = widgets.Button(description=f"press {rank}")
button.on_click(lambda _: print("pressed, slider at", slider.value))
widgets.HBox([slider, button])"""

PICTURES = """%%mesh
import matplotlib.pyplot as plt
from IPython.display import HTML, Markdown, display
display(Markdown("**loss** $e^{-x}$"))
figure, axes = plt.subplots(figsize=(3, 1.5))
axes.plot([1, 2, 0, 3][: 2 + rank % 2])
plt.show()"""

ANIMATION = """%%mesh
from IPython.display import clear_output
handle = display("epoch 0", display_id=True)
for step in range(5):
    handle.update(f"epoch {step}")
    if rank == 1:
        clear_output(wait=True)
        print("only this rank: step", step)"""


def sliders(cell: Cell):
    return cell.element.locator(".widget-slider")


def readouts(cell: Cell) -> list[str]:
    return cell.element.locator(".widget-readout").all_inner_texts()


def move_to_the_end(cell: Cell, rank: int) -> None:
    """With the keyboard, as a person may."""
    cell.element.locator(".noUi-handle").nth(rank).focus()
    cell.page.keyboard.press("End")


def test_widgets_of_ranks(notebook: Notebook, server) -> None:
    notebook.run("%mesh up --gpus 4")
    controls = notebook.run(CONTROLS)
    sliders(controls).nth(3).wait_for()
    assert readouts(controls) == ["0", "1", "2", "3"]

    move_to_the_end(controls, 2)
    assert "[2] 100\n" in notebook.run("%%mesh\nslider.value").text + "\n"

    notebook.run("%%mesh 1\nslider.value = 55")
    support.eventually(lambda: readouts(controls) == ["0", "55", "100", "3"], 20, "the readouts")

    controls.element.locator("button", has_text="press 2").click()
    controls.shows("[2] pressed, slider at 100")

    notebook.run(PICTURES)  # loads matplotlib, on each rank at its own pace
    pictures = notebook.run(PICTURES)
    pictures.shows("[0,2]")
    animation = notebook.run(ANIMATION)
    animation.shows("[1] only this rank: step 4")
    assert "step 3" not in animation.text
    for theme in ("Light", "Dark"):
        notebook.theme(f"JupyterLab {theme}")
        for name, cell in (
            ("controls", controls),
            ("pictures", pictures),
            ("animation", animation),
        ):
            cell.element.scroll_into_view_if_needed()
            picture(notebook.page, f"widgets-{name}-{theme.lower()}")


def test_a_page_that_is_loaded_again_and_a_mesh_that_goes_down(notebook: Notebook, server) -> None:
    notebook.run("%mesh up --gpus 2")
    notebook.run(CONTROLS)
    sliders(notebook.cell(1)).nth(1).wait_for()
    move_to_the_end(notebook.cell(1), 1)
    busy = notebook.start("%%mesh --noblock 1\nimport time; time.sleep(5)").finish()
    assert busy.prompt
    path = notebook.save()
    notebook.page.goto(server.url(f"lab/tree/{path}"), wait_until="domcontentloaded")
    again = Notebook(notebook.page)
    sliders(again.cell(1)).nth(1).wait_for()  # although rank 1 is busy
    assert readouts(again.cell(1)) == ["0", "100"]
    sliders(again.cell(1)).first.evaluate("slider => { slider.dataset.mine = 'yes'; }")
    move_to_the_end(again.cell(1), 0)
    assert "[0-1] 100" in again.run("%%mesh\nslider.value").text
    drawn = sliders(again.cell(1)).first.get_attribute("data-mine")
    assert drawn == "yes", "it was drawn again, which takes the keyboard away from it"

    again.run("%mesh down")
    off = again.cell(1).element.locator("button:disabled", has_text="press 1")
    off.wait_for()
    again.cell(1).element.scroll_into_view_if_needed()
    picture(again.page, "widgets-off")


VALUES = """import math
import torch
from IPython.display import display
from monarch_nb import Extent, ValueMesh
shape = Extent(["hosts", "gpus"], [4, 8]).region.as_shape()
losses = [math.sin(rank / 3) for rank in range(31)] + [math.nan]
display(ValueMesh(shape, losses))
four = Extent(["gpus"], [4]).region.as_shape()
display(ValueMesh(four, [{"loss": 0.5 / (rank + 1), "step": rank} for rank in range(4)]))
display(ValueMesh(four, [torch.arange(6.0) * rank for rank in range(4)]))
mesh0"""


def test_values_and_meshes(notebook: Notebook) -> None:
    notebook.run("%mesh up --gpus 4")
    cell = notebook.run(VALUES)
    cell.shows("1 not finite")
    cell.shows("float32 (6,), 0 to 15, mean 7.5")
    ranks = cell.shows("4 ranks: 4 idle")
    for theme in ("Light", "Dark"):
        notebook.theme(f"JupyterLab {theme}")
        picture(notebook.page, f"values-{theme.lower()}")
        ranks.scroll_into_view_if_needed()
        picture(notebook.page, f"ranks-{theme.lower()}", clip=ranks.bounding_box())
