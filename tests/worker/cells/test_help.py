"""Completions and help on a rank: what it answers, while it is idle and while it is busy."""

import queue
import time
from collections.abc import Callable
from typing import Any

import pytest

from monarch_nb.control import cells
from monarch_nb.control.cells import ask
from monarch_nb.control.client import client
from monarch_nb.core.wire.messages.cells import Complete, Completions, Help, Inspect, Match
from monarch_nb.core.wire.messages.codec import Refused
from tests import inside
from tests.support import eventually

pytestmark = pytest.mark.usefixtures("mesh_runtime")

SETUP = """
import sys, torch
class Deep:
    word = "old"
    calls = []
    @property
    def costly(self): self.calls.append("property")
    def __repr__(self): self.calls.append("repr"); return "a deep one"
    def method(self, first, second=2):
        "Says what it does."
        return first
deep = Deep()
table = {"alpha": 1, "beta": 2}
größe = 7
"""
SLOW = """
import threading
entered, leave = threading.Event(), threading.Event()
class Slow:
    def __dir__(self):
        entered.set(); leave.wait(10); return []
slow = Slow()
"""
HELD = "import ctypes; ctypes.PyDLL(None).usleep(1_500_000)"  # PyDLL keeps the GIL


@pytest.fixture(scope="module")
def mesh(mesh_runtime):
    from monarch_nb import this_host

    made = this_host().spawn_procs(per_host={"gpus": 2})
    run(made, SETUP, "setup")
    yield made
    made.stop().get(timeout=10)


def start(mesh, code, filename="cell"):
    return cells.run_cell(mesh, code, filename=filename, first_line=1, tag=0)


def run(mesh, code, filename="cell"):
    ended = start(mesh, code, filename)
    assert ended.wait(20)
    assert {one.status for one in ended.outcomes.values()} == {"ok"}
    return ended


def no_late_answer(answer):
    raise AssertionError(answer)


def complete(mesh, code, cursor=None):
    request = Complete(code, len(code) if cursor is None else cursor)
    answer = ask(client().proc, mesh, 0, request, 5.0, no_late_answer)
    assert isinstance(answer, Completions)
    return answer


def texts(mesh, code, cursor=None):
    return [match.text for match in complete(mesh, code, cursor).matches]


def inspect(mesh, code, detail=0):
    request = Inspect(code, len(code), detail)
    answer = ask(client().proc, mesh, 0, request, 5.0, no_late_answer)
    assert isinstance(answer, Help)
    return answer.text


@pytest.mark.parametrize("code, match", [
    ("dee", ["deep", 0, 3, "instance"]),
    ("x = Dee", ["Deep", 4, 7, "class"]),
    ("torc", ["torch", 0, 4, "module"]),
    ("pri", ["print", 0, 3, "function"]),
    ("retu", ["return", 0, 4, "keyword"]),
    ("deep.meth", ["method", 5, 9, "function"]),
    ("deep.cos", ["costly", 5, 8, "property"]),
    ("torch.nn.Line", ["Linear", 9, 13, "class"]),
    ("table['al", ["alpha", 7, 9, "dict key"]),
    ("%timei", ["%timeit", 0, 6, "magic"]),
    ("torch.zeros(s", ["size", 12, 13, "instance"]),
    ("deep.method(secon", ["second=", 12, 17, "param"]),
    ("'😀', grö", ["größe", 5, 8, "instance"]),
])  # fmt: skip
def test_completions_have_their_place_and_kind(mesh, code, match):
    assert Match(*match) in complete(mesh, code).matches


def test_the_cursor_may_stand_inside_the_code(mesh):
    assert texts(mesh, "for one in tabl:\n    print(one)", len("for one in tabl")) == ["table"]


def test_the_names_of_the_namespace_come_along(mesh):
    names = complete(mesh, "nothing_like_it").names
    assert names["Deep"] == "class"
    assert names["torch"] == "module"
    assert names["rank"] == "instance"
    assert not {name for name in names if name.startswith("_")} | names.keys() & {"In", "exit"}


def test_help_and_source(mesh):
    assert "Says what it does." in inspect(mesh, "deep.method")
    assert "first, second" in inspect(mesh, "deep.method(")
    assert "Says what it does." in inspect(mesh, "deep.method", detail=1)
    assert "return" in inspect(mesh, "deep.method", detail=1)
    assert inspect(mesh, "nothing_like_it") is None


def test_nothing_of_the_users_runs_for_it_while_the_rank_is_busy(mesh):
    assert "a deep one" in inspect(mesh, "deep")
    run(mesh.slice(gpus=0), "assert 'repr' in Deep.calls; Deep.calls.clear()")
    busy = start(mesh, "import time\nwhile 'stop' not in globals(): time.sleep(0.01)")
    eventually(lambda: "time" in texts(mesh, "tim"), 10, "the cell to run")
    assert "Deep" in inspect(mesh, "deep")
    assert "a deep one" not in inspect(mesh, "deep")
    assert texts(mesh, "deep.costly.wo") == []
    busy.interrupt()
    assert busy.wait(10)
    run(mesh, "assert Deep.calls == [], Deep.calls")


@pytest.mark.parametrize("work", ["time.sleep(30)", "while True: pass"])
def test_a_busy_rank_answers(mesh, work):
    busy = start(mesh, f"import time\nstarted = '{work}'\n{work}")
    eventually(lambda: "started" in texts(mesh, "star"), 10, "the cell to run")
    took_s = timed(lambda: texts(mesh, "deep.wor"))
    busy.interrupt()
    assert busy.wait(10)
    run(mesh, "globals().pop('started', None)")  # on rank 1 the stop may have come before it
    assert took_s < 0.3


def timed(call: Callable[[], Any]) -> float:
    started = time.monotonic()
    call()
    return time.monotonic() - started


def test_an_answer_that_is_late_is_none_and_comes_later(mesh):
    held = start(mesh, HELD)
    late: queue.Queue[Completions] = queue.Queue()
    request = Complete("dee", 3)

    def given_up():
        return ask(client().proc, mesh, 0, request, 0.05, late.put) is None

    eventually(given_up, 5, "the rank to be held")
    assert ("deep", 0, 3, "instance") in late.get(timeout=10).matches
    assert held.wait(10)


def test_a_newer_request_takes_the_place_of_one_that_waits(mesh):
    run(mesh, SLOW)
    answers: queue.Queue[tuple[str, Completions | Refused]] = queue.Queue()

    def send(code):
        process = inside.processes(mesh)[0]
        request = Complete(code, len(code))
        client().proc.ask(process, request, lambda answer: answers.put((code, answer)))

    send("slow.")
    run(mesh.slice(gpus=0), "assert entered.wait(10)")
    send("dee")
    send("tabl")
    assert answers.get(timeout=10) == ("dee", Refused("a newer request came"))
    run(mesh, "leave.set()")
    came = dict(answers.get(timeout=10) for _ in range(2))
    assert isinstance(came["slow."], Completions)
    assert came["tabl"].matches == [("table", 0, 4, "instance")]


def test_what_cannot_be_answered_is_an_error_in_one_line(mesh):
    request = Complete("x", "nowhere")
    answer = ask(client().proc, mesh, 0, request, 5.0, no_late_answer)
    assert answer == Refused("Complete.cursor: str, not int")
