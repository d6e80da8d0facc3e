"""What a person sees of a mesh in JupyterLab: the side panel, views in it and in outputs, the
status bar."""

import re
from collections.abc import Callable

from playwright.sync_api import Locator, Page

from tests.browser import accessible
from tests.browser.lab import READY_S, Notebook, picture

PANEL = "#monarch-nb-panel"
TAB = ".jp-SideBar .lm-TabBar-tab[data-id='monarch-nb-panel']"
PANEL_PX = 300
DEAD = (213, 94, 0)
"""The mark of a rank that is gone, on a light page."""
BESIDE = (14, 9)
"""From a rank's corner to a point of its mark that no sign covers."""

# A rank's corner in the grid's picture: where the tooltip begins to tell of it.
CORNER = """(root, rank) => {
    const canvas = root.querySelector(".mnb-scroll canvas");
    const tip = root.querySelector(".mnb-grid .mnb-tip");
    const box = canvas.getBoundingClientRect();
    const tells = (x, y) => {
        const at = { clientX: box.left + x, clientY: box.top + y };
        canvas.dispatchEvent(new PointerEvent("pointermove", at));
        return !tip.hidden && tip.textContent.startsWith(`rank ${rank}\\n`);
    };
    const leave = () => canvas.dispatchEvent(new PointerEvent("pointerleave"));
    for (let y = 4; y < box.height; y += 8) {
        for (let x = 4; x < box.width; x += 8) {
            if (!tells(x, y)) continue;
            while (tells(x - 1, y)) x--;
            while (tells(x, y - 1)) y--;
            leave();
            return [x, y];
        }
    }
    leave();
    return null;
}"""

FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"

COLOUR = """
    const canvas = root.querySelector(".mnb-scroll canvas");
    const scratch = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const colour = () => {
        scratch.clearRect(0, 0, 1, 1);
        const at = [x, y].map(place => Math.round(place * devicePixelRatio));
        scratch.drawImage(canvas, ...at, 1, 1, 0, 0, 1, 1);
        return [...scratch.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
"""
WATCH = f"""(root, [x, y, wanted]) => {{
    {COLOUR}
    const isIt = () => colour().every((part, i) => Math.abs(part - wanted[i]) <= 6);
    const last = Date.now() + 10_000;
    window.seen = new Promise(done => {{
        const look = () => {{
            if (isIt() || Date.now() > last) done(Date.now());
            else requestAnimationFrame(look);
        }};
        look();
    }});
}}"""


class View:
    """One picture of a mesh, wherever it is."""

    def __init__(self, page: Page, root: Locator) -> None:
        self.page = page
        self.root = root

    def says(self, summary: str, within_s: float = READY_S) -> None:
        """Wait until the line beside the name is this."""
        exact = re.compile(f"^{re.escape(summary)}$")
        self.root.locator(".mnb-summary", has_text=exact).wait_for(timeout=within_s * 1000)

    def tells(self, text: str | re.Pattern[str], within_s: float = READY_S) -> Locator:
        """Wait until this stands anywhere in it."""
        found = self.root.get_by_text(text).first
        found.wait_for(timeout=within_s * 1000)
        return found

    def button(self, name: str) -> Locator:
        """One of the buttons of the mesh."""
        return self.root.locator(".mnb-header").get_by_role("button", name=name, exact=True)

    def press(self, name: str) -> None:
        """One of the buttons of the mesh; what ends it asks, and is told yes."""
        self.button(name).click()
        if name == "stop":
            self.button("sure?").click()

    def corner(self, rank: int) -> tuple[float, float]:
        """Of a rank in the grid, in pixels of its picture."""
        x, y = self.root.evaluate(CORNER, rank)
        return x, y

    def click(self, rank: int) -> Locator:
        """Choose a rank; what is told of it."""
        x, y = self.corner(rank)
        self.root.locator(".mnb-scroll canvas").click(position={"x": x + 8, "y": y + 8})
        self.root.locator(".mnb-title", has_text=re.compile(f"^rank {rank}$")).wait_for()
        return self.root.locator(".mnb-of-details")

    def pid(self, rank: int) -> int:
        """As its details tell it."""
        return int(self.click(rank).locator("dt:text-is('pid') + dd").inner_text())

    def colour(self, rank: int) -> tuple[int, ...]:
        """Of a rank's mark."""
        x, y = self.corner(rank)
        script = f"(root, [x, y]) => {{ {COLOUR} return colour(); }}"
        return tuple(self.root.evaluate(script, [x + BESIDE[0], y + BESIDE[1]]))

    def turns(self, rank: int, colour: tuple[int, ...], after: Callable[[], float]) -> float:
        """The seconds from what `after` does, and tells the time of, to a pixel of that colour."""
        x, y = self.corner(rank)
        self.root.evaluate(WATCH, [x + BESIDE[0], y + BESIDE[1], list(colour)])
        began = after()
        seen: float = self.page.evaluate("() => window.seen")
        return seen / 1000 - began


class MeshPage:
    """A notebook with the panel beside it."""

    def __init__(self, notebook: Notebook) -> None:
        self.notebook = notebook
        self.page = notebook.page
        self.panel = self.page.locator(PANEL)

    def open(self) -> None:
        """Click the panel's tab, and pull it to its width."""
        self.page.click(TAB)
        self.panel.wait_for()
        handle = self.page.locator("#jp-main-split-panel > .lm-SplitPanel-handle").first
        box, left = handle.bounding_box(), self.panel.bounding_box()
        assert box is not None
        assert left is not None
        middle = box["y"] + box["height"] / 2
        self.page.mouse.move(box["x"] + box["width"] / 2, middle)
        self.page.mouse.down()
        self.page.mouse.move(left["x"] + PANEL_PX + box["width"] / 2, middle, steps=3)
        self.page.mouse.up()

    def view(self, mesh: str = "mesh0") -> View:
        """Of a mesh in the panel."""
        return View(self.page, self.panel.locator(f"[aria-label='Mesh {mesh}'] .mnb-root"))

    def output(self, index: int) -> View:
        """Of the mesh that a cell shows."""
        return View(self.page, self.notebook.cell(index).element.locator(".mnb-root"))

    def status(self, text: str) -> None:
        """Wait until the status bar says this."""
        exact = re.compile(f"^{re.escape(text)}$")
        self.page.locator(".mnb-lab-status", has_text=exact).wait_for()

    def bring_up(self, sizes: str) -> None:
        """With the panel's form."""
        self.panel.get_by_label("Sizes").fill(sizes)
        self.panel.get_by_role("button", name=re.compile("^Bring up")).click()

    def pictures(self, name: str, *, checked: bool = False) -> None:
        """In both themes; `checked`: what is ours of the page is accessible."""
        for theme in ("Dark", "Light"):
            self.notebook.theme(f"JupyterLab {theme}")
            self.page.evaluate(FRAMES)
            picture(self.page, f"view-{name}-{theme.lower()}")
            if checked:
                accessible.check(self.page)
