"""A mesh as a reader of a saved notebook sees it: in text, and as a drawing."""

import dataclasses
import html
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.core.errors.records import ErrorRecord
from monarch_nb.notebook.view.browser import assets
from monarch_nb.notebook.view.picture import marks, picture, snapshots
from monarch_nb.notebook.view.picture.snapshots import Part, SnapshotReader
from tests.notebook.view.shown import AT, failure, rank, status, still

NASTY = "<script>alert('1')</script>\ud800"
SVG = "{http://www.w3.org/2000/svg}"
ATTRIBUTE = re.compile(r' [a-z-]+="[^"]*"')


def drawing(page: str) -> ET.Element:
    return ET.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])


def texts(page: str, tag: str) -> list[str]:
    return [each.text or "" for each in drawing(page).iter(f"{SVG}{tag}")]


def lines(page: str) -> list[str]:
    """What is read around the drawing."""
    around = page[: page.index("<svg")] + page[page.index("</svg>") :]
    found = re.sub(r"<[^>]*>", "\n", around)
    return [html.unescape(line).strip() for line in found.splitlines() if line.strip()]


def test_the_text_says_who_does_what_and_what_failed():
    ranks = [rank(i, "busy", "cell In[5]", since=AT - 12) for i in range(6)]
    ranks += [rank(6, "exited", detail="killed by SIGKILL"), rank(7)]
    shown = still({"hosts": 2, "gpus": 4}, ranks, [failure([2, 5], count=3)])
    assert picture.text(shown) == (
        "<ProcMesh mesh0>\n"
        "mesh0: 8 ranks (hosts=2 gpus=4): 6 busy, 1 idle, 1 exited\n"
        "gpus=    0  1  2  3\n"
        "hosts=0  ●  ●  ●  ●\n"
        "hosts=1  ●  ●  ✕  ○\n"
        "✕ exited rank 6: killed by SIGKILL\n"
        "● busy ranks 0-5: cell In[5], 12 s\n"
        "✕ ranks 2,5: ValueError: bad (train.py, line 12; step; 3 times)"
    )


def test_a_cell_that_failed_once_on_each_rank_is_told_once():
    found = dataclasses.replace(
        failure([0, 1], count=2), where="Cell In[5], line 2", what="cell In[5]"
    )
    shown = still({"gpus": 2}, [rank(0, "error"), rank(1, "error")], [found])
    assert picture.text(shown).endswith("\n✕ ranks 0-1: ValueError: bad (Cell In[5], line 2)")


def test_the_page_says_the_same_around_the_drawing():
    ranks = [rank(0, "busy", "trainer.step", since=AT - 60), rank(1, "silent", detail="frozen")]
    page = picture.page(still({"gpus": 2}, ranks, [failure([1])]))
    assert lines(page) == [
        *("mesh0", "2 ranks (gpus=2): 1 busy, 1 silent", "as of 07:08:09, 6 May 2031"),
        *("▲", "silent rank 1: frozen", "●", "busy rank 0: trainer.step, 60 s"),
        *("✕", "rank 1: ValueError: bad (train.py, line 12; step)"),
    ]


def test_the_lost_are_told_first_where_there_is_no_room_for_all():
    ranks = [rank(i, "busy", f"step {i}") for i in range(20)] + [rank(20, "exited", detail="why")]
    told = picture.text(still({"gpus": 21}, ranks)).splitlines()[-9:]
    assert told[0] == "✕ exited rank 20: why"
    assert told[1:] == [*(f"● busy rank {i}: step {i}" for i in range(7)), "● ... 13 more"]


def test_how_a_rank_ended_is_said_once_and_again_when_it_is_healed():
    died = dataclasses.replace(failure([1], "RankExited: killed by SIGKILL"), died=True)
    lost = picture.text(still({"gpus": 2}, [rank(0), rank(1, "exited", detail="killed")], [died]))
    healed = picture.text(still({"gpus": 2}, [rank(0), rank(1)], [died]))
    assert "RankExited" not in lost
    assert "✕ rank 1: RankExited: killed by SIGKILL" in healed


def test_a_mesh_that_was_stopped_says_by_whom():
    shown = still({"gpus": 1}, [rank(0, "stopped")])
    shown.status.ended = "stopped by %mesh down"
    assert "stopped by %mesh down" in picture.text(shown).splitlines()
    assert "stopped by %mesh down" in lines(picture.page(shown))


def test_the_drawing_has_the_numbers_along_the_axes():
    page = picture.page(still({"hosts": 2, "gpus": 3}, [rank(i) for i in range(6)]))
    assert texts(page, "text") == [
        *("hosts=0", "hosts=1", "gpus", "0", "1", "2", "0", "1", "2", "3", "4", "5"),
    ]
    places = [(float(e.get("x")), float(e.get("y"))) for e in drawing(page).iter(f"{SVG}text")][-6:]
    assert len({x for x, _ in places}) == 3
    assert len({y for _, y in places}) == 2


@pytest.mark.parametrize("state", [*marks.MARKS, "something new"])
def test_each_state_has_a_shape_and_a_colour(state):
    page = picture.page(still({"gpus": 2}, [rank(0, state, "x"), rank(1, state, "x")]))
    [group] = drawing(page).findall(f"{SVG}g[@stroke]")
    assert group.get("fill") == group.get("stroke") == marks.mark_of(state).colour
    assert group.find(f"{SVG}title").text == f"ranks 0-1: {state}, x"
    assert len(group.findall(f"{SVG}path")) == 2


def test_text_has_the_colour_of_the_page():
    page = picture.page(still({"gpus": 2}, [rank(0), rank(1, "exited")]))
    assert drawing(page).get("fill") == "currentColor"
    colours = set(re.findall(r"#\w{6}", page))
    assert colours == {marks.GREEN, marks.RED}


def test_whatever_a_rank_wrote_is_text():
    ranks = [rank(0, "busy", NASTY, NASTY, since=AT), rank(1, NASTY, NASTY)]
    part = Part(NASTY, NASTY, "mesh0", (0, 1), {NASTY: 2})
    page = picture.page(still({NASTY: 2}, ranks, [failure([0], NASTY)], part))
    assert "<script" not in page
    assert "alert" not in "".join(ATTRIBUTE.findall(page))
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


def test_a_page_is_encodable_whatever_a_rank_wrote():
    shown = still({"gpus": 1}, [rank(0, "busy", NASTY, NASTY)])
    json.dumps(shown.state(), ensure_ascii=False).encode()
    picture.text(shown).encode()
    picture.page(shown).encode()


@pytest.mark.parametrize(
    "sizes", [{"gpus": 1}, {}, {"hosts": 8, "gpus": 8}, {"pods": 2, "hosts": 2, "gpus": 3}]
)
def test_every_rank_is_drawn_once(sizes):
    count = 1
    for size in sizes.values():
        count *= size
    page = picture.page(still(sizes, [rank(i, "busy") for i in range(count)]))
    [group] = drawing(page).findall(f"{SVG}g[@stroke]")
    _, signs = (path.get("d") for path in group.findall(f"{SVG}path"))
    assert len(set(signs.split("M")[1:])) == count
    width, height = (float(size) for size in drawing(page).get("viewBox").split()[2:])
    for sign in signs.split("M")[1:]:
        x, y = (float(number) for number in re.findall(r"[\d.]+", sign)[:2])
        assert 0 < x < width
        assert 0 < y < height


@pytest.mark.parametrize("sizes, limit", [
    ({"hosts": 8, "gpus": 8}, 30), ({"hosts": 128, "gpus": 8}, 80), ({"rank": 1024}, 80)
])  # fmt: skip
def test_a_picture_is_small_whatever_the_ranks_do(sizes, limit):
    count = 64 if limit == 30 else 1024
    words = list(marks.MARKS)
    ranks = [
        rank(i, words[i % len(words)], f"step {i}" + "x" * 80, "y" * 500, AT - i)
        for i in range(count)
    ]
    shown = still(sizes, ranks, [failure([i], "E" * 200) for i in range(8)])
    assert len(picture.page(shown)) < limit * 1024
    everything = [picture.page(shown), picture.text(shown), json.dumps(shown.state())]
    assert sum(map(len, everything)) < 100 * 1024


def test_a_tall_mesh_stands_in_panels():
    page = picture.page(still({"hosts": 128, "gpus": 8}, [rank(i) for i in range(1024)]))
    width, height = (float(size) for size in drawing(page).get("viewBox").split()[2:])
    assert width < 900
    assert height < 600
    assert texts(page, "text").count("gpus") == 4


def test_thousands_are_bounded_and_the_rest_is_counted():
    page = picture.page(still({"hosts": 625, "gpus": 8}, [rank(i) for i in range(5000)]))
    assert "5000 idle" in page
    assert "... 3976 more" in page
    assert len(page) < 80 * 1024


def test_actors_show_the_ranks_they_live_on():
    part = Part("trainers", "ActorMesh(trainers)", "mesh0", (1, 2), {"gpus": 2})
    ranks = [rank(0), rank(1, "busy", "a"), rank(2), rank(3, "exited")]
    shown = still({"gpus": 4}, ranks, [failure([3])], part)
    assert shown.ranks == (1, 2)
    assert texts(picture.page(shown), "text")[-2:] == ["1", "2"]
    assert picture.text(shown).splitlines()[1:] == [
        "trainers: 2 ranks (gpus=2) on mesh0: 1 busy, 1 idle",
        "gpus=  0  1",
        "       ●  ○",
        "● busy rank 1: a",
    ]


def test_the_state_is_a_message_of_the_protocol():
    ranks = [rank(0, "busy", "a", since=990.0), rank(1, "busy", "a", since=995.5), rank(2)]
    state = still({"gpus": 3}, ranks, [failure([1])]).state()
    assert (state["v"], state["type"], state["at"]) == (1, "state", 10001)
    [mesh] = state["meshes"].values()
    assert mesh["ranks"] == [["0-1", "busy", "a", "", [1, 5501]], ["2", "idle", "", "", 0]]
    assert mesh["hosts"] == [["0-2", 0]]
    assert mesh["pids"] == [1000, 1001, 1002]
    assert (mesh["labels"], mesh["sizes"], mesh["ended"]) == (["gpus"], [3], None)
    assert mesh["failures"] == [{
        "id": "f1", "ranks": "1", "headline": "ValueError: bad", "where": "train.py, line 12",
        "what": "step", "at": 8001, "count": 1,
    }]  # fmt: skip


def test_the_front_end_can_read_the_state(tmp_path):
    node, protocol = shutil.which("node"), assets.FRONT / "data/protocol.js"
    if node is None or not protocol.exists():
        pytest.skip("node or the front end is not here")
    ranks = [rank(i, word, "x", "y", AT - i) for i, word in enumerate(marks.MARKS)]
    message = still({"gpus": len(ranks)}, ranks, [failure([1])]).state()
    program = tmp_path / "read.mjs"
    program.write_text(
        f"import {{ parse }} from {json.dumps(protocol.as_uri())};\n"
        f"console.log(typeof parse({json.dumps(message)}));"
    )
    done = subprocess.run([node, program], capture_output=True, text=True, check=True)
    assert done.stdout == "object\n"


def test_the_marks_are_those_of_the_front_end(tmp_path):
    node, script, style = (
        shutil.which("node"),
        assets.FRONT / "data/words.js",
        assets.FRONT / "mesh.css",
    )
    if node is None or not script.exists() or not style.exists():
        pytest.skip("node or the front end is not here")
    program = tmp_path / "marks.mjs"
    program.write_text(
        f"import {{ markOf, stateNames }} from {json.dumps(script.as_uri())};\n"
        "const found = stateNames().map((name) => [name, markOf(name)]);\n"
        "console.log(JSON.stringify(Object.fromEntries(found)));"
    )
    done = subprocess.run([node, program], capture_output=True, text=True, check=True)
    theirs: dict[str, Any] = json.loads(done.stdout)
    assert list(theirs) == list(marks.MARKS)
    assert {v: m["shape"] for v, m in theirs.items()} == {
        state: mark.shape for state, mark in marks.MARKS.items()
    }


# ------------------------------------------------------------------------------- looking at it


class OneMesh:
    """A session whose client knows one mesh."""

    def __init__(self, *meshes: Any) -> None:
        self.meshes = meshes
        self.failed: list[Any] = []
        self.looks = 0
        self.shell = Shell()
        self.status = SimpleNamespace(snapshot=self.snapshot)
        self.control = SimpleNamespace(running_client=lambda: self)
        self.failures = SimpleNamespace(of=lambda name: tuple(self.failed))

    def snapshot(self) -> Any:
        self.looks += 1
        return SimpleNamespace(meshes=self.meshes, hosts=(), at=snapshots.time.monotonic())


def reader_of(session: OneMesh) -> SnapshotReader:
    return SnapshotReader(session.shell, session.control)


class Shell:
    compile = SimpleNamespace(
        format_code_name=lambda name: ("Cell", "In[5]") if name.startswith("/cells/") else None
    )


def part_of(name: str, *, is_over: bool = False) -> Part:
    return Part(name, f"<{name}>", name, (0,), {"gpus": 1}, is_over)


def test_a_failure_is_told_with_the_line_of_the_user():
    session = OneMesh(status({"gpus": 1}, [rank(0)]))
    record = ErrorRecord.from_exception(raised(), lambda _: False)
    session.failed = [SimpleNamespace(id=7, ranks=(0,), record=record, what="a", at=AT, count=2)]
    [told] = reader_of(session).read(part_of("mesh0")).failures
    assert told.headline == "ValueError: two lines"
    assert told.where == "Cell In[5], line 3"


def raised() -> BaseException:
    library = compile("def call(f): f()", json.__file__, "exec")
    cell = compile("\n\ndef step(): raise ValueError('two\\nlines')\n", "/cells/1.py", "exec")
    names: dict[str, Any] = {}
    exec(library, names)
    exec(cell, names)
    try:
        names["call"](names["step"])
    except ValueError as error:
        return error
    raise AssertionError


def test_of_two_meshes_of_a_name_the_living_is_meant_unless_the_other_is_shown():
    old, new = status({"gpus": 1}, [rank(0, "stopped")]), status({"gpus": 2}, [rank(0), rank(1)])
    old.ended = "stopped by stop()"
    reader = reader_of(OneMesh(old, new))
    assert reader.read(part_of("mesh0")).status is new
    assert reader.read(part_of("mesh0", is_over=True)).status is old
    assert reader_of(OneMesh(old)).read(part_of("mesh0")).status is old
    assert reader.read(part_of("other")) is None


def test_one_look_serves_those_who_ask_together():
    session = OneMesh(status({"gpus": 1}, [rank(0)]))
    reader = reader_of(session)
    for _ in range(10):
        reader.read(part_of("mesh0"), 60)
    assert session.looks == 1
    reader.read(part_of("mesh0"))
    reader.read(part_of("mesh0"))
    assert session.looks == 3


def test_nothing_is_looked_at_where_no_client_runs():
    control = SimpleNamespace(running_client=lambda: None)
    assert SnapshotReader(None, control).read(part_of("mesh0")) is None


def test_the_palette_stands_in_one_place():
    names = {path.name for path in Path(marks.__file__).parents[1].rglob("*.py")
             if marks.GREEN in path.read_text()}  # fmt: skip
    assert names == {"marks.py"}
