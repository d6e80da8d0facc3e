"""JupyterLab's debugger on a rank: stops, looks, steps. What a person sees, by the protocol."""

import json
import textwrap

import pytest

FIRST_CELLS = ["%mesh up --gpus 2", "%mesh debugger 1"]
CELL = """%%mesh
import math

def work(x):
    y = x + 1
    z = y * 2
    return z

v = work(20)
print('v', v, 'é')
"""
ACTOR = """
from monarch_nb import Actor, endpoint

class Trainer(Actor):
    def __init__(self):
        self.steps = 0

    @endpoint
    def step(self, lr):
        self.steps += 1
        loss = lr * self.steps
        return loss

trainer = mesh0.spawn("trainer", Trainer)
"""
BUSY = """%%mesh 1
import pathlib
from tests.support import until_exists
pathlib.Path({started!r}).touch()
until_exists({end!r})
"""
MODULE = """
def outer(n):
    total = 0
    for i in range(n):
        total = inner(total, i)
    return total

def inner(total, i):
    return total + i
"""


def test_it_stops_in_a_mesh_cell_and_goes_on(page, kernel):
    [breakpoint_] = page.gutter(CELL, 6)
    assert breakpoint_["verified"]
    cell = page.run(CELL)
    stopped = page.event("stopped")
    assert stopped["reason"] == "breakpoint"
    assert page.place(stopped) == ("work", 6)
    assert page.rank_of(stopped) == "rank 1 / MainThread"
    assert [frame["name"] for frame in page.frames(stopped)] == ["work", "<module>"]
    assert page.frames(stopped)[1]["line"] == 9
    assert page.local_names(stopped) == {"x": "20", "y": "21"}
    assert page.ok("debugInfo")["stoppedThreads"] == [stopped["threadId"]]
    page.resume()
    assert page.event("continued")["threadId"] == stopped["threadId"]
    assert kernel.finish(cell).status == "ok"
    assert "v 42 é" in cell.text()
    assert page.ok("debugInfo")["stoppedThreads"] == []


def test_the_frame_is_that_of_the_cell_in_the_notebook(page, kernel):
    """Its name is what JupyterLab computes of the text in the editor."""
    path = page.ok("dumpCell", code=CELL)["sourcePath"]
    info = page.ok("debugInfo")
    assert path.startswith(info["tmpFilePrefix"])
    cell, stopped = page.stop_at(CELL, 5)
    assert page.frames(stopped)[0]["source"]["path"] == path
    assert page.ok("source", source={"path": path})["content"] == CELL
    page.resume()
    kernel.finish(cell)


def test_steps(page, kernel):
    page.gutter(CELL, 9)
    cell = page.run(CELL)
    places = page.step("stepIn", "next", "next", "stepOut")
    stopped = page.event("stopped")
    places.append(page.place(stopped))
    assert places == [
        ("<module>", 9), ("work", 5), ("work", 6), ("work", 7), ("<module>", 9)
    ]  # fmt: skip
    page.resume()
    assert kernel.finish(cell).status == "ok"


def test_the_last_step_of_a_cell_ends_it(page, kernel):
    cell, stopped = page.stop_at(CELL, 10)
    page.ok("next", threadId=stopped["threadId"])
    assert kernel.finish(cell).status == "ok"
    assert page.event("continued")["threadId"] == stopped["threadId"]


def test_expressions_at_a_breakpoint(page, kernel):
    cell, stopped = page.stop_at(CELL, 6)
    assert page.evaluate(stopped, "y + 1000") == "1021"
    assert page.evaluate(stopped, "rank") == "1"
    page.evaluate(stopped, "y = 100")
    frame = page.frames(stopped)[0]["id"]
    wrong = page.ask("evaluate", expression="1/0", frameId=frame, context="repl")
    assert not wrong["success"]
    assert "ZeroDivisionError" in wrong["message"]
    endless = page.ask("evaluate", expression="'x' * 30_000_000", frameId=frame, context="repl")
    assert len(json.dumps(endless)) < 25_000_000
    page.resume()
    kernel.finish(cell)
    assert "v 200" in cell.text()


def test_rich_variables_and_copies_to_globals(page, kernel):
    code = """%%mesh
    class Rich:
        def _repr_html_(self):
            return "<b>rich</b>"

    def work():
        shown = Rich()
        return 1

    work()
    """
    code = textwrap.dedent(code)
    page.gutter(code, 8)
    cell = page.run(code)
    frame = page.frames(page.event("stopped"))[0]["id"]
    rich = page.ok("richInspectVariables", variableName="shown", frameId=frame)
    assert rich["data"]["text/html"] == "<b>rich</b>"
    page.ok("copyToGlobals", srcVariableName="shown", dstVariableName="kept", srcFrameId=frame)
    page.resume()
    kernel.finish(cell)
    assert "Rich" in kernel.ok("%%mesh 1\nprint(type(kept))").text()
    rich = page.ok("richInspectVariables", variableName="kept")
    assert rich["data"]["text/html"] == "<b>rich</b>"


def test_variables_while_nothing_is_stopped_are_looked_at_without_their_repr(
    page, kernel, tmp_path
):
    kernel.ok("%%mesh\nclass Loud:\n    def __repr__(self): 1/0\nloud, n = Loud(), 3")
    found = {one["name"]: one for one in page.ok("inspectVariables")["variables"]}
    assert found["n"]["value"] == "3"
    assert found["rank"]["value"] == "1"
    assert found["loud"]["value"] == "Loud"
    started, end = tmp_path / "started", tmp_path / "end"
    busy = kernel.start(BUSY.format(started=str(started), end=str(end)))
    kernel.until(started.exists)
    assert page.ok("inspectVariables")["variables"]
    assert not page.ask("richInspectVariables", variableName="loud")["success"]
    end.touch()
    kernel.finish(busy)


def test_it_stops_in_the_body_of_an_actor_of_a_cell(page, kernel):
    kernel.ok(ACTOR)
    page.gutter(ACTOR, 11)
    cell = page.run("trainer.step.call(0.5).get().item(gpus=1)")
    stopped = page.event("stopped")
    assert page.place(stopped) == ("step", 11)
    assert page.local_names(stopped)["lr"] == "0.5"
    assert page.evaluate(stopped, "self.steps") == "1"
    assert [frame["name"] for frame in page.frames(stopped)] == ["step"]
    page.resume()
    assert "0.5" in kernel.finish(cell).shown
    kernel.ok("trainer.stop().get()")


def test_it_stops_in_a_module(page, kernel, tmp_path):
    file = tmp_path / "sums.py"
    file.write_text(MODULE)
    kernel.ok(f"%%mesh\nimport sys; sys.path.insert(0, {str(tmp_path)!r}); import sums")
    page.breakpoints(str(file), {"line": 9, "condition": "i == 2"})
    cell = page.run("%%mesh\nprint(sums.outer(4))")
    stopped = page.event("stopped")
    assert page.place(stopped) == ("inner", 9)
    assert page.local_names(stopped) == {"total": "1", "i": "2"}
    assert page.ok("source", source={"path": str(file)})["content"] == MODULE
    names = {one["name"] for one in page.ok("modules")["modules"]}
    assert "sums" in names
    page.resume()
    assert "6" in kernel.finish(cell).text()


def test_a_condition_that_is_no_python_stops_nothing_and_says_so(page, kernel):
    page.gutter(CELL, {"line": 6, "condition": "x =="})
    cell = kernel.finish(page.run(CELL))
    assert cell.status == "ok"
    assert "condition" in cell.text("stderr").lower() or not cell.text("stderr")


@pytest.mark.parametrize("filters", [["raised"], ["uncaught"]])
def test_it_stops_at_exceptions(page, kernel, filters):
    code = "%%mesh 1\ndef fail(n):\n    return 1 / n\nfail(0)"
    page.ok("setExceptionBreakpoints", filters=filters)
    cell = page.run(code)
    stopped = page.event("stopped")
    assert stopped["reason"] == "exception"
    assert ("fail", 3) in [(frame["name"], frame["line"]) for frame in page.frames(stopped)]
    info = page.ok("exceptionInfo", threadId=stopped["threadId"])
    assert "division by zero" in info["description"]
    page.ok("setExceptionBreakpoints", filters=[])
    page.resume()
    assert kernel.finish(cell).status == "error"
    assert "ZeroDivisionError" in cell.error


def test_what_is_caught_is_not_uncaught(page, kernel):
    page.ok("setExceptionBreakpoints", filters=["uncaught"])
    cell = page.run("%%mesh 1\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    print('caught')")
    assert kernel.finish(cell).status == "ok"


def test_pause(page, kernel):
    code = (
        "%%mesh 1\ngo_on = True\nn = 0\nwhile go_on:\n"
        "    n += 1; n == 9 and print('runs', flush=True)\nprint('over')"
    )
    assert not page.ask("pause", threadId=1)["success"]
    cell = page.run(code)
    kernel.until(lambda: "runs" in cell.text())
    stopped = page.pause()
    assert page.place(stopped)[1] in {4, 5}
    page.evaluate(stopped, "go_on = False")
    page.resume()
    assert "over" in kernel.finish(cell).text()


def test_pause_of_what_prints(page, kernel):
    """While it prints, a rank is in our own code nearly always."""
    code = "%%mesh 1\ngo_on = True\nwhile go_on:\n    print('runs', flush=True)\nprint('over')"
    cell = page.run(code)
    kernel.until(lambda: "runs" in cell.text())
    for _ in range(20):
        assert page.place(page.pause()) in {("<module>", 3), ("<module>", 4)}
        page.resume()
    page.evaluate(page.pause(), "go_on = False")
    page.resume()
    assert "over" in kernel.finish(cell).text()


def test_pause_of_what_has_not_yet_gone_on(page, kernel):
    look_s = "%%mesh 1\nimport pydevd\npydevd.TIMEOUT_SLOW = {}"
    kernel.ok(look_s.format(0.3))  # how long it takes to see that it may go on
    cell = page.run("%%mesh 1\ngo_on = True\nwhile go_on:\n    pass\nprint('over')")
    kernel.until(lambda: page.ask("pause", threadId=1)["success"])
    for go_on in (True, True, False):
        page.evaluate(page.event("stopped"), f"go_on = {go_on}")
        page.resume()
        if go_on:
            page.ok("pause", threadId=1)
    assert "over" in kernel.finish(cell).text()
    kernel.ok(look_s.format(0.01))


def test_breakpoint_stops_nobody_else(page, kernel):
    """Rank 0 is not debugged."""
    cell, _ = page.stop_at(CELL, 6)
    kernel.until(lambda: "[0] v 42" in cell.text())
    page.resume()
    kernel.finish(cell)
