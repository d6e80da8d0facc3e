"""One server and one browser for all tests here, and a window for those that want no new one."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests import support
from tests.browser.front_page import show, site
from tests.browser.lab import CHROMIUM_FLAGS, READY_S, SIZE, Notebook, Server, picture
from tests.conftest import PRELOAD
from tests.kernel.conftest import kernelspec

__all__ = ["kernelspec", "show", "site"]


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
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PRELOAD, "torch,numpy")  # of all kernels here
        running = Server(tmp_path_factory.mktemp("lab"))
    with running:
        yield running


class Window:
    """A window and the notebook in it, which tests use one after the other."""

    def __init__(self, browser: Browser, server: Server) -> None:
        self._browser = browser
        self._server = server
        self._context: BrowserContext | None = None
        self._notebook: Notebook | None = None

    def open(self) -> Page:
        """A new one, as for a new user."""
        self.close()
        self._server.forget()
        self._context = self._browser.new_context(viewport=SIZE, device_scale_factor=2)
        page = self._context.new_page()
        page.set_default_timeout(READY_S * 1000)
        return page

    def notebook(self) -> Notebook:
        """A new notebook on a Monarch kernel that has nothing of another test."""
        if self._notebook is None:
            self._notebook = from_launcher(self.open(), self._server)
        return self._notebook

    def put_away(self) -> None:
        """What a test has opened. The kernel, its agent and its zygote stay."""
        used, self._notebook = self._notebook, None
        assert used is not None
        self._notebook = used.begin_anew()
        support.eventually(
            lambda: len(kernels_and_ranks()) == 3, 10, lambda: "\n".join(kernels_and_ranks())
        )

    def close(self) -> None:
        """Shut the kernels down that pages of it started; no rank is left."""
        self._notebook = None
        if self._context is not None:
            self._server.end_kernels()
            self._context.close()
            self._context = None
            support.eventually(lambda: not kernels_and_ranks(), 10, "the kernels and ranks to end")


@pytest.fixture(scope="package")
def window(browser: Browser, server: Server) -> Iterator[Window]:
    made = Window(browser, server)
    yield made
    made.close()


@pytest.fixture
def page(window: Window, request: pytest.FixtureRequest) -> Iterator[Page]:
    """An empty page of a new user's. At its end the kernels that it started are shut down."""
    opened = window.open()
    yield opened
    _last_picture(opened, request)
    window.close()


@pytest.fixture
def notebook(window: Window, request: pytest.FixtureRequest) -> Iterator[Notebook]:
    """A new notebook on a Monarch kernel. Others have used the kernel, and the page, before it."""
    failed = request.session.testsfailed
    opened = window.notebook()
    yield opened
    _last_picture(opened.page, request)
    if request.session.testsfailed > failed:
        window.close()
    else:
        window.put_away()


@pytest.fixture
def new_notebook(page: Page, server: Server) -> Notebook:
    """The same in a page and on a kernel that nobody has used."""
    return from_launcher(page, server)


def from_launcher(page: Page, server: Server) -> Notebook:
    """Click the tile of the launcher."""
    page.goto(server.url("lab"), wait_until="domcontentloaded")
    page.click(".jp-LauncherCard[data-category='Notebook'][title='Monarch']")
    return Notebook(page)


def _last_picture(page: Page, request: pytest.FixtureRequest) -> None:
    if request.session.testsfailed:
        picture(page, f"last-{request.node.name}")


def kernels_and_ranks() -> list[str]:
    """What runs of ours, but for the server and the browser."""
    lines = [support.describe_process(pid) for pid in support.session_processes()]
    return [line for line in lines if "monarch_" in line]
