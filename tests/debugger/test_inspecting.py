"""What the panels show of a rank that is not stopped."""

import os
from types import SimpleNamespace

import pytest

from monarch_nb.debugger import inspecting


class Loud:
    def __repr__(self):
        raise AssertionError("nobody asked for it")


def inspector(busy=False, **names):
    return inspecting.VariableInspector(lambda: names, lambda: busy)


@pytest.fixture
def shell(monkeypatch):
    hidden = SimpleNamespace(user_ns_hidden={"get_ipython": None})
    monkeypatch.setattr(inspecting, "_shell", lambda: hidden)


@pytest.mark.usefixtures("shell")
def test_values_that_are_cheap_are_shown_and_others_named():
    names = {
        "n": 3, "text": "x" * 1000, "loud": Loud(), "many": [Loud()] * 5, "huge": 10**5000,
        "_private": 1, "get_ipython": 2,
    }  # fmt: skip
    found = inspector(**names).variables()["variables"]
    values = {one["name"]: one["value"] for one in found}
    assert values["n"] == "3"
    assert values["text"].endswith("...")
    assert len(values["text"]) < 250
    assert values["loud"] == "Loud"
    assert values["many"] == "list of 5"
    assert values["huge"] == "int"
    assert set(values) == {"n", "text", "loud", "many", "huge"}


def test_a_busy_rank_makes_no_picture():
    with pytest.raises(RuntimeError, match="stop it at a breakpoint"):
        inspector(busy=True, loud=Loud()).rich("loud")


def test_sources(tmp_path):
    file = tmp_path / "train.py"
    file.write_bytes(b"x = '\xff'\n")
    assert inspecting.source(str(file))["content"].startswith("x = ")
    with pytest.raises(FileNotFoundError, match="not on this rank's host"):
        inspecting.source(str(tmp_path / "nothing.py"))
    with pytest.raises(FileNotFoundError):
        inspecting.source("/dev/zero")


def test_frames_that_started_the_thread_are_left_out():
    def frame(path):
        return {"name": "f", "source": {"path": path}}

    response = {"body": {"stackFrames": [frame("/home/train.py"), frame(os.__file__)]}}
    body = inspecting.shortened(response, 100)["body"]
    assert [one["source"]["path"] for one in body["stackFrames"]] == ["/home/train.py"]
    assert body["totalFrames"] == 1
    only = {"body": {"stackFrames": [frame(os.__file__)]}}
    assert len(inspecting.shortened(only, 100)["body"]["stackFrames"]) == 1
