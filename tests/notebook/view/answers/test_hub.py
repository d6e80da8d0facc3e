"""The hub with real threads and a fake source: what channels are sent, and that nothing lingers."""

import os
import threading
import time
from types import SimpleNamespace

import pytest

from monarch_nb.core.errors.records import ErrorRecord
from monarch_nb.core.wire.messages.status import (
    GetPicture,
    GetWindow,
    LocalTensor,
    Picture,
    Window,
)
from monarch_nb.notebook.cells.past_cells import Offer
from monarch_nb.notebook.lifecycle import Lifecycle
from monarch_nb.notebook.view.answers import pending_requests, questions
from monarch_nb.notebook.view.answers.hub import Hub
from monarch_nb.notebook.view.answers.questions import Question
from tests.notebook.kept_records import kept
from tests.notebook.view.browser.test_messages import HELLO, v1
from tests.notebook.view.fake_browser import Browser, check
from tests.notebook.view.fake_source import AT_MS, FakeCurve, FakeFailure, FakePast, FakeSource
from tests.support import eventually


class Page:
    """One channel and what came through it."""

    def __init__(self, hub, client="a", fails=False):
        self.client, self.messages, self.fails = client, [], fails
        self.model = Browser()
        self.channel = hub.open(self.take)

    def take(self, message):
        if self.fails:
            raise RuntimeError("comm is closed")
        self.messages.append(check(message))

    def say(self, kind, **fields):
        self.channel.receive({"v": 1, "type": kind, "from": self.client, **fields})

    def hello(self, **changes):
        self.channel.receive(v1(HELLO, **{"from": self.client}, **changes))
        return self.wait("state", to=self.client)

    def wait(self, kind, **fields):
        def found():
            wanted = {"type": kind, **fields}
            return [m for m in list(self.messages) if wanted.items() <= m.items()]

        return eventually(found, what=f"{kind} {fields}")[-1]

    def ask(self, what, key=1, kind="ask", **fields):
        self.say(kind, id=key, what=what, **fields)
        return self.wait("answer", id=key)


def live_threads():
    return [each.name for each in threading.enumerate() if each.name.startswith("monarch-live")]


@pytest.fixture
def source():
    made = FakeSource()
    made.mesh("mesh0", gpus=4)
    return made


@pytest.fixture
def hub(source):
    made = Hub(SimpleNamespace(), source)
    yield made
    source.hangs.set()
    made.close()
    eventually(lambda: not live_threads(), what="no thread of the view")


def test_a_page_gets_the_state_and_then_what_changes(hub, source):
    page = Page(hub)
    state = page.hello()
    assert list(state["meshes"]) == ["mesh0"]
    source.change("mesh0", 2, state="busy", what="In[3]")
    delta = page.wait("delta")
    assert (delta["base"], delta["n"]) == (state["n"], state["n"] + 1)
    assert delta["meshes"]["mesh0"]["ranks"] == [["2", "busy", "In[3]", "", 1]]


def test_nobody_looking_is_no_thread_and_no_watch(hub, source):
    assert live_threads() == []
    page = Page(hub)
    page.hello()
    assert live_threads() == ["monarch-live"]
    page.say("bye")
    eventually(lambda: not live_threads(), what="the thread is gone")
    assert source.rests == 1
    page.messages.clear()
    page.hello()
    page.channel.close()
    eventually(lambda: not live_threads(), what="the thread is gone again")
    assert source.rests == 2


def test_at_most_one_message_in_a_period(hub, source):
    page = Page(hub)
    page.hello(period_ms=100)
    source.flicker("mesh0", 1.5)
    eventually(lambda: len(page.messages) > 8, what="some deltas")
    began, before = time.monotonic(), len(page.messages)
    eventually(lambda: time.monotonic() - began > 0.8)
    sent, took_s = len(page.messages) - before, time.monotonic() - began
    assert sent <= took_s / 0.1 + 2


def test_pages_of_one_channel_stay_in_step(hub, source):
    page = Page(hub)
    page.hello()
    page.client = "b"
    source.change("mesh0", 1, state="busy")
    page.hello(parts=[])
    source.change("mesh0", 3, state="busy")
    page.wait("delta")
    eventually(lambda: page.messages[-1]["type"] == "delta")
    for client in "ab":
        model = Browser()
        for message in page.messages:
            if message.get("to", client) == client and (model.n >= 0 or "to" in message):
                model.apply(message)
        assert model.meshes["mesh0"]["rows"][3][0] == "busy"


def test_a_channel_that_breaks_disturbs_no_other(hub, source):
    broken, page = Page(hub), Page(hub)
    broken.hello()
    page.hello()
    broken.fails = True
    source.change("mesh0", 0, state="busy")
    page.wait("delta")
    source.change("mesh0", 1, state="busy")
    eventually(lambda: len([m for m in page.messages if m["type"] == "delta"]) == 2)
    assert "<Channels: 1," in repr(hub)


def test_malformed_messages_are_answered_and_counted(hub):
    page = Page(hub)
    for message in (None, [1], {"v": 3}, v1({"type": "ping"}), v1({"type": "x", "from": "a"})):
        page.channel.receive(message)
    eventually(lambda: len(page.messages) == 5)
    assert {message["type"] for message in page.messages} == {"error"}
    assert hub.feed.malformed == 5
    answer = page.ask("rank", mesh="mesh0", rank="two")
    assert answer["error"] == "rank: rank must be a whole number from 0 to 100000, not 'two'"


def test_a_stranger_is_told_to_say_hello(hub):
    page = Page(hub)
    page.say("ping")
    assert "say hello" in page.wait("error")["error"]


def test_a_source_that_fails_for_a_moment_ends_nothing(hub, source, caplog):
    page = Page(hub)
    page.hello()
    read, source.read = source.read, lambda *_: 1 / 0
    eventually(lambda: "could not be updated" in caplog.text)
    source.read = read
    source.change("mesh0", 0, state="busy")
    page.wait("delta")
    assert caplog.text.count("Traceback") == 1


def test_what_is_asked_of_a_rank(hub, source):
    page = Page(hub)
    actor = {"name": "t", "cls": "T", "calls": 3, "failed": 1, "queue": 0, "current": "step"}
    source.told[2] = [actor]
    record = ErrorRecord("ValueError", "bad")
    source.of_failures["mesh0"] = (FakeFailure(5, (2, 3), record, at=hub.feed._began + 2.0),)
    for number in range(30):
        source.write("mesh0", number % 2 + 1, f"line {number}\ud800")
    value = page.ask("rank", mesh="mesh0", rank=2)["value"]
    assert value["actors"] == [actor]
    assert value["error"] == {"headline": "ValueError: bad", "text": "ValueError: bad",
                              "what": "a cell", "at": 2000}  # fmt: skip
    assert value["lines"] == [f"line {number}?" for number in range(1, 30, 2)]
    assert (value["coords"], value["host"], value["detail"]) == ({"gpus": 2}, "here", "")
    value = page.ask("rank", 2, mesh="mesh0", rank=3)["value"]
    assert value["detail"] == (
        "rank 3 did not answer within 2 s: it holds the GIL in C code or is stopped"
    )
    assert page.ask("rank", 3, mesh="mesh0", rank=9)["error"] == (
        "mesh0 has no rank 9 any more; it has 4 ranks"
    )
    assert page.ask("rank", 4, mesh="m", rank=0)["error"] == "there is no mesh 'm' any more"
    value = page.ask("failure", 5, mesh="mesh0", failure=5)["value"]
    assert (value["ranks"], value["text"]) == ("2-3", "ValueError: bad")
    over = FakeFailure(6, (1,), ErrorRecord("RankExited", "gone"), lines=("last\ud800", "words"))
    source.of_past["mesh0"] = (FakePast(over),)
    value = page.ask("failure", 6, mesh="mesh0", failure=6)["value"]
    assert (value["text"], value["lines"]) == ("RankExited: gone", ["last?", "words"])
    assert "not kept any more" in page.ask("failure", 7, mesh="mesh0", failure=7)["error"]


def test_whole_logs_come_in_pieces(hub, source):
    page = Page(hub)
    source.write("mesh0", 1, "one")
    source.write("mesh0", 2, "not this")
    source.write("mesh0", 1, "two")
    wish = {"mesh": "mesh0", "ranks": "1"}
    first = page.ask("whole_logs", **wish, after="")["value"]
    assert first == {"text": "one", "after": "1"}
    second = page.ask("whole_logs", 2, **wish, after=first["after"])["value"]
    assert second == {"text": "two", "after": None}
    assert "after must be" in page.ask("whole_logs", 3, **wish, after=5)["error"]


def test_what_else_is_asked(hub, source):
    page = Page(hub)
    curve = FakeCurve()
    source.of_curves["mesh0"] = {"loss": curve}
    for step in range(1500):
        curve.add(step, float("nan") if step == 1499 else 1.0)
    points = page.ask("curve", mesh="mesh0", name="loss", rank=0)["value"]["points"]
    assert points[-1] == [1499, None]
    assert len(points) == 500
    assert "no curve" in page.ask("curve", 2, mesh="mesh0", name="acc", rank=0)["error"]
    stacks = page.ask("stacks", 3, mesh="mesh0", ranks="0-2")["value"]
    assert stacks["stacks"] == [{"ranks": "0-1", "text": "at step"}]
    assert stacks["silent"] == "2"
    frame = {"file": "train.py", "line": 41, "function": "step"}
    assert stacks["tree"]["children"] == [{"ranks": "0-1", "frame": frame, "children": []}]
    assert page.ask("cell", 4, number=3)["value"] == {"id": "id-3"}
    assert "not one of this page's" in page.ask("cell", 5, number=30)["error"]
    [cell] = page.ask("outputs", 7, since=60_000)["value"]["cells"]
    assert (cell["id"], cell["outputs"][0]["text"]) == ("c", "60")
    source.write("mesh0", 1, "loss=3", level="error")
    source.write("mesh0", 1, "loss=4")
    logs = {"mesh": "mesh0", "ranks": "1", "count": 9, "pattern": "loss", "before": None}
    told = page.ask("logs", 6, **logs, level="error")["value"]
    assert told == {"lines": [[1, "mesh0", 1, "stdout", "error", "loss=3", AT_MS]], "last": 2}


def test_which_meshes_are_kept(hub, source):
    page = Page(hub)
    assert page.ask("kept")["value"] == {"kept": []}
    source.records = [
        kept({"mesh0": {"hosts": 2, "gpus": 4}, "other": {}}, driven=False, for_s=28800.0),
        kept({"mesh0": {"gpus": 2}}, driven=True, for_s=0.5),
    ]
    assert page.ask("kept", 2)["value"] == {"kept": [
        {"names": ["mesh0", "other"], "ranks": 9, "driven_by": None, "for_s": 28800.0},
        {"names": ["mesh0"], "ranks": 2, "driven_by": os.getppid(), "for_s": 0.5},
    ]}  # fmt: skip


def test_what_ranks_that_were_started_again_have_to_run(hub, source):
    page = Page(hub)
    nothing = {"line": "", "cells": "", "ranks": ""}
    assert page.ask("replay", mesh="mesh0")["value"] == nothing
    source.offers["mesh0"] = Offer("%mesh replay 3-4 --ranks 1-2", "3-4", (1, 2))
    told = page.ask("replay", 2, mesh="mesh0")["value"]
    assert told == {"line": "%mesh replay 3-4 --ranks 1-2", "cells": "3-4", "ranks": "1-2"}


def test_what_ranks_have_is_told_with_few_values_and_whole_where_one_is_asked_for(hub, source):
    values = [{"ranks": str(rank), "is": f"{rank}\ud800"} for rank in range(12)]
    group = {"ranks": "0-11", "type": "float", "shape": None, "dtype": None, "bytes": None,
             "length": None, "parameters": None, "devices": [], "values": values}  # fmt: skip
    loss = {"name": "loss", "differs": True, "missing": "", "groups": [group] * 9}
    source.described = {"name": "mesh0", "size": 13, "left_out": 2, "no_answer": "12",
                        "variables": [loss, {**loss, "name": "x"}]}  # fmt: skip
    page = Page(hub)
    told = page.ask("variables", mesh="mesh0")["value"]
    assert (told["size"], told["left_out"], told["no_answer"]) == (13, 2, "12")
    [first, _] = told["variables"]
    assert (len(first["groups"]), first["more"]) == (8, 1)
    assert first["groups"][0]["values"] == [{"ranks": str(n), "is": f"{n}?"} for n in range(8)]
    [whole] = page.ask("variables", 2, mesh="mesh0", name="x")["value"]["variables"]
    assert (whole["name"], len(whole["groups"]), len(whole["groups"][0]["values"])) == ("x", 9, 12)
    assert source.asked == [(), ["x"]], "ranks go through nothing that nobody has asked for"
    silent = page.ask("variables", 3, mesh="mesh0", name="y")["error"]
    assert silent == "no answer of rank 12; %mesh status shows why"
    source.described = {**source.described, "no_answer": ""}
    gone = page.ask("variables", 4, mesh="mesh0", name="y")["error"]
    assert gone == "no rank of mesh0 has a variable 'y' any more"


def test_a_window_and_a_picture_are_asked_of_one_rank(hub, source):
    page, tensor = Page(hub), LocalTensor([2, 3, 4], "float32", "cuda:0", None)
    wish = {"mesh": "mesh0", "rank": 2, "name": "x", "indices": [1]}
    error = page.ask("window", **wish, row=5, column=0)["error"]
    assert error == "rank 2: this rank has no variable 'x'"
    source.answers = {
        GetWindow: Window(tensor, [1], 5, 0, [["1.5", "nan"]]),
        GetPicture: Picture(tensor, [1], 1, 2, [3, 2], 0.5, None, "AP8="),
    }
    head = {"shape": [2, 3, 4], "dtype": "float32", "device": "cuda:0", "whole": None}
    told = page.ask("window", 2, **wish, row=5, column=0)["value"]
    assert told == head | {"indices": [1], "row": 5, "column": 0, "numbers": [["1.5", "nan"]]}
    told = page.ask("picture", 3, **wish)["value"]
    assert told == head | {"indices": [1], "rows": 1, "columns": 2, "each": [3, 2],
                           "least": 0.5, "greatest": None, "dots": "AP8="}  # fmt: skip
    assert source.asked[1:] == [GetWindow("x", [1], 5, 0), GetPicture("x", [1])]
    wrong = page.ask("picture", 4, **{**wish, "indices": [-1]})["error"]
    assert (
        wrong
        == "picture: indices must be a whole number from 0 to 9007199254740991, not that number"
    )


def test_a_question_that_hangs_is_answered_late_and_stops_nothing(hub, source, monkeypatch):
    slow = questions.QUESTIONS["rank"]._replace(limit_s=0.3)
    monkeypatch.setitem(questions.QUESTIONS, "rank", slow)
    page = Page(hub)
    page.hello()
    source.hangs.clear()
    for number in range(20):
        page.say("ask", id=number, what="rank", mesh="mesh0", rank=0)
    source.change("mesh0", 1, state="busy")
    page.wait("delta")
    eventually(lambda: [m for m in page.messages if m["type"] == "answer"][19:])
    source.hangs.set()
    page.ask("cell", 99, number=1)
    answers = [m for m in page.messages if m["type"] == "answer"]
    assert sorted(m["id"] for m in answers) == [*range(20), 99]
    assert {m.get("error") for m in answers if m["id"] < 20} == {slow.late}


def test_threads_are_bounded_and_too_much_is_refused(hub, source):
    page = Page(hub)
    source.hangs.clear()
    for number in range(90):
        page.say("ask", id=number, what="rank", mesh="mesh0", rank=0)
    refused = eventually(lambda: [m for m in page.messages if not m.get("ok", True)])
    assert len(live_threads()) <= pending_requests.MAX_THREADS + 1
    assert "ask again later" in refused[0]["error"]
    source.hangs.set()
    eventually(lambda: len(page.messages) == 90)


def test_a_bug_in_a_question_is_a_sentence(hub, monkeypatch, caplog):
    bad = Question(lambda *_: {}["key"], 1.0, "late")
    monkeypatch.setitem(questions.QUESTIONS, "cell", bad)
    assert Page(hub).ask("cell", number=1)["error"] == "KeyError: 'key'"


def test_an_action_that_is_sent_again_is_not_done_again(hub):
    done = []
    mesh = SimpleNamespace(name="mesh0")
    meshes = SimpleNamespace(use=lambda name, mesh: done.append(name))
    hub._parts.lifecycle = Lifecycle(None, meshes, None, None, None, None)
    hub._parts.control = SimpleNamespace(find=lambda name: mesh, beside_cells=lambda run: run())
    page, other = Page(hub), Page(hub)
    assert page.ask("use", kind="do", mesh="mesh0")["value"]["said"] == "%%mesh now means mesh0"
    assert other.ask("use", kind="do", mesh="mesh0")["ok"]
    assert done == ["mesh0"]


def test_lines_are_pushed_to_who_follows(hub, source):
    page = Page(hub)
    page.hello()
    source.write("mesh0", 0, "before")
    page.say("follow", mesh="mesh0", ranks="0", on=True, after=None)
    page.ask("cell", number=1)
    source.write("mesh0", 1, "of another rank")
    source.write("mesh0", 0, "after")
    log = page.wait("log")
    assert log == {"v": 1, "type": "log", "skipped": 0,
                   "lines": [[3, "mesh0", 0, "stdout", "", "after", AT_MS]]}  # fmt: skip
    page.say("follow", mesh="mesh0", ranks="0", on=True, after=0)
    eventually(lambda: [m["lines"][0][5] for m in page.messages if m["type"] == "log"][1:])
    assert page.wait("log")["lines"][0][5] == "before"
    source.write("mesh0", 0, *map(str, range(700)))
    log = eventually(lambda: next((m for m in page.messages if m.get("skipped")), None))
    assert len(log["lines"]) == 500
    page.say("follow", mesh="mesh0", ranks="0", on=False, after=None)
    page.ask("cell", 2, number=1)
    source.write("mesh0", 0, "unheard")
    source.change("mesh0", 0, state="busy")
    page.wait("delta")
    assert not any("unheard" in str(m) for m in page.messages)


def test_who_reads_and_then_follows_misses_nothing(hub, source):
    page = Page(hub)
    page.hello()
    source.write("mesh1", 0, "of another mesh")
    logs = {"mesh": "mesh0", "ranks": None, "count": 9, "pattern": "", "level": "", "before": None}
    told = page.ask("logs", **logs)["value"]
    assert told == {"lines": [], "last": 1}
    source.write("mesh0", 0, "in between")
    page.say("follow", mesh="mesh0", ranks=None, on=True, after=told["last"])
    assert [line[5] for line in page.wait("log")["lines"]] == ["in between"]


def test_the_end_of_the_session_ends_the_thread(source):
    hub = Hub(SimpleNamespace(), source)
    page = Page(hub)
    page.hello()
    hub.close()
    assert live_threads() == []
    assert source.rests == 1
    page.say("ping")
    assert live_threads() == []
