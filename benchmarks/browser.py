"""A notebook in JupyterLab, in a browser nobody looks at: what a page shows, and when.

A server of its own on loopback, in empty folders; Chromium is the machine's own.
"""

import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from os import environ
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.timing import now

READY_S = 60.0
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
CELLS = ".jp-NotebookPanel .jp-Notebook .jp-CodeCell"
FOLDERS = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR")


@contextmanager
def chromium() -> Iterator[Browser]:
    """The machine's own, without a window."""
    path = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if path is None:
        raise RuntimeError("there is no Chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


@contextmanager
def notebook(tile: str) -> Iterator[Page]:
    """A page with a new notebook, from a tile of the launcher, whose kernel answers."""
    with _server() as url, chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(READY_S * 1000)
        page.goto(url, wait_until="domcontentloaded")
        page.click(f".jp-LauncherCard[data-category='Notebook'][title='{tile}']")
        page.wait_for_selector(CELLS)
        page.evaluate(
            """async () => {
                const context = window.jupyterapp.shell.currentWidget.sessionContext;
                await context.ready;
                await context.session.kernel.info;
            }"""
        )
        yield page
        page.evaluate(
            "() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()",
        )


def start(page: Page, source: str) -> None:
    """Write it into the last cell, and press Shift+Enter."""
    page.locator(CELLS).last.locator(".cm-content").click()
    page.keyboard.insert_text(source)
    page.keyboard.press("Shift+Enter")


def run(page: Page, source: str) -> str:
    """The same, and what the cell shows at its end."""
    index = page.locator(CELLS).count() - 1
    start(page, source)
    cell = page.locator(CELLS).nth(index)
    cell.locator(".jp-InputPrompt", has_text=re.compile(r"\[\d+\]:")).wait_for()
    return "\n".join(cell.locator(".jp-OutputArea-output").all_inner_texts())


@contextmanager
def _server() -> Iterator[str]:
    with socket.socket() as one, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as world:
        one.bind(("127.0.0.1", 0))
        port, token = one.getsockname()[1], secrets.token_hex(16)
        one.close()
        folders = {f"JUPYTER_{name}": f"{world}/{name.lower()}" for name in FOLDERS}
        folders["JUPYTERLAB_SETTINGS_DIR"] = f"{world}/settings"
        folders["JUPYTERLAB_WORKSPACES_DIR"] = f"{world}/workspaces"
        command = [
            *(sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", "--allow-root"),
            *(
                f"--port={port}",
                "--ServerApp.port_retries=0",
                "--LabApp.expose_app_in_browser=True",
            ),
            *(f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={world}"),
        ]
        with (Path(world) / "log").open("wb") as log:
            process = subprocess.Popen(command, env=environ | folders, stdout=log, stderr=log)
        try:
            _wait_for(f"http://127.0.0.1:{port}/api/status?token={token}", process)
            yield f"http://127.0.0.1:{port}/lab?token={token}&reset"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(READY_S)


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    end = now() + READY_S
    while process.poll() is None and now() < end:
        try:
            with urllib.request.urlopen(url, timeout=READY_S):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("the server of the notebook does not answer")
