"""JupyterLab with ranks on two other machines: its debugger, the prompt, help, hangs, logs."""

import re

import pytest

from tests.browser.lab import STOP, Notebook, picture
from tests.browser.test_debugger import WORK, Debugger
from tests.browser.test_help import offered
from tests.browser.test_prompt import STEP, Prompt
from tests.browser.tools_page import Log, Tools
from tests.clusters.remote.conftest import nodes, up

__all__ = ["nodes", "up"]

pytestmark = [pytest.mark.browser, pytest.mark.nightly, pytest.mark.timeout(240)]

NAMES = """%%mesh
def widen(layer, by=2):
    "Makes the layer wider."
    return layer * by"""
GROUP = """%%mesh
import time, torch.distributed as dist
dist.init_process_group("gloo")"""
HANG = """%%mesh
def load():
    time.sleep(600)

if rank == 3:
    load()
dist.barrier()"""


@pytest.fixture
def remote(nodes, up: str, notebook: Notebook) -> Notebook:
    """A notebook with ranks 0-1 on node1, 2-3 on node2."""
    notebook.run(up).shows("mesh0 is up: 4 ranks (hosts=2 gpus=2)")
    return notebook


def pictures(notebook: Notebook, name: str) -> None:
    for theme in ("Dark", "Light"):
        notebook.theme(f"JupyterLab {theme}")
        picture(notebook.page, f"remote-{name}-{theme.lower()}")


def test_the_prompt_and_the_debugger(remote: Notebook) -> None:
    asking = remote.start(STEP)
    prompt = Prompt(remote, asking)
    prompt.type("rank 3", at="(rank 0)")
    asking.shows("rank 3 at Cell In[")
    prompt.type("p y + rank", at="(rank 3)")
    asking.shows("45")
    prompt.asks("(rank 3)")
    pictures(remote, "prompt")
    prompt.click()
    prompt.type("continue", at="(rank 3)")
    asking.finish()
    prompt.is_gone()

    debugger = Debugger(remote)
    remote.run("%mesh debugger 3").shows("the visual debugger is for rank 3 of mesh0")
    debugger.on()
    cell = debugger.type(WORK)
    debugger.gutter(cell, 6)
    cell.element.locator(".cm-content").click()
    remote.command("notebook:run-cell")
    debugger.stands_at(cell, "z = y * 2")
    debugger.status("4 ranks: 3 idle, 1 paused")
    debugger.variable("x", "20")
    debugger.variable("y", "23")
    debugger.press("next")
    debugger.stands_at(cell, "return z")
    debugger.variable("z", "46")
    pictures(remote, "debugger")
    debugger.press("continue")
    cell.shows("v 46")
    debugger.goes_on()
    debugger.toggle()


def test_help_a_hang_and_logs(remote: Notebook) -> None:
    page = remote.page
    remote.run(
        "%%mesh\ndef widen(layer, by=2):\n    'Makes the layer wider.'\n    return layer * by"
    )
    cell = remote.type("%%mesh 2-3\nwid")
    page.keyboard.press("Tab")
    offered(page, "widen", "function").wait_for()
    page.keyboard.press("Enter")
    cell.element.locator(".cm-line", has_text=re.compile("^widen$")).wait_for()
    page.keyboard.press("Shift+Tab")
    page.locator(".jp-Tooltip", has_text="Makes the layer wider.").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("Shift+Enter")
    cell.shows("widen(layer, by=2)>")

    remote.run(GROUP)
    hanging = remote.start(HANG)
    hanging.element.locator("b", has_text="ranks 0-2 in barrier").wait_for()
    tools = Tools(remote)
    tools.open()
    tools.summary("4 ranks: 1 busy, 3 in a collective")
    tools.panel.get_by_role("button", name="stacks", exact=True).click()
    page.get_by_text("load()").last.wait_for()
    pictures(remote, "hang")
    page.click(STOP)
    hanging.finish()
    assert "rank 3 was interrupted at" in hanging.text

    remote.run("%%mesh\nimport socket\nprint('a line of', socket.gethostname())")
    tools.panel.get_by_role("button", name="logs", exact=True).click()
    log = Log(tools)
    log.field("Ranks").fill("3")
    log.shows("a line of node2")
    pictures(remote, "logs")
