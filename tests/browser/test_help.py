"""Tab and Shift-Tab in JupyterLab, while a cell runs."""

import re

import pytest
from playwright.sync_api import Locator, Page

from tests.browser.lab import STOP, picture

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

SETUP = """%%mesh
import torch
weights = torch.ones(3)
def widen(layer, by=2):
    "Makes the layer wider."
    return layer * by"""

BUSY = """%%mesh
import time
print("at work")
time.sleep(600)"""


def test_names_of_ranks_while_another_cell_runs(notebook):
    page = notebook.page
    notebook.run("%mesh up --gpus 4")
    notebook.run(SETUP)
    busy = notebook.start(BUSY)
    busy.shows("at work")
    cell = notebook.type("%%mesh gpus=0:2\nx = wei")
    page.keyboard.press("Tab")
    offered(page, "weights", "instance").wait_for()
    page.keyboard.press("Enter")
    cell.element.locator(".cm-line", has_text=re.compile("^x = weights$")).wait_for()
    page.keyboard.insert_text("\nwiden(weights.det")
    page.keyboard.press("Tab")
    offered(page, "detach", "function").wait_for()
    picture(page, "help-completer")
    page.keyboard.press("Escape")
    cell.element.locator(".cm-line", has_text="widen").click(position={"x": 20, "y": 8})
    page.keyboard.press("Shift+Tab")
    page.locator(".jp-Tooltip", has_text="Makes the layer wider.").wait_for()
    picture(page, "help-tooltip")
    assert page.locator(".jp-StatusBar-Widget, #jp-main-statusbar", has_text="Busy").count()
    assert busy.prompt == "[*]:"
    page.click(STOP)
    busy.finish()


def offered(page: Page, text: str, kind: str) -> Locator:
    """An item of the completer's menu."""
    items = page.locator(".jp-Completer:not(.lm-mod-hidden) .jp-Completer-item")
    return items.filter(has_text=text).filter(has_text=kind).first
