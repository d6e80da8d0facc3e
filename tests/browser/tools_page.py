"""The extension's tools as a person finds them: cell buttons, ranks to choose, logs, commands."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page

from tests.browser import accessible
from tests.browser.lab import Cell, Notebook, Server, picture

PANEL = "#monarch-nb-panel"

# The longest time that the page could not react, from now on; in milliseconds.
WATCH_TASKS = """() => {
    window.longest = 0;
    const take = list => {
        for (const { duration } of list.getEntries()) {
            window.longest = Math.max(window.longest, duration);
        }
    };
    new PerformanceObserver(take).observe({ type: "longtask" });
}"""


# What the status bar says from now on, and when: [seconds, text], ...
WATCH_STATUS = """() => {
    const item = document.querySelector(".mnb-lab-status");
    const said = window.said = [];
    const note = () => { said.push([Date.now() / 1000, item.textContent]); };
    const all = { childList: true, characterData: true, subtree: true };
    new MutationObserver(note).observe(item, all);
}"""


class Tools:
    """A notebook whose kernel has a mesh, and what the extension puts around it."""

    def __init__(self, notebook: Notebook) -> None:
        self.notebook = notebook
        self.page: Page = notebook.page
        self.panel = self.page.locator(PANEL)

    # ------------------------------------------------------------------------------------ cells

    def button(self, cell: Cell, name: str) -> Locator:
        """`run` or `choose`, in the toolbar of a cell."""
        return cell.element.locator(f"[data-jp-item-name='monarch-nb-{name}'] > *")

    def tag(self, cell: Cell, text: str) -> None:
        """Wait until the cell says this of where it runs."""
        exact = re.compile(f"^{re.escape(text)}$")
        cell.element.locator(".mnb-lab-tag", has_text=exact).wait_for()

    def no_tag(self, cell: Cell) -> None:
        """Wait until it says nothing of it."""
        cell.element.locator(".mnb-lab-tag").wait_for(state="detached")

    def take_tag(self, cell: Cell, item: str) -> None:
        """Choose from the menu of the tag."""
        cell.element.locator(".mnb-lab-tag").click()
        self.choose(item)

    def press(self, cell: Cell, keys: str, prompt: str) -> None:
        """Press keys in the cell, and wait until it has run and has this number."""
        cell.element.locator(".cm-content").click()
        self.page.keyboard.press(keys)
        number = re.compile(f"^{re.escape(prompt)}$")
        cell.element.locator(".jp-InputPrompt", has_text=number).wait_for()

    def choices(self, cell: Cell) -> list[str]:
        """Open the menu of ranks; what it offers."""
        self.button(cell, "choose").click()
        items = self.page.locator(".lm-Menu-itemLabel")
        items.last.wait_for()
        return [text for text in items.all_inner_texts() if text]  # others are lines between

    def choose(self, item: str) -> None:
        """Click one of them."""
        self.page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{item}$")).click()

    def type_ranks(self, text: str) -> None:
        """Answer the dialog that asks for ranks."""
        field = self.page.locator(".jp-Dialog input")
        field.fill(text)
        field.press("Enter")
        field.wait_for(state="detached")

    def rewrite(self, cell: Cell, source: str) -> Cell:
        """Write other text into a cell."""
        cell.element.locator(".cm-content").click()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(source)
        return cell

    # --------------------------------------------------------------------------------- the page

    def opened_again(self, server: Server) -> Tools:
        """The notebook in a page that is loaded anew."""
        path = self.notebook.save()
        self.page.goto(server.url(f"lab/tree/{path}"), wait_until="domcontentloaded")
        again = Tools(Notebook(self.page))
        self.page.locator(".mnb-lab-status", has_text="ranks").wait_for()  # it knows the mesh
        return again

    def said(self, text: str | re.Pattern[str]) -> None:
        """Wait for a note in the corner, and put it away."""
        note = self.page.locator(".Toastify__toast", has_text=text).first
        note.wait_for()
        note.locator(".jp-toast-button, .Toastify__close-button, button").first.click()
        note.wait_for(state="detached")

    def palette(self, label: str) -> None:
        """Choose a command of the palette, with keys."""
        self.page.keyboard.press("Control+Shift+c")
        search = self.page.locator(".lm-CommandPalette-input:visible")
        search.fill(label)
        item = self.page.locator(".lm-CommandPalette-item:visible", has_text=label).first
        item.wait_for()
        item.click()

    def open(self) -> None:
        """Show the panel by its shortcut."""
        self.page.keyboard.press("Control+Shift+y")
        self.panel.wait_for()

    def mesh(self, name: str) -> Locator:
        """Its part of the panel."""
        return self.panel.locator(f"[aria-label='Mesh {name}']")

    def summary(self, text: str, mesh: str = "mesh0") -> None:
        """Wait until the panel says this of a mesh."""
        exact = re.compile(f"^{re.escape(text)}$")
        self.mesh(mesh).locator(".mnb-summary", has_text=exact).wait_for()

    def status(self, text: str) -> None:
        """Wait until the status bar says this."""
        exact = re.compile(f"^{re.escape(text)}$")
        self.page.locator(".mnb-lab-status", has_text=exact).wait_for()

    def watch_status(self) -> None:
        """Begin to keep what the status bar says."""
        self.page.evaluate(WATCH_STATUS)

    def said_at(self, text: str) -> float:
        """When it first said something with this text, since then."""
        find = "text => window.said.find(one => one[1].includes(text))[0]"
        at: float = self.page.evaluate(find, text)
        return at

    def settings(self) -> None:
        """Open the extension's settings."""
        self.notebook.command("settingeditor:open", query="Monarch")
        self.setting("period").wait_for()

    def setting(self, name: str) -> Locator:
        """Its field there."""
        return self.page.locator(f"[id='jp-SettingsEditor-monarch-nb:plugin_{name}']")

    def watch_tasks(self) -> None:
        """Begin to measure how long the page is blocked."""
        self.page.evaluate(WATCH_TASKS)

    def longest_task_ms(self) -> float:
        """Of those since then."""
        longest: float = self.page.evaluate("() => window.longest")
        return longest

    def pictures(self, name: str, *, checked: bool = False) -> None:
        """In both themes; `checked`: what is ours of the page is accessible."""
        for theme in ("Dark", "Light"):
            self.notebook.theme(f"JupyterLab {theme}")
            picture(self.page, f"tools-{name}-{theme.lower()}")
            if checked:
                accessible.check(self.page)


class Log:
    """The panel of a mesh's log."""

    def __init__(self, tools: Tools) -> None:
        self.page = tools.page
        self.root = self.page.locator(".mnb-log:visible").first

    def field(self, name: str) -> Locator:
        return self.root.get_by_label(name, exact=True)

    def press(self, name: str) -> None:
        """One of its buttons."""
        self.root.get_by_role("button", name=name, exact=True).click()

    def counts(self, text: str | re.Pattern[str]) -> None:
        """Wait until it says so many lines."""
        exact = text if isinstance(text, re.Pattern) else re.compile(f"^{re.escape(text)}$")
        self.root.locator(".mnb-log-count", has_text=exact).wait_for()

    def shows(self, text: str) -> Locator:
        """Wait until a line in sight has this."""
        line = self.root.locator(".mnb-log-line", has_text=text).last
        line.wait_for()
        return line

    def lines(self) -> list[str]:
        """Those in sight and a few around them: `[rank]text`."""
        return self.root.locator(".mnb-log-line").all_inner_texts()

    @property
    def pill(self) -> Locator:
        """The button that goes to the newest line."""
        return self.root.locator(".mnb-log-pill")
