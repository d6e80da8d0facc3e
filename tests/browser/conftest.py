"""One server and one browser for all tests here, and a window for those that want no new one."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, sync_playwright

from tests import support
from tests.browser.front_page import show, site
from tests.browser.lab import CHROMIUM_FLAGS, READY_S, SIZE, STILL_CURSOR, Notebook, Server, picture
from tests.conftest import PRELOAD
from tests.kernel.conftest import kernelspec

__all__ = ["kernelspec", "show", "site"]


@pytest.fixture(scope="package", autouse=True)
def no_leaks() -> Iterator[None]:
    """A browser keeps processes from page to page, so this check looks at the end of the package.

    Kernels and ranks must be gone at the end of each test: see `page`.
    """
    before = support.Snapshot.take(unmarked=True)
    yield
    before.assert_clean(within_s=10)


@pytest.fixture(scope="package")
def playwright(no_leaks: None) -> Iterator[Playwright]:
    with sync_playwright() as running:
        yield running


@pytest.fixture(scope="package")
def browser(playwright: Playwright) -> Iterator[Browser]:
    """For windows of several people, each with a profile that is new."""
    chromium = playwright.chromium.launch(
        executable_path=support.chromium(), headless=True, args=list(CHROMIUM_FLAGS)
    )
    yield chromium
    chromium.close()


@pytest.fixture(scope="package")
def profile(
    playwright: Playwright, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrowserContext]:
    """One for all pages of JupyterLab: what is compiled of them is kept, which takes long."""
    context = playwright.chromium.launch_persistent_context(
        tmp_path_factory.mktemp("profile"),
        executable_path=support.chromium(),
        headless=True,
        args=list(CHROMIUM_FLAGS),
        viewport=SIZE,
    )
    context.set_default_timeout(READY_S * 1000)
    context.add_init_script(STILL_CURSOR)
    yield context
    context.close()


@pytest.fixture(scope="package")
def server(no_leaks: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PRELOAD, "torch,numpy")  # of all kernels here
        running = Server(tmp_path_factory.mktemp("lab"))
    with running:
        yield running


class Window:
    """A window and the notebook in it, which tests use one after the other."""

    def __init__(self, profile: BrowserContext, server: Server) -> None:
        self._profile = profile
        self._server = server
        self._page: Page | None = None
        self._notebook: Notebook | None = None

    def open(self) -> Page:
        """A new one, as for a new user."""
        self.close()
        self._server.forget()
        self._page = new_page(self._profile, self._server)
        return self._page

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
        if self._page is not None:
            self._server.end_kernels()
            for page in self._profile.pages:
                if page is self._page or page.url.startswith(self._server.origin):
                    page.close()
            self._page = None
            support.eventually(lambda: not kernels_and_ranks(), 10, "the kernels and ranks to end")


@pytest.fixture(scope="package")
def window(profile: BrowserContext, server: Server) -> Iterator[Window]:
    made = Window(profile, server)
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


def new_page(profile: BrowserContext, server: Server) -> Page:
    """An empty one of somebody who has never been on this server."""
    page = profile.new_page()
    stored = {"origin": server.origin, "storageTypes": "cookies,indexeddb,local_storage"}
    profile.new_cdp_session(page).send("Storage.clearDataForOrigin", stored)
    return page


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
