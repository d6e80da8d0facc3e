"""JupyterLab as a new user meets it: a server with folders of its own, and its pages in Chromium.

Nothing here waits by the clock; `playwright` waits for what the page shows, `eventually` for the
rest. What a test reads of a cell comes from the page, as its reader sees it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from playwright.sync_api import Locator, Page
from playwright.sync_api import TimeoutError as NotInTime

from monarch_nb.notebook.options import ranks as rank_options
from tests import support
from tests.source import ROOT

ARTIFACTS = ROOT / "test-artifacts"

CHROMIUM_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
STILL_CURSOR = """
    const still = new CSSStyleSheet();
    still.replaceSync(".cm-cursorLayer { animation: none !important; }");
    document.adoptedStyleSheets.push(still);
"""
"""A cursor that blinks takes a tenth of a core where no GPU draws it."""

QUIET = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}
}
READY_S = 60
"""A page, a kernel or a mesh on two busy cores."""

OUTPUTS = ".jp-OutputArea-output"
STOP = ".jp-NotebookPanel-toolbar [data-jp-item-name='interrupt']"
RESTART = ".jp-NotebookPanel-toolbar [data-jp-item-name='restart']"


SIZE = {"width": 1280, "height": 960}

FORGET = ["%mesh debugger controller", "%mesh down --all", "get_ipython().reset()"]
BEGIN_ANEW = """async forget => {
    const { commands, restored, shell } = window.jupyterapp;
    await restored; // a page that was just loaded puts back what is closed meanwhile
    const widgets = [...shell.widgets("main")];
    const { kernel } = widgets.find(one => one.sessionContext?.session).sessionContext.session;
    // a message of a widget makes it busy, too; an interrupt then hits what is asked below
    const isRunning = cell => cell.model.executionState === "running";
    if (widgets.some(one => one.content?.widgets?.some(isRunning))) await kernel.interrupt();
    for (const code of forget) {
        const { content } = await kernel.requestExecute({ code, store_history: false }).done;
        if (content.status !== "ok" && !content.evalue.startsWith("No mesh is up"))
            throw new Error(content.evalue);
    }
    // before the others are closed: a page without a tab opens a launcher, late and in front
    await commands.execute("notebook:create-new", { kernelId: kernel.id, kernelName: "monarch" });
    for (const widget of widgets) {
        if (widget.context) widget.context.model.dirty = false; // it would ask
        widget.close();
    }
    shell.collapseRight();
    shell.activateById("filebrowser");
    await commands.execute("apputils:change-theme", { theme: "JupyterLab Light" });
}"""


class Server:
    """A JupyterLab server on loopback, with a token, in an empty world.

    `extensions` is the folder that it has those of its page from; else all that are installed.
    `command` is what starts it, and takes its options; else JupyterLab itself. Its kernels have
    their keys, and what they keep, in `home`. `settings` are of its pages. `base` is the path below
    which it answers, as behind a JupyterHub.
    """

    def __init__(
        self,
        world: Path,
        extensions: Path | None = None,
        command: Sequence[str] | None = None,
        settings: Mapping[str, Any] | None = None,
        base: str = "/",
    ) -> None:
        self.files = world / "work"
        self.files.mkdir(exist_ok=True)
        self.home = world / "monarch_nb"
        self._log = world / "lab.log"
        self._kept = [f"{world}/settings", f"{world}/workspaces"]
        self._token = secrets.token_hex(16)
        self._port = _free_port()
        self.origin = f"http://127.0.0.1:{self._port}"
        self._at = f"{self.origin}{base}"
        self._settings(world, settings or {})
        names = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR")
        folders = {f"JUPYTER_{name}": f"{world}/{name.lower()}" for name in names}
        folders["IPYTHONDIR"] = f"{world}/ipython"
        folders["MONARCH_NB_HOME"] = str(self.home)
        folders["JUPYTERLAB_SETTINGS_DIR"], folders["JUPYTERLAB_WORKSPACES_DIR"] = self._kept
        own = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={self.files}"]
        command = [
            *(own if command is None else command),
            *("--no-browser", "--ip=127.0.0.1", "--allow-root"),
            *(f"--port={self._port}", "--ServerApp.port_retries=0"),
            f"--ServerApp.base_url={base}",
            f"--IdentityProvider.token={self._token}",
            "--LabApp.expose_app_in_browser=True",
        ]
        if extensions is not None:
            command.append(f"--LabApp.labextensions_path={extensions}")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **folders},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def _settings(self, world: Path, settings: Mapping[str, Any]) -> None:
        folder = world / "config_dir/labconfig"
        folder.mkdir(parents=True)
        overrides = json.dumps({**QUIET, **settings})
        (folder / "default_setting_overrides.json").write_text(overrides)

    def __enter__(self) -> Self:
        support.eventually(self._answers, READY_S, lambda: f"the server: {self._log.read_text()}")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired as error:
            said = self._log.read_text()[-4_000:]
            raise AssertionError(f"the server does not end:\n{said}") from error
        finally:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        assert self._process.poll() is None, "it has ended"
        try:
            return bool(self.api("GET", "status"))
        except OSError:
            return False

    def url(self, path: str = "") -> str:
        """Where the browser finds it."""
        return f"{self._at}{path}?token={self._token}&reset"

    def api(self, method: str, path: str) -> Any:
        """Ask the server itself."""
        request = urllib.request.Request(
            f"{self._at}api/{path}",
            method=method,
            headers={"Authorization": f"token {self._token}"},
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read() or b"null")

    def end_kernels(self) -> None:
        """Shut all down, as the menu does."""
        for kernel in self.api("GET", "kernels"):
            self.api("DELETE", f"kernels/{kernel['id']}")

    def forget(self) -> None:
        """Be again as for a new user: no settings, no tabs of another time."""
        for folder in self._kept:
            shutil.rmtree(folder, ignore_errors=True)

    def add(self, notebook: Path) -> None:
        """Put a notebook where users find it."""
        shutil.copy(notebook, self.files)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Cell:
    """A code cell in the page."""

    def __init__(self, page: Page, element: Locator) -> None:
        self.page = page
        self.element = element

    @property
    def prompt(self) -> str:
        """`[3]:`, `[*]:` or `[ ]:`."""
        return self.element.locator(".jp-InputPrompt").inner_text().strip()

    def finish(self, within_s: float = READY_S) -> Cell:
        """Wait for its number."""
        done = re.compile(r"\[\d+\]:")
        self.element.locator(".jp-InputPrompt", has_text=done).wait_for(timeout=within_s * 1000)
        return self

    def shows(self, text: str | re.Pattern[str], within_s: float = READY_S) -> Locator:
        """Wait until an output has the text."""
        found = self.element.locator(OUTPUTS, has_text=text).last
        try:
            found.wait_for(timeout=within_s * 1000)
        except NotInTime as error:
            raise AssertionError(f"{text!r} is not in {self.prompt} {self.text!r}") from error
        return found

    def shows_of(self, ranks: Iterable[int], text: str, within_s: float = READY_S) -> None:
        """Wait until each of these ranks has written the line: together, or some a little later."""

        def said() -> bool:
            labels = re.findall(rf"^\[([\d,-]+)\] {re.escape(text)}$", self.text, re.MULTILINE)
            return {rank for label in labels for rank in rank_options(label)} >= set(ranks)

        support.eventually(said, within_s, lambda: f"{text!r} of all ranks in:\n{self.text}")

    @property
    def text(self) -> str:
        """All its output as read."""
        return "\n".join(
            text.rstrip("\n") for text in self.element.locator(OUTPUTS).all_inner_texts()
        )


class Notebook:
    """The notebook that is open in the page; a kernel that runs a cell says nothing of itself."""

    def __init__(self, page: Page, *, is_busy: bool = False) -> None:
        self.page = page
        shown = ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell"
        page.wait_for_selector(shown, timeout=READY_S * 1000)
        page.wait_for_function(
            "() => window.jupyterapp?.shell.currentWidget?.sessionContext", timeout=READY_S * 1000
        )
        page.evaluate(
            """async isBusy => {
                const context = window.jupyterapp.shell.currentWidget.sessionContext;
                await context.ready;
                if (!isBusy) await context.session.kernel.info;
            }""",
            is_busy,
        )

    @property
    def cells(self) -> Locator:
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook .jp-CodeCell")

    def cell(self, index: int) -> Cell:
        """The code cell of that index; -1 is the last."""
        return Cell(self.page, self.cells.last if index == -1 else self.cells.nth(index))

    def type(self, source: str) -> Cell:
        """Write into the last cell; the one after it appears when it is run."""
        index = self.cells.count() - 1
        cell = self.cell(index)
        cell.element.locator(".cm-content").click()
        self.page.keyboard.insert_text(source)
        return cell

    def start(self, source: str) -> Cell:
        """Write a cell and press Shift+Enter."""
        cell = self.type(source)
        self.page.keyboard.press("Shift+Enter")
        return cell

    def run(self, source: str, within_s: float = READY_S) -> Cell:
        """Write a cell, run it, wait for its end."""
        return self.start(source).finish(within_s)

    def command(self, name: str, **options: Any) -> None:
        """What a menu item does; its end is not waited for."""
        self.page.evaluate(
            "([name, options]) => { window.jupyterapp.commands.execute(name, options); }",
            [name, options],
        )

    def menu(self, *path: str) -> None:
        """Click through the menu bar."""
        bar, item = path
        self.page.locator(".lm-MenuBar-itemLabel", has_text=re.compile(f"^{bar}$")).click()
        self.page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{item}$")).click()

    def save(self) -> str:
        """Save it; its path."""
        return self.page.evaluate(
            """async () => {
                const context = window.jupyterapp.shell.currentWidget.context;
                await context.save();
                return context.path;
            }"""
        )

    def model(self) -> list[Mapping[str, Any]]:
        """All cells as they would be saved, also those the page has not drawn."""
        return self.page.evaluate(
            "() => window.jupyterapp.shell.currentWidget.content.model.toJSON().cells"
        )

    def errors(self) -> list[int]:
        """Indices of the code cells that failed."""
        cells = [cell for cell in self.model() if cell["cell_type"] == "code"]
        kinds = [[one["output_type"] for one in cell["outputs"]] for cell in cells]
        return [index for index, found in enumerate(kinds) if "error" in found]

    def begin_anew(self) -> Notebook:
        """Put all away that a test has opened; a new notebook on the kernel, which is as new."""
        if self.page.viewport_size != SIZE:
            self.page.set_viewport_size(SIZE)
        self.page.evaluate(BEGIN_ANEW, FORGET)
        return Notebook(self.page)

    def theme(self, name: str) -> None:
        """`JupyterLab Light` or `JupyterLab Dark`."""
        self.page.evaluate(
            "name => window.jupyterapp.commands.execute('apputils:change-theme', { theme: name })",
            name,
        )
        self.page.wait_for_selector(f"body[data-jp-theme-name='{name}']", state="attached")


def picture(page: Page, name: str, clip: Any = None) -> None:
    """Keep what the page looks like, or a part of it, for people who look at it."""
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTIFACTS / f"{name}.png", animations="disabled", clip=clip)
