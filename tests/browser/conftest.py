"""One server and one browser for all tests here, an own page for each test."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests import support
from tests.browser.front_page import show, site
from tests.browser.lab import CHROMIUM_FLAGS, READY_S, Notebook, Server, picture
from tests.kernel.conftest import kernelspec

__all__ = ["kernelspec", "show", "site"]

SIZE = {"width": 1280, "height": 960}


@pytest.fixture(scope="package", autouse=True)
def no_leaks() -> Iterator[None]:
    """A browser keeps processes from page to page, so this check looks at the end of the package.

    Kernels and ranks must be gone at the end of each test: see `page`.
    """
    before = support.Snapshot.take()
    yield
    before.assert_clean(within_s=10)


@pytest.fixture(scope="package")
def browser(no_leaks: None) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=support.chromium(), headless=True, args=list(CHROMIUM_FLAGS)
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="package")
def server(no_leaks: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("lab")) as running:
        yield running


@pytest.fixture
def page(browser: Browser, server: Server, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A window. At its end the kernels that it started are shut down, and no rank is left."""
    server.forget()
    context = browser.new_context(viewport=SIZE, device_scale_factor=2)
    window = context.new_page()
    window.set_default_timeout(READY_S * 1000)
    yield window
    if request.session.testsfailed:
        picture(window, f"last-{request.node.name}")
    server.end_sessions()
    context.close()
    support.eventually(lambda: not kernels_and_ranks(), 10, "the kernels and ranks to end")


@pytest.fixture
def notebook(page: Page, server: Server) -> Notebook:
    """A new notebook on the Monarch kernel, from the tile of the launcher."""
    page.goto(server.url("lab"), wait_until="domcontentloaded")
    page.click(".jp-LauncherCard[data-category='Notebook'][title='Monarch']")
    return Notebook(page)


def kernels_and_ranks() -> list[str]:
    """What runs of ours, but for the server and the browser."""
    lines = [support.describe_process(pid) for pid in support.session_processes()]
    return [line for line in lines if "monarch_" in line]
