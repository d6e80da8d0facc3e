"""Curves in a page of its own: runs beside each other, zoom, scale, smoothing, export."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.front_page import Open, frames
from tests.browser.lab import picture

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

RUNS = """() => {
    const points = demo.kernel.curves.loss.points;
    const faster = points.map(([s, m, l, h, n]) => [s, m * 0.8 + 0.1, l, h, n]);
    const runs = {
        1: { name: "lr=1e-2", current: [], curves: { loss: faster } },
        2: { name: "lr=1e-3", current: Object.keys(demo.kernel.curves), curves: {} }
    };
    demo.kernel.delta({ runs });
}"""
DRAWN = "() => document.querySelector('.mnb-plot canvas').toDataURL()"


def drawn(page: Page) -> str:
    frames(page)
    return page.evaluate(DRAWN)


def saved(page: Page, button: str) -> tuple[str, bytes]:
    with page.expect_download() as download:
        page.locator(".mnb-plot").first.get_by_text(button, exact=True).click()
    found = download.value
    return found.suggested_filename, Path(found.path()).read_bytes()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_curves_are_compared_zoomed_smoothed_and_saved(show: Open, theme: str):
    page = show("eight", theme=theme, width=1100)
    alone = drawn(page)
    page.evaluate(RUNS)
    legend = page.get_by_role("group", name="runs that are shown")
    earlier = legend.get_by_role("button", name="lr=1e-2")
    expect(earlier).to_have_attribute("aria-pressed", "true")
    both = drawn(page)
    assert both != alone
    earlier.click()
    assert drawn(page) == alone
    earlier.click()
    assert drawn(page) == both

    plot = page.locator(".mnb-plot").first
    canvas = plot.locator("canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.5, middle)
    tip = plot.locator(".mnb-tip")
    expect(tip).to_contain_text("lr=1e-3:")
    expect(tip).to_contain_text("lr=1e-2:")
    picture(page, f"curves-{theme}-hover")
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.8, middle)
    page.mouse.up()
    near = drawn(page)
    assert near != both
    expect(plot.get_by_text("all steps")).to_be_visible()
    log = plot.get_by_role("button", name="log scale for loss")
    log.click()
    expect(log).to_have_attribute("aria-pressed", "true")
    assert drawn(page) != near
    page.get_by_label("smoothing").fill("0.9")
    picture(page, f"curves-{theme}-near")
    name, csv = saved(page, "CSV")
    assert (name, csv.splitlines()[0]) == ("loss.csv", b"run,run_number,name,rank,step,value")
    name, png = saved(page, "PNG")
    assert (name, png[:4]) == ("loss.png", b"\x89PNG")

    page.get_by_label("smoothing").fill("0")
    log.click()
    canvas.dblclick()
    expect(plot.get_by_text("all steps")).to_be_hidden()
    page.mouse.move(0, 0)
    canvas.blur()
    assert drawn(page) == both


def test_a_curve_is_read_and_zoomed_with_keys(show: Open):
    page = show("eight", width=1100)
    plot = page.locator(".mnb-plot").first
    reading = plot.locator(".mnb-reading")
    plot.locator("canvas").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    expect(reading).to_contain_text("step 10,")
    expect(reading).to_have_attribute("aria-live", "polite")
    page.keyboard.press("+")
    expect(plot.get_by_text("all steps")).to_be_visible()
    page.keyboard.press("Escape")
    expect(plot.get_by_text("all steps")).to_be_hidden()
