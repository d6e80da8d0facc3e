"""Whom the visual debugger debugs, and what happens to stopped ranks: chosen, changed, interrupted,
killed."""

import re

import pytest

from tests import support
from tests.kernel.client import KernelClient
from tests.kernel.front_end import FrontEnd

FIRST_CELLS = ["%mesh up --gpus 2"]
PROMPT_S = 0.5  # of a cell whose ranks are stopped, a traceback each included
CELL = """%%mesh
def work(x):
    y = x + rank
    return y

print('y', work(20))
"""

JOB = CELL.replace("%%mesh", "%%mesh --noblock -o job")


@pytest.fixture
def page(kernel):
    """A front end whose debugger is on for all ranks."""
    kernel.ok("%mesh debugger all")
    page = FrontEnd(kernel)
    page.on()
    yield page
    page.off()


def test_it_says_whom_it_debugs(kernel):
    kernel.ok("%mesh debugger controller")
    assert "is for the controller; it is off" in kernel.ok("%mesh debugger").text()
    assert "is for rank 1 of mesh0; it is off" in kernel.ok("%mesh debugger 1").text()
    assert "is for nobody" in kernel.ok("%mesh debugger off").text()
    assert "is for ranks 0-1 of mesh0" in kernel.ok("%mesh debugger all").text()


@pytest.mark.parametrize(
    "typed, said",
    [
        ("7", "mesh0 has no rank 7; its ranks are 0-1"),
        ("everyone", "does not know 'everyone'; it takes ranks, all, controller or off"),
        ("0 --name mesh7", "mesh7"),
    ],
)
def test_what_cannot_be_debugged(kernel, typed, said):
    cell = kernel.run(f"%mesh debugger {typed}")
    assert cell.status == "error"
    assert said in cell.error


def test_nobody_is_debugged_when_it_is_off(kernel):
    kernel.ok("%mesh debugger off")
    page = FrontEnd(kernel)
    assert not page.ok("debugInfo")["isStarted"]
    refused = page.ask("initialize")
    assert not refused["success"]
    assert "%mesh debugger all" in refused["message"]
    assert not page.ask("setBreakpoints", source={"path": "x"}, breakpoints=[])["success"]


def test_a_cell_that_waits_says_where_its_ranks_are_paused(page, kernel):
    cell, _ = page.stop_at(CELL, 4)

    def says() -> str:
        shown = cell.contents("display_data", "update_display_data")
        return shown[-1]["data"]["text/plain"] if shown else ""

    both = r"ranks 0-1 paused at Cell In\[\d+\]:4 work\(\)"
    kernel.until(lambda: re.fullmatch(both, says()), 10.0)
    page.resume()
    assert kernel.finish(cell).status == "ok"


def test_all_ranks(page, kernel):
    cell, stopped = page.stop_at(CELL, 4)
    kernel.until(lambda: len(page.ok("debugInfo")["stoppedThreads"]) == 2)
    threads = page.ok("debugInfo")["stoppedThreads"]
    assert threads[0] == stopped["threadId"], "JupyterLab looks at the first"
    names = {page.rank_of({"threadId": each}) for each in threads}
    assert names == {"rank 0 / MainThread", "rank 1 / MainThread"}
    for thread in threads:
        one = {"threadId": thread}
        rank = page.rank_of(one)[5]
        assert page.frames(one)[0]["name"] == f"[{rank}] work"
        assert page.local_names(one) == {"x": "20", "y": f"{20 + int(rank)}"}
    page.resume()
    assert kernel.finish(cell).status == "ok"
    assert "[0] y 20" in cell.text()
    assert "[1] y 21" in cell.text()


def test_a_step_moves_one_rank_and_the_front_end_stays_with_it(page, kernel):
    cell, stopped = page.stop_at(CELL, 3)
    kernel.until(lambda: len(page.ok("debugInfo")["stoppedThreads"]) == 2)
    page.ok("next", threadId=stopped["threadId"])
    stepped = page.event("stopped")
    assert stepped["threadId"] == stopped["threadId"]
    assert page.place(stepped) == ("work", 4)
    [other] = set(page.ok("debugInfo")["stoppedThreads"]) - {stopped["threadId"]}
    assert page.place({"threadId": other}) == ("work", 3)
    page.ok("continue", threadId=stopped["threadId"])
    assert page.event("stopped")["threadId"] == other, "the next rank that is stopped is shown"
    page.resume()
    assert kernel.finish(cell).status == "ok"


def test_ranks_that_are_stopped_are_paused_and_tell_where(page, kernel):
    page.gutter(JOB, 4)
    kernel.finish(page.run(JOB))
    page.event("stopped")
    kernel.until(lambda: len(page.ok("debugInfo")["stoppedThreads"]) == 2)
    kernel.until(lambda: "paused" in kernel.ok("%mesh status").shown)
    assert "ranks 0-1 are stopped" in kernel.ok("%mesh debugger").text()
    assert "is for nobody" in kernel.ok("%mesh debugger off").text()
    kernel.ok("job.wait(10)")
    assert "done" in kernel.ok("print(repr(job))").text()


def test_another_rank_while_one_is_stopped(kernel):
    kernel.ok("%mesh debugger 0")
    page = FrontEnd(kernel)
    page.on()
    page.gutter(JOB, 4)
    kernel.finish(page.run(JOB))
    first = page.event("stopped")
    assert page.rank_of(first) == "rank 0 / MainThread"
    moved = kernel.ok("%mesh debugger 1").text()
    assert "rank 1 of mesh0; it is on, with 1 breakpoint" in moved
    assert page.event("continued")["threadId"] == first["threadId"]
    assert kernel.ok("print(job.wait(10))").text() == "True\n"
    kernel.finish(page.run(JOB))
    second = page.event("stopped")
    assert page.rank_of(second) == "rank 1 / MainThread"
    page.resume()
    kernel.ok("job.wait(10)")
    page.off()


@pytest.mark.slow
def test_from_the_controller_to_a_rank_and_back():
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh up --gpus 2")
        page = FrontEnd(kernel)
        page.on()
        code = "a = 1\nb = a + 1\nprint('b', b)"
        page.gutter(code, 2)
        stops_here(page, code, ("<module>", 2))
        kernel.ok("%mesh debugger 1")
        page.gutter(CELL, 4)
        stops_here(page, CELL, ("work", 4))
        kernel.ok("%mesh debugger controller")
        kernel.until(lambda: page.ok("debugInfo")["breakpoints"])
        stops_here(page, code, ("<module>", 2))
        page.off()


def stops_here(page: FrontEnd, code: str, place: tuple[str, int]) -> None:
    cell = page.run(code)
    stopped = page.event("stopped")
    assert page.place(stopped) == place
    page.ok("continue", threadId=stopped["threadId"])
    assert page.kernel.finish(cell).status == "ok"


def test_the_stop_button_ends_a_cell_whose_ranks_are_stopped(page, kernel):
    cell, _ = page.stop_at(CELL, 4)
    kernel.until(lambda: len(page.ok("debugInfo")["stoppedThreads"]) == 2)
    assert kernel.stop_s(cell) < PROMPT_S
    assert "KeyboardInterrupt" in cell.error
    assert "line 4, in work" in cell.error
    assert "pydevd" not in cell.error
    page.event("continued")
    kernel.until(lambda: page.ok("debugInfo")["stoppedThreads"] == [])
    cell = page.run(CELL)
    page.event("stopped")  # they are traced as before
    kernel.until(lambda: len(page.ok("debugInfo")["stoppedThreads"]) == 2)
    page.resume()
    assert kernel.finish(cell).status == "ok"


def test_an_endless_expression_delays_no_interrupt(page, kernel):
    cell, stopped = page.stop_at(CELL, 4)
    frame = page.frames(stopped)[0]["id"]
    asked = page.send("evaluate", {"expression": "[0 for _ in iter(int, 1)]", "frameId": frame,
                                   "context": "repl"})  # fmt: skip
    kernel.until(lambda: kernel.has_come("status", asked, "busy"))
    assert kernel.stop_s(cell) < PROMPT_S
    assert "KeyboardInterrupt" in cell.error
    assert not page.answer(asked)["success"]
    page.ask("continue", threadId=1)
    assert kernel.ok("%%mesh\nprint('alive')").text().count("alive") == 1


def test_child_processes_run_while_it_is_on(page, kernel):
    """Neither do they wait for a session of their own, nor at breakpoints that nobody sees."""
    code = """%%mesh
import multiprocessing, subprocess, sys
def seven(_):
    return 7
said = subprocess.check_output([sys.executable, '-c', 'print(6 * 7)'], timeout=20)
with multiprocessing.get_context('fork').Pool(1) as pool:
    print(said.decode().strip(), pool.map_async(seven, [0]).get(20))
"""
    page.gutter(code, 4)
    assert kernel.finish(page.run(code)).text().count("42 [7]") in {1, 2}  # folded, or not


def test_it_leaves_nothing_behind(kernel):
    trace = "%%mesh\nimport sys, threading\n"
    trace += "print(sys.gettrace(), [t.name for t in threading.enumerate() if 'pydevd' in t.name])"
    kernel.ok("%mesh debugger all")
    page = FrontEnd(kernel)
    for _ in range(2):
        page.on()
        page.gutter(CELL, 4)
        page.off()
    kernel.until(lambda: "[0-1] None []" in kernel.ok(trace).text())
    assert kernel.finish(page.run(CELL)).status == "ok"


def test_nothing_listens(page, kernel):
    """pydevd is in the rank's process and has no port."""
    cell, _ = page.stop_at(CELL, 4)
    # who stops only after the play button stays there
    kernel.until(lambda: len(page.ok("debugInfo")["stoppedThreads"]) == 2)
    ranks = {  # and the zygote
        pid
        for pid in support.descendants(kernel.manager.provisioner.pid)
        if "monarch_nb.host.zygote.zygote" in support.describe_process(pid)
    }
    assert len(ranks) == 3
    assert not set().union(*map(support.listening_ports, ranks))
    page.resume()
    kernel.finish(cell)
