"""JupyterLab's own debugger in its own panels: gutter, call stack, variables, buttons."""

import re

import pytest
from ipykernel.compiler import get_tmp_hash_seed, murmur2_x86
from playwright.sync_api import Page

from tests import support
from tests.browser.lab import Cell, Notebook, picture
from tests.browser.mesh_page import MeshPage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

WORK = """%%mesh
import math

def work(x):
    y = x + rank
    z = y * 2
    return z

v = work(20)
print('v', v)"""

SENT = """name => {
    const { kernel } = window.jupyterapp.shell.currentWidget.sessionContext.session;
    window.breakpointsSent = new Promise(sent => {
        const asked = new Set();
        kernel.anyMessage.connect((_, { msg }) => {
            if (msg.content.command !== "setBreakpoints") return;
            if (msg.content.arguments?.source.path.endsWith(name)) asked.add(msg.header.msg_id);
            if (asked.has(msg.parent_header.msg_id)) sent();
        });
    });
}"""


class Debugger:
    """The panels, as a person finds them."""

    def __init__(self, notebook: Notebook) -> None:
        self.notebook = notebook
        self.page: Page = notebook.page

    def toggle(self) -> None:
        """The bug."""
        self.page.locator(".jp-NotebookPanel-toolbar .jp-DebuggerBugButton").click()

    def on(self) -> None:
        self.toggle()
        self.page.wait_for_selector(".jp-Notebook .cm-breakpoint-gutter")

    def type(self, source: str) -> Cell:
        """Type a cell. JupyterLab sends the breakpoints of a cell, none, a second after its last
        key, and forgets one that is set just then."""
        self.page.evaluate(SENT, f"{murmur2_x86(source, get_tmp_hash_seed())}.py")
        cell = self.notebook.type(source)
        self.page.evaluate("() => window.breakpointsSent")
        return cell

    def gutter(self, cell: Cell, line: int) -> None:
        """Click beside a line."""
        numbers = cell.element.locator(".cm-lineNumbers .cm-gutterElement")
        at = numbers.filter(has_text=re.compile(f"^{line}$")).bounding_box()
        gutter = cell.element.locator(".cm-gutter.cm-breakpoint-gutter").bounding_box()
        assert at is not None
        assert gutter is not None
        self.page.mouse.click(gutter["x"] + gutter["width"] / 2, at["y"] + at["height"] / 2)
        self.page.locator(".jp-DebuggerBreakpoint", has_text=str(line)).wait_for()

    def stands_at(self, cell: Cell, line: str) -> None:
        """Wait until that line of the cell is highlighted."""
        shown = cell.element.locator(".jp-DebuggerEditor-highlight", has_text=line)
        shown.wait_for()

    @property
    def frames(self) -> list[str]:
        return self.page.locator(".jp-DebuggerCallstackFrame").all_inner_texts()

    def variable(self, name: str, value: str) -> None:
        """Wait until the panel shows it."""
        support.eventually(lambda: self._variables().get(name) == value, 20, f"{name}: {value}")

    def _variables(self) -> dict[str, str]:
        """The elements of the tree have shadows, so their text is not that of the panel."""
        names, details = (
            self.page.locator(f".jp-DebuggerVariables-{part}").all_inner_texts()
            for part in ("name", "detail")
        )
        return dict(
            zip((name.strip(" :") for name in names), map(str.strip, details), strict=False)
        )

    def status(self, text: str) -> None:
        """Wait until the status bar says this."""
        exact = re.compile(f"^{re.escape(text)}$")
        self.page.locator(".mnb-lab-status", has_text=exact).wait_for()

    def press(self, command: str) -> None:
        self.notebook.command(f"debugger:{command}")

    def goes_on(self) -> None:
        """Wait until nothing is stopped."""
        support_gone = self.page.locator(".jp-DebuggerCallstackFrame")
        support.eventually(lambda: support_gone.count() == 0, 20, "the call stack to be empty")


@pytest.fixture
def debugger(notebook: Notebook) -> Debugger:
    notebook.run("%mesh up --gpus 3")
    return Debugger(notebook)


def test_a_breakpoint_of_a_rank(debugger: Debugger) -> None:
    notebook = debugger.notebook
    notebook.run("%mesh debugger 2").shows("the visual debugger is for rank 2 of mesh0")
    debugger.on()
    cell = debugger.type(WORK)
    debugger.gutter(cell, 6)
    cell.element.locator(".cm-content").click()
    notebook.command("notebook:run-cell")
    debugger.stands_at(cell, "z = y * 2")
    debugger.status("3 ranks: 2 idle, 1 paused")
    debugger.variable("x", "20")
    debugger.variable("y", "22")
    assert "work" in debugger.frames[0]
    assert len(debugger.frames) == 2
    picture(notebook.page, "debugger-light")
    debugger.press("next")
    debugger.stands_at(cell, "return z")
    debugger.variable("z", "44")
    notebook.theme("JupyterLab Dark")
    picture(notebook.page, "debugger-dark")
    debugger.press("continue")
    cell.shows("v 44")
    debugger.goes_on()
    debugger.toggle()


def test_a_breakpoint_of_the_controller(debugger: Debugger) -> None:
    notebook = debugger.notebook
    notebook.run("%mesh debugger controller").shows("the visual debugger is for the controller")
    before = doors()
    debugger.on()
    cell = debugger.type(WORK.replace("%%mesh", "rank = 2"))
    debugger.gutter(cell, 6)
    cell.element.locator(".cm-content").click()
    notebook.command("notebook:run-cell")
    debugger.stands_at(cell, "z = y * 2")
    debugger.variable("x", "20")
    assert "work" in debugger.frames[0]
    assert doors() == before
    debugger.press("next")
    debugger.stands_at(cell, "return z")
    debugger.variable("z", "44")
    picture(notebook.page, "debugger-controller")
    debugger.press("continue")
    cell.shows("v 44")
    debugger.goes_on()
    debugger.toggle()
    notebook.run("1 + 1").shows("2")
    assert doors() == before


def doors() -> set[str]:
    """Where anything of these tests listens: JupyterLab, kernels, what they have started."""
    return set().union(*map(support.listening_ports, support.session_processes()))


def test_all_ranks_and_the_stop_button(debugger: Debugger) -> None:
    notebook = debugger.notebook
    debugger.on()
    notebook.run("%mesh debugger all").shows("ranks 0-2 of mesh0; it is on")
    cell = debugger.type(WORK)
    debugger.gutter(cell, 6)
    cell.element.locator(".cm-content").click()
    notebook.command("notebook:run-cell")
    debugger.stands_at(cell, "z = y * 2")
    [shown] = {frame.partition("]")[0] for frame in debugger.frames}
    assert shown in {"[0", "[1", "[2"}
    picture(notebook.page, "debugger-all")
    mesh = MeshPage(notebook)
    mesh.open()
    other = (int(shown[1]) + 1) % 3
    mesh.view().click(other).get_by_role("button", name="debug", exact=True).click()
    support.eventually(lambda: debugger.frames[0].startswith(f"[{other}"), 10, "the other's frames")
    debugger.variable("y", f"{20 + other}")
    picture(notebook.page, "debugger-of-a-click")
    debugger.press("continue")
    cell.shows("v 44")
    debugger.goes_on()
    notebook.command("notebook:run-cell")
    debugger.stands_at(cell, "z = y * 2")
    notebook.command("notebook:interrupt-kernel")
    cell.shows("KeyboardInterrupt")
    debugger.goes_on()
    debugger.toggle()
