"""The mesh view in a page of its own, fed by a kernel that is none.

`tests/front/fake_kernel.js` answers the view's messages in the page; everything else is real.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from benchmarks import panning

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The page's address."""
    with panning.site() as address:
        yield f"{address}/tests/front/demo.html"


@pytest.fixture
def show(browser: Browser, site: str) -> Iterator[Open]:
    """Open a world in a window of its own; nothing may go wrong in the page."""
    troubles: list[str] = []
    contexts = []

    def opened(world: str, width: int = 1100, theme: str = "light", more: str = "") -> Page:
        size = {"width": width + 24, "height": 900}
        context = browser.new_context(viewport=size, device_scale_factor=2)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda said: troubles.append(said.text))
        page.goto(f"{site}?world={world}&width={width}&theme={theme}{more}")
        page.wait_for_function("() => window.demo?.connection.state === 'live'")
        frames(page)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not troubles, troubles


def frames(page: Page) -> None:
    """Let what is asked for be drawn."""
    page.evaluate(
        "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )


def themed(page: Page) -> None:
    """Let a theme be noticed and drawn: what nobody could see is told again two frames later."""
    for _ in range(3):
        frames(page)


def cell(page: Page, rank: int) -> Any:
    return page.evaluate("rank => demo.cellOf(rank)", rank)


def click(page: Page, rank: int, **options: Any) -> None:
    at = cell(page, rank)["page"]
    page.mouse.move(at["x"], at["y"])
    for key in options.get("keys", []):
        page.keyboard.down(key)
    page.mouse.click(at["x"], at["y"])
    for key in options.get("keys", []):
        page.keyboard.up(key)


def colour(page: Page, rank: int, dx: float, dy: float) -> tuple[int, ...]:
    return tuple(page.evaluate("([rank, dx, dy]) => demo.colourAt(rank, dx, dy)", [rank, dx, dy]))


def near(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return all(abs(a - b) <= 6 for a, b in zip(one, other, strict=True))


def heard(page: Page) -> str:
    """Return what a screen reader says of the rank where the keyboard is."""
    return page.locator(".mnb-scroll canvas").first.evaluate(
        "el => document.getElementById(el.getAttribute('aria-activedescendant'))?.textContent ?? ''"
    )


def details(page: Page) -> str:
    return page.locator(".mnb-of-details").inner_text()


def sent(page: Page, kind: str) -> list[dict[str, Any]]:
    return page.evaluate("kind => demo.kernel.sent.filter(one => one.type === kind)", kind)
