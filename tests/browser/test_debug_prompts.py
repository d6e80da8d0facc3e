"""The prompts of ranks in the panel: a click on a rank that is stopped opens one there."""

import re

import pytest
from playwright.sync_api import Locator

from tests.browser.lab import Notebook, Server
from tests.browser.mesh_page import MeshPage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

STOPS = """%%mesh
def step(x):
    y = x * 2
    breakpoint()
    return y + rank

step(20 + rank)"""
FAILS = """%%mesh 1
def load(n):
    return 1 / n

load(0)"""


class Terminal:
    """The prompt in the panel."""

    def __init__(self, page: MeshPage) -> None:
        self.box = page.panel.locator(".mnb-of-debugger")
        self.log = self.box.get_by_role("log")
        self.line = self.box.locator("input")

    def asks(self, prompt: str) -> None:
        self.box.locator(".mnb-prompt", has_text=prompt).wait_for()

    def type(self, line: str) -> None:
        self.line.fill(line)
        self.line.press("Enter")

    def sees(self, text: str | re.Pattern[str]) -> None:
        self.box.locator("pre", has_text=text).wait_for()


def press(details: Locator, name: str) -> None:
    details.get_by_role("button", name=name, exact=True).click()


@pytest.fixture
def mesh(notebook: Notebook) -> MeshPage:
    notebook.run("%mesh up --gpus 4")
    made = MeshPage(notebook)
    made.open()
    made.view().says("4 ranks: 4 idle")
    return made


def test_a_click_opens_the_prompt_of_a_stopped_rank(mesh: MeshPage) -> None:
    page = mesh
    cell = page.notebook.start(STOPS)
    view, terminal = page.view(), Terminal(page)
    view.says("4 ranks: 4 paused")
    details = view.click(2)
    details.get_by_text(re.compile(r"^paused at Cell In\[\d+\]:5 step\(\)$")).wait_for()
    press(details, "debug")
    terminal.asks("(rank 2) ")
    terminal.sees(re.compile(r"rank(s 0-3| 2) at Cell In"))
    terminal.type("p x")
    terminal.sees(re.compile(r"\(rank 2\) p x\n22\n"))
    terminal.line.fill("whe")
    terminal.line.press("Tab")
    page.page.wait_for_function("el => el.value === 'where'", arg=terminal.line.element_handle())
    terminal.type("cast 0-3 p y - 2 * rank")
    terminal.sees("ranks 0-3: 40\n")
    terminal.line.press("ArrowUp")
    terminal.line.press("ArrowUp")
    assert terminal.line.input_value() == "p x"
    press(details, "stack")
    page.panel.locator(".mnb-bar", has_text="step()").first.wait_for()
    page.pictures("debug-prompt")
    terminal.type("continue")
    cell.finish()
    view.says("4 ranks: 4 idle")
    terminal.asks("(running)")
    press(terminal.box, "close")
    terminal.box.wait_for(state="hidden")


def test_the_prompt_is_there_after_the_page_is_loaded_again(mesh: MeshPage, server: Server) -> None:
    page = mesh
    page.notebook.start(STOPS)
    page.view().says("4 ranks: 4 paused")
    path = page.notebook.save()
    page.page.goto(server.url(f"lab/tree/{path}"), wait_until="domcontentloaded")
    page.page.locator(".mnb-lab-status", has_text="4 ranks: 4 paused").wait_for()
    page.open()
    press(page.view().click(0), "debug")
    terminal = Terminal(page)
    terminal.asks("(rank 0) ")
    terminal.type("p y")
    terminal.sees("40\n")
    terminal.type("continue")
    page.view().says("4 ranks: 4 idle")


def test_a_failed_rank_and_the_choice_of_the_visual_debugger(mesh: MeshPage) -> None:
    page = mesh
    page.notebook.run(FAILS)
    view, terminal = page.view(), Terminal(page)
    view.says("4 ranks: 3 idle, 1 failed")
    details = view.click(1)
    whom = page.panel.get_by_label("Visual debugger")
    assert whom.input_value() == "controller"
    whom.select_option("debugger: rank 1 (selected)")
    page.page.locator(".Toastify__toast", has_text="the visual debugger is for rank 1").wait_for()
    assert whom.input_value() == "1"
    press(details, "post-mortem")
    terminal.sees("where it failed")
    terminal.type("p n")
    terminal.sees(re.compile(r"p n\n0\n"))
    page.pictures("post-mortem")
    press(terminal.box, "close")
    assert page.notebook.run("%mesh debugger").shows("rank 1 of mesh0")
