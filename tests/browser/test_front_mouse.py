"""The mesh view in a page of its own: what mouse and keyboard do."""

import re

import pytest
from playwright.sync_api import Page

from tests.browser.front_page import Open, cell, click, details, frames, heard, sent

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]


def test_a_click_tells_all_of_a_rank(show: Open):
    page = show("eight")
    click(page, 2)
    page.get_by_text("last output").wait_for()
    text = details(page)
    for words in ("rank 2", "exited for 1:", "CUDA out of memory", "node-a", "41002", "812 done"):
        assert words in text
    assert "loss.backward()" in text
    page.get_by_role("button", name="cell In[7]", exact=True).click()
    page.get_by_role("button", name="logs").click()
    assert page.get_by_role("button", name="debug").count() == 0, "it is not stopped"
    assert page.evaluate("() => demo.calls") == [
        ["jump", 7],
        ["logs", "train", "2"],
    ]


def test_the_last_lines_are_in_sight_until_one_scrolls_up(show: Open):
    page = show("eight")
    write = "last => { demo.kernel.lines = Array.from({ length: last }, (_, i) => `line ${i}`); }"
    page.evaluate(write, 60)
    click(page, 2)
    lines = page.locator("[data-title=output] pre")
    place = "el => el.scrollHeight - el.clientHeight - el.scrollTop"
    assert 0 <= lines.evaluate(place) < 2
    assert lines.evaluate("el => el.scrollTop") > 0
    lines.evaluate("el => { el.scrollTop = 30; }")
    page.evaluate(write, 61)
    page.wait_for_function(
        """() => {
            demo.kernel.second(Array(8).fill('9'));
            return document.body.innerText.includes("line 60");
        }"""
    )
    assert lines.evaluate("el => el.scrollTop") == 30


def test_a_rank_is_offered_what_can_be_done_with_it(show: Open):
    def offered() -> set[str]:
        buttons = page.locator(".mnb-of-details .mnb-buttons .mnb-button:visible")
        return set(buttons.all_inner_texts())

    page = show("eight")
    click(page, 2)
    assert offered() == {"logs", "copy", "restart"}, "it has exited"
    click(page, 3, keys=["Control"])
    assert offered() == {"interrupt", "stack", "logs", "copy", "restart", "kill"}
    page.get_by_role("button", name="stack").click()
    page.get_by_text("stack of ranks 2-3").wait_for()
    page.get_by_text(re.compile(r"^taken \d\d:\d\d:\d\d$")).wait_for()
    page.get_by_text("train.py:41 in forward").wait_for()
    page.evaluate("() => demo.kernel.delta({ ended: 'stopped by client' })")
    frames(page)
    assert offered() == {"logs", "copy"}


def test_of_several_ranks_no_facts_of_one_are_told(show: Open):
    page = show("eight")
    click(page, 1)
    assert page.locator(".mnb-facts").is_visible()
    click(page, 3, keys=["Control"])
    assert "1,3: 2 busy" in details(page)
    assert not page.locator(".mnb-facts").is_visible()
    for title in page.locator(".mnb-of-details .mnb-button:visible").evaluate_all(
        "all => all.map(one => one.title)"
    ):
        assert " runs" not in title
        assert " is now" not in title


def test_a_drag_selects_a_rectangle_and_modifiers_extend_it(show: Open):
    page = show("hosts")
    start, end = cell(page, 9)["page"], cell(page, 18)["page"]
    page.mouse.move(start["x"], start["y"])
    page.mouse.down()
    page.mouse.move(end["x"], end["y"], steps=5)
    assert page.locator(".mnb-band").is_visible()
    page.mouse.up()
    assert "4 ranks" in details(page)
    assert "9-10,17-18" in details(page)
    click(page, 60, keys=["Shift"])
    assert "9-10,17-18,60" in details(page)
    click(page, 9, keys=["Control"])
    assert "10,17-18,60" in details(page)


def test_a_label_selects_its_row(show: Open):
    page = show("hosts")
    found = cell(page, 0)
    label = next(one for one in found["labels"] if (one["kind"], one["text"]) == ("row", "5"))
    page.mouse.click(found["origin"]["x"] + label["x"] - 3, found["origin"]["y"] + label["y"])
    assert "40-47: 8 unreachable" in details(page)


def test_hovering_tells_and_marks_the_same_rank_in_the_timeline(show: Open):
    page = show("hosts")
    drawn = "() => document.querySelector('.mnb-timeline canvas').toDataURL()"
    at, before = cell(page, 23)["page"], page.evaluate(drawn)
    page.mouse.move(at["x"], at["y"])
    frames(page)
    assert page.evaluate(drawn) != before
    tip = page.locator(".mnb-grid .mnb-tip").inner_text()
    assert tip.startswith("rank 23\nhosts 2, gpus 7\nexited for 1:3")
    assert "SIGKILL; out of memory?" in tip
    strip = page.locator(".mnb-timeline canvas")
    strip.hover(position={"x": 300, "y": 42})
    assert "rank 12\nbusy" in page.locator(".mnb-timeline .mnb-tip").inner_text()


@pytest.mark.parametrize("zoom", [1, 1.5])
def test_every_corner_of_a_cell_is_its_rank(show: Open, zoom: float):
    """Also a little beside it: the gap between two cells belongs to the nearer one."""
    page = show("eight")
    page.evaluate("zoom => { document.querySelector('#place').style.zoom = zoom; }", zoom)
    frames(page)
    box = page.locator(".mnb-scroll canvas").bounding_box()
    assert box is not None
    for rank in (0, 3, 7):
        at = cell(page, rank)
        for x in (at["x"] - 1, at["x"] + at["width"] + 1):
            for y in (at["y"] - 1, at["y"] + at["height"] + 1):
                page.mouse.click(box["x"] + x * zoom, box["y"] + y * zoom)
                assert page.locator(".mnb-title").inner_text() == f"rank {rank}"


def test_the_keyboard_goes_everywhere(show: Open):
    page = show("hosts")
    page.evaluate(
        """() => {
            window.heard = 0;
            addEventListener("keydown", event => { heard += event.key !== "Shift"; });
        }"""
    )
    page.locator(".mnb-scroll canvas").focus()
    assert heard(page).startswith("rank 0, ")
    for key in ("ArrowRight", "ArrowDown", "Space"):
        page.keyboard.press(key)
    assert "rank 9" in details(page)
    assert heard(page).startswith("rank 9, hosts 1, gpus 1, busy for ")
    assert page.locator("canvas [aria-selected]").get_attribute("aria-selected") == "true"
    page.keyboard.press("Shift+ArrowRight")
    assert "9-10" in details(page)
    room = "() => document.querySelector('.mnb-spacer').clientWidth"
    before = page.evaluate(room)
    page.keyboard.press("+")
    assert page.evaluate(room) > before
    page.keyboard.press("-")
    page.keyboard.press("Escape")
    assert not page.locator(".mnb-of-details").is_visible()
    assert page.evaluate("() => heard") == 0  # a notebook's own shortcuts stay quiet

    page.locator(".mnb-timeline canvas").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowLeft"):
        page.keyboard.press(key)
    tip = page.locator(".mnb-timeline .mnb-tip")
    assert re.fullmatch("rank 2\n.*, 2 s ago", tip.inner_text())
    assert tip.get_attribute("aria-live") == "polite"
    page.keyboard.press("Enter")
    assert "rank 2" in details(page)
    assert page.evaluate("() => heard") == 0


def test_from_the_picture_to_a_traceback_without_a_mouse(show: Open):
    page = show("eight")
    page.evaluate("() => demo.kernel.change([6], 'failed')")
    page.locator(".mnb-root > [role=status]", has_text="train: rank 6 failed").wait_for(
        state="attached"
    )
    tab_to(page, ".mnb-scroll canvas")
    for key in ("End", "ArrowLeft"):
        page.keyboard.press(key)
    assert re.match("rank 6, gpus 6, failed for ", heard(page))
    page.keyboard.press("Enter")
    assert page.locator(".mnb-of-details > summary:focus").is_visible()
    page.get_by_text("last output").wait_for()
    tab_to(page, ".mnb-of-details [data-title=error] pre")
    assert "loss.backward()" in page.locator("pre:focus").inner_text()
    page.keyboard.press("Escape")
    assert not page.locator(".mnb-of-details").is_visible()
    assert heard(page).startswith("rank 6")


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until the keyboard is there."""
    for _ in range(40):
        if page.locator(selector).and_(page.locator(":focus")).count():
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"no Tab leads to {selector}")


def test_what_ends_something_asks_twice(show: Open):
    page = show("eight")
    page.evaluate("() => demo.view.select([1, 2, 3])")
    restart = page.get_by_role("button", name="restart")
    place = restart.bounding_box()
    restart.click()
    assert sent(page, "do") == []
    page.get_by_text("Restart 3 ranks? Click again to confirm").wait_for()
    sure = page.get_by_role("button", name="sure?")
    assert sure.bounding_box() == place
    sure.click()
    page.get_by_text("restart: rank 1-3 of train").wait_for()
    (told,) = sent(page, "do")
    assert (told["what"], told["mesh"], told["ranks"]) == ("restart", "train", "1-3")


def test_a_failure_selects_its_ranks_and_shows_its_traceback(show: Open):
    page = show("eight")
    page.get_by_text("NameError: name 'modle'").click()
    page.locator(".mnb-failures").get_by_text("loss.backward()").wait_for()
    assert "8 ranks" in details(page)
    assert "0-7" in details(page)
