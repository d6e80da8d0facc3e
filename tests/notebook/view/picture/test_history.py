"""What a mesh has done, in a picture that needs neither a page nor a kernel."""

import re
import xml.etree.ElementTree as ET

from monarch_nb.notebook.view.picture import history, picture
from monarch_nb.notebook.view.picture.history import History
from tests.notebook.view.shown import rank, still

SVG = "{http://www.w3.org/2000/svg}"
LOSS = [(0, 2.5, 2.4, 2.6, 2), (1, None, None, None, 0), (2, 1.25, 1.0, 1.5, 2)]


def drawings(page: str) -> list[ET.Element]:
    return [ET.fromstring(each) for each in re.findall(r"<svg.*?</svg>", page)]


def titles(page: str) -> list[str]:
    return [each.findtext(f"{SVG}title") or "" for each in drawings(page)]


def test_the_last_value_of_each_curve_is_told_and_the_curve_is_drawn():
    past = History({"loss": LOSS, "steps": [(2, 8.0, 8.0, 8.0, 1)]}, {})
    assert history.lines(past) == [
        "loss: 1.25 at step 2, of ranks 1 to 1.5",
        "steps: 8 at step 2",
    ]
    page = history.page(past)
    assert titles(page) == ["loss: 1 to 2.6, steps 0 to 2", "steps: 8 to 8, steps 2 to 2"]
    band, line = drawings(page)[0].iter(f"{SVG}path")
    assert len(re.findall("[ML]", band.get("d"))) == 4
    assert line.get("d").startswith("M0.0 ")
    assert "L260.0 " in line.get("d")


def test_many_curves_are_counted_and_a_long_one_keeps_its_end():
    long = [(step, float(step), float(step), float(step), 1) for step in range(512)]
    past = History({f"c{number}": long for number in range(20)}, {})
    told = history.lines(past)
    assert told[0] == "c0: 511 at step 511"
    assert told[-1] == "... 12 more curves"
    page = history.page(past)
    assert len(drawings(page)) == history.MAX_DRAWN
    assert all("steps 0 to 511" in each for each in titles(page))
    assert len(page) < 20_000


def test_what_ranks_did_lately_is_a_strip_for_each():
    past = History({}, {0: "..0499", 1: "...9ex"})
    assert history.lines(past) == ["the last 4 s, how busy:", "0 | ▄██|", "1 | █!✕|"]
    [drawing] = drawings(history.page(past))
    assert [each.text for each in drawing.iter(f"{SVG}text")] == ["0", "1"]
    assert drawing.findtext(f"{SVG}title") == "the last 4 s of each rank, how busy"


def test_nothing_is_said_of_what_nobody_knows():
    for past in (History({}, {0: "....", 1: ""}), History({"loss": [LOSS[1]]}, {})):
        assert history.lines(past) == []
        assert history.page(past) == ""


def test_of_many_ranks_there_are_no_strips():
    few = dict.fromkeys(range(history.MAX_STRIPS), "5" * 300)
    many = dict.fromkeys(range(history.MAX_STRIPS + 1), "5" * 300)
    assert len(drawings(history.page(History({}, few)))) == 1
    assert history.page(History({}, many)) == ""
    assert history.lines(History({}, few)) == []


def test_the_picture_has_it_below_the_state_and_names_are_text():
    name = "<script>alert('1')</script>"
    past = History({name: LOSS}, {})
    shown = still({"gpus": 1}, [rank(0)])
    assert picture.text(shown, past).endswith(f"{name}: 1.25 at step 2, of ranks 1 to 1.5")
    page = picture.page(shown, past)
    assert "<script>" not in page
    assert len(drawings(page)) == 2
