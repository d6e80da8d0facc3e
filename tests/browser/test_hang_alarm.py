"""The alarm below a cell whose ranks hang, as JupyterLab shows it."""

import pytest
from playwright.sync_api import expect

from tests.browser.lab import STOP, picture

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]


IS_BELOW = """() => {
  const last = (kind, text) =>
    [...document.querySelectorAll(`.jp-OutputArea ${kind}`)]
      .filter((each) => each.textContent.includes(text)).at(-1)?.getBoundingClientRect();
  return last("b", "ranks 0-2 in barrier")?.top >= last("pre", "step 11")?.bottom - 1;
}"""


def test_the_alarm_is_in_sight_below_what_ranks_print(notebook):
    notebook.run("%mesh up --gpus 4")
    notebook.run("%%mesh\nimport time, torch, torch.distributed as dist\ndist.barrier()")
    cell = notebook.start(
        "%%mesh\nfor i in range(12 * (rank == 3)): print('step', i, flush=True); time.sleep(0.5)\n"
        "if rank == 3: time.sleep(60)\ndist.barrier()"
    )
    cell.element.locator("b", has_text="ranks 0-2 in barrier").last.wait_for()
    cell.element.locator("pre", has_text="step 11").last.wait_for()
    notebook.page.wait_for_function(IS_BELOW)
    shown = cell.element.locator("b", has_text="ranks 0-2 in barrier")
    expect(shown).to_have_count(1)
    box = shown.bounding_box()
    assert 0 <= box["y"] <= notebook.page.viewport_size["height"]
    text = cell.element.inner_text()
    assert "The stop button ends the wait; %mesh collectives and %mesh stacks show more" in text
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        notebook.theme(theme)
        picture(notebook.page, f"hang-alarm-{theme[11:].lower()}")
    notebook.page.click(STOP)
    cell.finish()
