"""JupyterLab's debugger on the notebook's own process: as in ipykernel, and no door is open."""

import os

import pytest

from tests import support
from tests.kernel.client import KernelClient
from tests.kernel.front_end import FrontEnd

PROMPT_S = 1.0  # IPython lays out each traceback twice
CELL = """
import math

def work(x):
    y = x + 1
    z = y * 2
    return z

v = work(20)
print('v', v)
"""


def doors() -> dict[str, set[str]]:
    """Every process that these tests have started, whoever its parent is by now, with the ports at
    which it listens."""
    pids = support.session_processes() - {os.getpid()}
    return {support.describe_process(pid)[:60]: support.listening_ports(pid) for pid in pids}


def test_no_door_is_open_while_it_is_on_nor_afterwards(kernel):
    before = doors()
    ports = set().union(*before.values())
    assert len(ports) == 6  # Jupyter's channels, and ipykernel's pipe for the output of forks
    page = FrontEnd(kernel)
    page.on()
    cell, stopped = page.stop_at(CELL, 6)
    while_it_is_on = doors()
    page.ok("continue", threadId=stopped["threadId"])
    kernel.finish(cell)
    page.off()
    assert set().union(*while_it_is_on.values()) == ports
    assert set().union(*doors().values()) == ports
    assert len(while_it_is_on) == len(doors()) == len(before) == 3  # kernel, agent, zygote


def test_it_stops_in_a_cell_and_goes_on(page, kernel):
    [breakpoint_] = page.gutter(CELL, 6)
    assert breakpoint_["verified"]
    cell = page.run(CELL)
    stopped = page.event("stopped")
    assert stopped["reason"] == "breakpoint"
    assert page.place(stopped) == ("work", 6)
    assert page.rank_of(stopped) == "MainThread"
    frames = page.frames(stopped)
    assert [frame["name"] for frame in frames[:2]] == ["work", "<module>"]
    assert frames[1]["line"] == 9
    assert page.local_names(stopped) == {"x": "20", "y": "21"}
    assert page.ok("debugInfo")["stoppedThreads"] == [stopped["threadId"]]
    assert page.ok("source", source=frames[0]["source"])["content"] == CELL
    page.resume()
    assert page.event("continued")["threadId"] == stopped["threadId"]
    assert kernel.finish(cell).status == "ok"
    assert "v 42" in cell.text()
    assert page.ok("debugInfo")["stoppedThreads"] == []


def test_steps(page, kernel):
    page.gutter(CELL, 9)
    cell = page.run(CELL)
    places = page.step("stepIn", "next", "next", "stepOut")
    places.append(page.place(page.event("stopped")))
    assert places == [
        ("<module>", 9), ("work", 5), ("work", 6), ("work", 7), ("<module>", 9)
    ]  # fmt: skip
    page.resume()
    assert kernel.finish(cell).status == "ok"


def test_steps_from_one_statement_of_the_cell_to_the_next(page, kernel):
    """IPython runs each by itself, with code of its own in between."""
    page.gutter(CELL, 2)
    cell = page.run(CELL)
    places = page.step("next", "next", "next", "next")
    assert places == [("<module>", 2), ("<module>", 4), ("<module>", 9), ("<module>", 10)]
    assert kernel.finish(cell).status == "ok"
    assert kernel.finish(page.run("'next'\n'cell'")).status == "ok"


def test_a_pause_of_what_prints(page, kernel):
    cell = page.run("go_on = True\nwhile go_on:\n    print('runs', flush=True)\nprint('over')")
    kernel.until(lambda: "runs" in cell.text())
    for _ in range(10):
        assert page.place(page.pause()) in {("<module>", 2), ("<module>", 3)}
        page.resume()
    page.evaluate(page.pause(), "go_on = False")
    page.resume()
    assert "over" in kernel.finish(cell).text()


def test_the_last_step_of_a_cell_ends_it_and_the_next_runs(page, kernel):
    cell, stopped = page.stop_at(CELL, 10)
    page.ok("next", threadId=stopped["threadId"])
    assert kernel.finish(cell).status == "ok"
    assert page.ok("debugInfo")["stoppedThreads"] == []
    assert "3" in kernel.ok("1 + 2").shown


def test_a_function_of_an_earlier_cell(page, kernel):
    code = "def earlier(n):\n    doubled = n * 2\n    return doubled"
    kernel.ok(code)
    page.gutter(code, 3)
    cell = page.run("earlier(4)")
    stopped = page.event("stopped")
    assert page.place(stopped) == ("earlier", 3)
    assert page.local_names(stopped)["doubled"] == "8"
    page.resume()
    assert "8" in kernel.finish(cell).shown


def test_expressions_rich_variables_and_copies_to_globals(page, kernel):
    code = "class Rich:\n    def _repr_html_(self): return '<b>rich</b>'\n"
    code += "def show():\n    shown = Rich()\n    return 1\nshow()"
    cell, stopped = page.stop_at(code, 5)
    assert page.evaluate(stopped, "type(shown).__name__") == "'Rich'"
    frame = page.frames(stopped)[0]["id"]
    rich = page.ok("richInspectVariables", variableName="shown", frameId=frame)
    assert rich["data"]["text/html"] == "<b>rich</b>"
    page.ok("copyToGlobals", srcVariableName="shown", dstVariableName="kept", srcFrameId=frame)
    page.resume()
    kernel.finish(cell)
    assert "Rich" in kernel.ok("print(type(kept))").text()
    rich = page.ok("richInspectVariables", variableName="kept")
    assert rich["data"]["text/html"] == "<b>rich</b>"


@pytest.mark.parametrize("is_on", [True, False])
def test_variables_while_nothing_is_stopped(kernel, is_on):
    page = FrontEnd(kernel)
    if is_on:
        page.on()
    kernel.ok("found = {'a': [1, 2]}")
    known = {one["name"]: one for one in page.ok("inspectVariables")["variables"]}
    children = page.ok("variables", variablesReference=known["found"]["variablesReference"])
    assert "'a'" in {one["name"] for one in children["variables"]}
    if is_on:
        page.off()


@pytest.mark.parametrize("filters", [["raised"], ["uncaught"]])
def test_it_stops_at_exceptions(page, kernel, filters):
    code = "def fail(n):\n    return 1 / n\nfail(0)"
    page.ok("setExceptionBreakpoints", filters=filters)
    cell = page.run(code)
    stopped = page.event("stopped")
    assert stopped["reason"] == "exception"
    assert ("fail", 2) in [(frame["name"], frame["line"]) for frame in page.frames(stopped)]
    page.ok("setExceptionBreakpoints", filters=[])
    page.resume()
    assert "ZeroDivisionError" in kernel.finish(cell).error
    assert kernel.ok("1").status == "ok"


def test_the_stop_button_while_one_looks_at_a_failure(page, kernel):
    page.ok("setExceptionBreakpoints", filters=["uncaught"])
    cell = page.run("1 / 0")
    page.event("stopped")
    assert kernel.stop_s(cell) < PROMPT_S
    assert "ZeroDivisionError" in cell.error
    assert page.event("continued")


def test_the_stop_button_while_it_is_stopped(page, kernel):
    cell, _ = page.stop_at(CELL, 6)
    assert kernel.stop_s(cell) < PROMPT_S
    assert "KeyboardInterrupt" in cell.error
    assert "pydevd" not in cell.error
    page.event("continued")
    cell = page.run(CELL)
    assert page.place(page.event("stopped")) == ("work", 6), "it is traced as before"
    page.resume()
    assert kernel.finish(cell).status == "ok"


def test_pause(page, kernel):
    assert not page.ask("pause", threadId=1)["success"]
    cell = page.run("go_on = True\nn = 0\nwhile go_on:\n    n += 1; n == 9 and print('runs')")
    kernel.until(lambda: "runs" in cell.text())
    page.ok("pause", threadId=1)
    stopped = page.event("stopped")
    assert page.place(stopped)[1] in {3, 4}
    page.evaluate(stopped, "go_on = False")
    page.resume()
    assert kernel.finish(cell).status == "ok"


def test_cells_that_await_and_threads(page, kernel):
    code = "import asyncio\nfirst = 1\nawait asyncio.sleep(0.01)\nsecond = first + 1"
    cell, stopped = page.stop_at(code, 4)
    assert page.evaluate(stopped, "first") == "1"
    page.resume()
    assert kernel.finish(cell).status == "ok"
    code = "import threading\ndef beside():\n    found = 1\n    print('found')\n"
    code += "t = threading.Thread(target=beside, name='beside'); t.start(); t.join()"
    cell, stopped = page.stop_at(code, 4)
    assert page.rank_of(stopped) == "beside"
    page.resume()
    assert "found" in kernel.finish(cell).text()


def test_breakpoint_stops_in_the_panel_while_it_is_on(page, kernel):
    cell = page.run("def stops():\n    breakpoint()\n    return 'went on'\nprint(stops())")
    stopped = page.event("stopped")
    assert page.place(stopped)[0] == "stops"
    page.resume()
    assert "went on" in kernel.finish(cell).text()


def test_child_processes_run_while_it_is_on(page, kernel):
    code = """import multiprocessing, subprocess, sys
def seven(_):
    return 7
said = subprocess.check_output([sys.executable, '-c', 'print(6 * 7)'], timeout=20)
with multiprocessing.get_context('fork').Pool(1) as pool:
    print(said.decode().strip(), pool.map_async(seven, [0]).get(20))
"""
    page.gutter(code, 3)
    assert "42 [7]" in kernel.finish(page.run(code)).text()


def test_off_while_it_is_stopped_and_on_again(kernel):
    page = FrontEnd(kernel)
    for _ in range(2):
        page.on()
        cell, _ = page.stop_at(CELL, 6)
        page.off()
        assert "v 42" in kernel.finish(cell).text()
    trace = "import sys, threading; print(sys.gettrace(), "
    trace += "[t.name for t in threading.enumerate() if 'pydevd' in t.name])"
    kernel.until(lambda: kernel.ok(trace).text() == "None []\n")


@pytest.mark.slow
def test_the_kernel_restarts_while_it_is_stopped():
    with KernelClient("monarch") as kernel:
        page = FrontEnd(kernel)
        page.on()
        page.stop_at(CELL, 6)
        kernel.client.stop_channels()
        kernel.manager.restart_kernel(now=False)
        kernel.connect()
        assert kernel.ok("6 * 7").shown == "42\n"
