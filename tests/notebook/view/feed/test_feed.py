"""From snapshots to messages: a delta from any update gives what the state would say."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.core.errors.records import ErrorRecord
from monarch_nb.notebook.view.feed.feed import Feed
from monarch_nb.notebook.view.feed.inputs import CellAtWork, View
from tests.notebook.view.fake_browser import PARTS, Browser, check
from tests.notebook.view.fake_source import (
    AT_MS,
    FakeActor,
    FakeCurve,
    FakeFailure,
    FakeHost,
    FakePast,
    FakeRun,
    FakeSource,
    FakeTimeline,
    FakeUsage,
)

ALL = View(PARTS, None)
BARE = View(frozenset(), None)


class World:
    """A feed, its source and a clock that the test turns."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.source = FakeSource()
        self.feed = Feed(self.now, self.source.where)
        self.second = 0

    def look(self, after_s=0.1):
        self.now += after_s
        self.feed.update(self.source.read(0.1, PARTS), self.now)
        return self.feed

    def state(self, view=ALL):
        return check(self.feed.state("me", view))

    def delta(self, base, view=ALL):
        found = self.feed.delta(base, view)
        return check(found) if found else found


@pytest.fixture
def world():
    made = World()
    made.source.mesh("mesh0", hosts=2, gpus=2)
    made.look()
    return made


def test_a_state_says_everything(world):
    world.source.hosts = (FakeHost("here"), FakeHost("there", "its link broke"))
    world.source.change("mesh0", 2, 3, host=1)
    world.source.change("mesh0", 1, state="exited", detail="killed", pid=None, since=1000.15)
    world.source.cell = lambda: CellAtWork(7, "abc", 1000.05)
    world.look()
    state = world.state(BARE)
    assert state == {
        "v": 1, "type": "state", "to": "me", "n": 3, "at": 200, "seconds": 0,
        "hosts": [{"name": "here", "ended": None}, {"name": "there", "ended": "its link broke"}],
        "meshes": {"mesh0": {
            "labels": ["hosts", "gpus"], "sizes": [2, 2], "ended": None,
            "hosts": [["0-1", 0], ["2-3", 1]], "pids": [1000, None, 1000, 1000],
            "ranks": [["0,2-3", "idle", "", "", 1], ["1", "exited", "", "killed", 150]],
            "usage": {"ranks": "0-3", "cpu": [0] * 4, "rss": [0] * 4, "queue": [0] * 4,
                      "calls": [0] * 4, "failed": [0] * 4, "beat": [0] * 4},
        }},
        "cell": {"number": 7, "id": "abc", "since": 50, "watched": False},
        "current": None, "jobs": [],
    }  # fmt: skip


def test_a_delta_says_what_has_changed(world):
    base = world.feed.n
    world.source.change("mesh0", 1, 3, state="busy", what="In[3]", since=1000.2)
    world.source.change("mesh0", 3, since=1000.125)
    world.look()
    rows = [["1,3", "busy", "In[3]", "", [200, 125]]]
    assert world.delta(base, BARE) == {
        "v": 1, "type": "delta", "base": base, "n": base + 1, "at": 200,
        "meshes": {"mesh0": {"ranks": rows}},
    }  # fmt: skip
    assert world.delta(base + 1) == {}


def test_nothing_new_is_no_update(world):
    n = world.feed.n
    for _ in range(5):
        world.look()
    assert world.feed.n == n
    assert world.delta(n) == {}


def test_meshes_come_and_go_and_come_back(world):
    page = Browser()
    page.apply(world.state())
    world.source.mesh("other", gpus=1)
    world.look()
    page.apply(world.delta(page.n))
    assert list(page.meshes) == ["mesh0", "other"]
    base = page.n
    del world.source.meshes["mesh0"]
    world.look()
    assert world.delta(base)["meshes"] == {"mesh0": None}
    world.source.mesh("mesh0", gpus=8)
    world.look()
    page.apply(world.delta(base))
    assert page.meshes["mesh0"]["sizes"] == [8]
    assert len(page.meshes["mesh0"]["rows"]) == 8


def test_a_mesh_of_an_old_name_is_new(world):
    base = world.feed.n
    world.source.meshes["mesh0"] = replace(world.source.meshes["mesh0"], ended="stopped by client")
    world.look()
    assert world.delta(base)["meshes"]["mesh0"] == {"ended": "stopped by client"}
    world.source.mesh("mesh0", hosts=2, gpus=2)
    world.look()
    assert world.delta(base)["meshes"]["mesh0"]["labels"] == ["hosts", "gpus"]


def test_a_mesh_that_took_the_name_of_another_between_two_looks_is_new(world):
    world.source.of_curves["mesh0"] = {"loss": FakeCurve(1, [(0, 1.0, 1.0, 1.0, 4)])}
    world.look()
    base = world.feed.n
    world.source.mesh("mesh0", hosts=2, gpus=2)
    world.source.of_curves.clear()
    world.look()
    told = world.delta(base)["meshes"]["mesh0"]
    assert told["labels"] == ["hosts", "gpus"]
    assert "curves" not in told


def test_of_meshes_with_one_name_the_newest_that_is_up_is_told(world):
    old = world.source.meshes["mesh0"]
    world.source.namesakes.append(old)
    world.source.mesh("mesh0", gpus=3)
    world.look()
    assert world.state()["meshes"]["mesh0"]["sizes"] == [3]
    newest = world.source.meshes["mesh0"]
    world.source.meshes["mesh0"] = replace(newest, ended="stopped by client")
    base = world.feed.n
    world.look()
    assert world.delta(base)["meshes"]["mesh0"]["sizes"] == [2, 2]  # the old one is up still


def test_the_current_mesh_is_told_when_it_changes(world):
    base = world.feed.n
    assert world.state()["current"] is None
    world.source.current = "mesh0"
    world.look()
    assert world.delta(base) == {
        "v": 1, "type": "delta", "base": base, "n": base + 1, "at": 200, "current": "mesh0"
    }  # fmt: skip
    assert world.state()["current"] == "mesh0"
    world.source.current = None
    world.look()
    assert world.delta(base + 1)["current"] is None


def test_a_view_of_one_mesh(world):
    world.source.mesh("other", gpus=1)
    base = world.feed.n
    one = View(frozenset(), frozenset({"other"}))
    world.look()
    assert list(world.state(one)["meshes"]) == ["other"]
    world.source.change("mesh0", 0, state="busy")
    world.look()
    assert world.delta(base + 1, one) == {}
    assert list(world.delta(base, one)["meshes"]) == ["other"]


def test_usage_comes_once_a_second_and_only_what_has_changed(world):
    base = world.feed.n
    usage = FakeUsage(cpu_percent=50, rss_bytes=3 << 20, gpu_percent=7, gpu_bytes=1 << 20)
    world.source.change("mesh0", 1, usage=usage, beat=3)
    world.look(0.5)
    assert world.delta(base) == {}
    world.look(0.6)
    assert world.delta(base)["meshes"]["mesh0"]["usage"] == {
        "ranks": "1", "cpu": [50], "rss": [3], "beat": [3], "gpu": [7], "gpu_mem": [1]
    }  # fmt: skip
    world.source.change("mesh0", 0, calls=4)
    world.look(1.1)
    assert world.delta(base + 1)["meshes"]["mesh0"]["usage"] == {"ranks": "0", "calls": [4]}


def test_strips_come_a_letter_a_second(world):
    line = world.source.timelines["mesh0"] = FakeTimeline(["0000"])
    world.look()
    assert world.state()["meshes"]["mesh0"]["strips"] == ["0"] * 4
    base, seconds = world.feed.n, world.state()["seconds"]
    line.ended.append("9x0z")
    world.look()
    assert world.delta(base)["meshes"]["mesh0"] == {"strip": "9x0z"}
    assert world.delta(base)["seconds"] == seconds + 1
    assert world.delta(base, BARE) == {}


def test_after_several_seconds_the_strips_are_whole(world):
    line = world.source.timelines["mesh0"] = FakeTimeline(["0000"])
    world.look()
    base, seconds = world.feed.n, world.state()["seconds"]
    line.ended += ["9999", "cccc"]
    world.look()
    assert world.delta(base)["meshes"]["mesh0"] == {"strips": ["09c"] * 4}
    assert world.delta(base)["seconds"] == seconds + 2


def test_failures_come_whole(world):
    base = world.feed.n
    record = ErrorRecord("ValueError", "bad\ud800 " + "x" * 400)
    world.source.of_failures["mesh0"] = (FakeFailure(1, (0, 1, 3), record, at=1000.05, count=3),)
    world.look()
    [told] = world.delta(base)["meshes"]["mesh0"]["failures"]
    assert told["headline"].startswith("ValueError: bad? xxx")
    assert len(told["headline"]) == 300
    assert (told["ranks"], told["at"], told["count"]) == ("0-1,3", 50, 3)
    assert told["where"] == "Cell In[1], line 1"
    assert "failures" not in world.state(BARE)["meshes"]["mesh0"]


def test_failures_that_are_over_come_whole_where_they_change(world):
    base = world.feed.n
    past = FakePast(FakeFailure(4, (3,), ErrorRecord("RankExited", "gone"), at=1000.05))
    world.source.of_past["mesh0"] = (past,)
    world.look()
    [told] = world.delta(base)["meshes"]["mesh0"]["past"]
    assert (told["id"], told["ranks"], told["at"], told["came"]) == (4, "3", 50, AT_MS)
    assert told["became"] == "healed 0.4 s later: a new process"
    assert "past" not in world.state(BARE)["meshes"]["mesh0"]
    base = world.feed.n
    world.look()
    assert world.feed.n == base
    world.source.of_past["mesh0"] = ()
    world.look()
    assert world.delta(base)["meshes"]["mesh0"] == {"past": []}


def test_curves_come_from_the_first_point_that_changed(world):
    curve = FakeCurve()
    world.source.of_curves["mesh0"] = {"loss": curve}
    curve.add(0, 2.5)
    world.look()
    base = world.feed.n
    for step in range(1, 4):
        curve.add(step, math.nan if step == 2 else 1.0)
        world.look()
    told = world.delta(base)["meshes"]["mesh0"]["curves"]["loss"]
    assert told == {"from": 1, "points": [[1, 1.0, 1.0, 1.0, 1], [2, None, None, None, 1],
                                          [3, 1.0, 1.0, 1.0, 1]]}  # fmt: skip
    assert world.delta(base + 2)["meshes"]["mesh0"]["curves"]["loss"]["from"] == 3
    curve.points, curve.version = [(0, 9.0, 9.0, 9.0, 1)], 99
    world.look()
    assert world.delta(base + 3)["meshes"]["mesh0"]["curves"]["loss"]["from"] == 0


def test_a_page_that_has_missed_many_changes_of_a_curve_gets_all_of_it(world):
    curve = FakeCurve()
    world.source.of_curves["mesh0"] = {"loss": curve}
    curve.add(0, 2.5)
    world.look()
    base = world.feed.n
    curve.points, curve.version = [(0, 9.0, 9.0, 9.0, 1)], 50
    for step in range(1, 80):
        world.look()
        curve.add(step, 1.0)
    assert world.delta(base)["meshes"]["mesh0"]["curves"]["loss"]["from"] == 0


def test_an_earlier_run_is_told_whole_once_and_that_it_is_gone(world):
    first, second = FakeCurve(), FakeCurve()
    for step in range(300):
        first.add(step, 1.0)
    runs = [FakeRun(1, "lr=0.1", {"loss": first})]
    world.source.of_runs["mesh0"], world.source.of_curves["mesh0"] = runs, {"loss": first}
    world.look()
    base = world.feed.n
    assert world.state()["meshes"]["mesh0"]["runs"] == {
        "1": {"name": "lr=0.1", "current": ["loss"], "curves": {}}
    }
    second.add(0, 2.0)
    runs.append(FakeRun(2, "", {"loss": second}))
    world.source.of_curves["mesh0"] = {"loss": second}
    world.look()
    told = world.delta(base)["meshes"]["mesh0"]
    assert told["curves"]["loss"] == {"from": 0, "points": [[0, 2.0, 2.0, 2.0, 1]]}
    assert told["runs"]["2"] == {"name": "run 2", "current": ["loss"], "curves": {}}
    earlier = told["runs"]["1"]["curves"]["loss"]
    assert (len(earlier), earlier[-1]) == (100, [299, 1.0, 1.0, 1.0, 1])
    base = world.feed.n
    second.add(1, 2.0)
    del runs[0]
    world.look()
    assert world.delta(base)["meshes"]["mesh0"]["runs"] == {"1": None}


def test_runs_that_went_long_ago_are_forgotten_and_who_has_not_looked_since_begins_again(world):
    of_runs = world.source.of_runs
    bases = []
    for number in range(200):
        of_runs["mesh0"] = [FakeRun(number, "", {"loss": FakeCurve()})]
        world.look()
        bases.append(world.feed.n)
    assert world.delta(bases[0]) is None, "it has run 0, and nobody remembers that it went"
    for back in (2, 10, 60):
        told = world.delta(bases[-back])["meshes"]["mesh0"]["runs"]
        assert {run for run, news in told.items() if news is None} == {str(200 - back)}


def test_actors_are_known_before_ranks_tell_of_them(world):
    base = world.feed.n
    mesh = world.source.meshes["mesh0"]
    world.source.meshes["mesh0"] = replace(mesh, actors=(FakeActor("t", "Trainer", 4),))
    world.look(1.1)
    row = {"name": "t", "cls": "Trainer", "size": 4, "calls": 0, "failed": 0, "queue": 0,
           "ended": None}  # fmt: skip
    assert world.delta(base)["meshes"]["mesh0"]["actors"] == [row]
    world.source.counts["mesh0"] = [row | {"calls": 12}]
    world.look(1.1)
    assert world.delta(base + 1)["meshes"]["mesh0"]["actors"] == [row | {"calls": 12}]


def test_no_text_of_a_rank_breaks_a_message(world):
    text = "\ud83d" + "\x00" + "é" * 20_000
    world.source.change("mesh0", 0, state="exited", what=text, detail=text)
    world.source.meshes[text] = replace(world.source.meshes["mesh0"], name=text)
    world.look()
    [_, [_, _, what, detail, _]] = world.state()["meshes"]["mesh0"]["ranks"][::-1]
    assert (len(what), len(detail)) == (200, 10_000)


def test_a_base_that_is_too_old_or_of_another_kernel(world):
    assert world.feed.delta(world.feed.n + 1, ALL) is None
    for number in range(70):
        world.source.mesh(f"m{number}", gpus=1)
        world.look()
        del world.source.meshes[f"m{number}"]
        world.look()
    assert world.feed.delta(1, ALL) is None
    assert world.delta(world.feed.n - 1) is not None


# -------------------------------------------------------------------------------- any history

_STEP = st.one_of(
    st.tuples(st.just("change"), st.sampled_from("abc"), st.sets(st.integers(0, 3)),
              st.sampled_from(["idle", "busy", "exited"]), st.integers(0, 3)),
    st.tuples(st.just("up"), st.sampled_from("abc"), st.integers(1, 4)),
    st.tuples(st.just("down"), st.sampled_from("abc")),
    st.tuples(st.just("second")),
    st.tuples(st.just("log"), st.sampled_from("abc"), st.sampled_from(["loss", "lr"]),
              st.floats()),
    st.tuples(st.just("rewind"), st.sampled_from("abc")),
    st.tuples(st.just("use"), st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 100)),
    st.tuples(st.just("cell"), st.integers(0, 3)),
    st.tuples(st.just("wait")),
)  # fmt: skip


def take(world: World, step):
    source, (kind, *args) = world.source, step
    name = args[0] if args else ""
    if kind == "up":
        source.mesh(name, gpus=args[1])
        source.timelines[name] = FakeTimeline(["." * args[1]] * world.second)
        source.of_curves[name] = {}
    elif kind == "down":
        for table in (source.meshes, source.timelines, source.of_curves):
            table.pop(name, None)
    elif kind == "second":
        world.second += 1
        for known, line in source.timelines.items():
            line.ended.append("5" * len(source.meshes[known].ranks))
    elif kind == "cell":
        source.cell = lambda: CellAtWork(args[0], None, 1.0) if args[0] else None
    elif name in source.meshes:
        if kind == "change":
            source.change(name, *args[1], state=args[2], since=1000.0 + args[3])
        elif kind == "log":
            curve = source.of_curves[name].setdefault(args[1], FakeCurve())
            curve.add(len(curve.points), args[2])
        elif kind == "rewind":
            for curve in source.of_curves[name].values():
                curve.points, curve.version = curve.points[:1], curve.version + 1
        elif kind == "use":
            usage = FakeUsage(cpu_percent=args[2])
            source.change(name, args[1], usage=usage, calls=args[2] // 10)
    world.look(1.1 if kind == "wait" else 0.1)


@pytest.mark.slow
@given(st.lists(_STEP, max_size=25), st.data())
def test_a_delta_from_any_update_gives_the_state(steps, data):
    world = World()
    pages = []
    for step in steps:
        page = Browser()
        page.apply(world.feed.state("me", ALL))
        pages.append(page)
        take(world, step)
    truth = Browser()
    truth.apply(world.feed.state("me", ALL))
    for page in pages:
        if data.draw(st.booleans()) and (delta := world.feed.delta(page.n, ALL)):
            page.apply(delta)
            assert page.known() == truth.known()


def test_a_delta_is_made_once_for_all_channels(world):
    base = world.feed.n
    world.source.change("mesh0", 1, state="busy")
    world.look()
    assert world.feed.delta(base, ALL) is world.feed.delta(base, ALL)
