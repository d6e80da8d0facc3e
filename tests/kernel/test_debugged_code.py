"""Where the visual debugger stops: coroutines, threads, actors that fail, `breakpoint()`."""

import pytest

FIRST_CELLS = ["%mesh up --gpus 1", "%mesh debugger 0"]
PROMPT_S = 0.5
ACTORS = """import asyncio
from monarch_nb import Actor, endpoint

class Slow(Actor):
    @endpoint
    async def wait(self, n):
        before = n
        await asyncio.sleep(0.01)
        after = before + 1
        return after

class Plain(Actor):
    @endpoint
    def fail(self, n):
        doomed = n
        return 1 / doomed

    @endpoint
    def spin(self):
        self.go_on = True
        while self.go_on:
            n = 1
        return n

slow, plain = mesh0.spawn("slow", Slow), mesh0.spawn("plain", Plain)
"""


@pytest.fixture(scope="module")
def actors(kernel):
    kernel.ok(ACTORS)


@pytest.mark.usefixtures("actors")
def test_a_step_over_an_await(page, kernel):
    page.gutter(ACTORS, 8)
    cell = page.run("slow.wait.call_one(4).get()")
    stopped = page.event("stopped")
    assert page.place(stopped) == ("wait", 8)
    page.ok("next", threadId=stopped["threadId"])
    stopped = page.event("stopped")
    assert page.place(stopped) == ("wait", 9)
    assert page.local_names(stopped)["before"] == "4"
    page.resume()
    assert "5" in kernel.finish(cell).shown


def test_a_cell_that_awaits(page, kernel):
    code = "%%mesh\nimport asyncio\nfirst = 1\nawait asyncio.sleep(0.01)\nsecond = first + 1"
    cell, stopped = page.stop_at(code, 5)
    assert page.place(stopped)[1] == 5
    assert page.evaluate(stopped, "first") == "1"
    page.resume()
    assert kernel.finish(cell).status == "ok"


def test_a_thread_of_a_cell(page, kernel):
    code = """%%mesh
import threading
def beside(n):
    found = n + 1
    print('found', found)
thread = threading.Thread(target=beside, args=(1,), name='beside')
thread.start(); thread.join()"""
    cell, stopped = page.stop_at(code, 5)
    assert page.rank_of(stopped) == "rank 0 / beside"
    assert [frame["name"] for frame in page.frames(stopped)] == ["beside"]
    page.resume()
    assert "found 2" in kernel.finish(cell).text()


def test_a_cell_that_goes_to_the_mesh_by_itself(page, kernel):
    kernel.ok("%mesh auto on")
    code = "\n\na = 1\nb = a + 1\nprint('b', b)"
    cell, stopped = page.stop_at(code, 4)
    assert page.place(stopped) == ("<module>", 4)
    page.resume()
    assert "b 2" in kernel.finish(cell).text()
    kernel.ok("%mesh auto off")


@pytest.mark.parametrize("start", ["\n\n%%mesh\n", "%%mesh\n\n\n"])
def test_empty_lines_at_the_start_of_a_cell(page, kernel, start):
    code = f"{start}a = 1\nb = 2\nprint('a', a)"
    page.gutter(code, 5)
    cell = page.run(code)
    assert page.place(page.event("stopped")) == ("<module>", 5)
    page.resume()
    assert "a 1" in kernel.finish(cell).text()


@pytest.mark.usefixtures("actors")
def test_an_actor_that_fails_is_looked_at_before_its_caller_knows(page, kernel):
    page.ok("setExceptionBreakpoints", filters=["uncaught"])
    cell = page.run("plain.fail.call_one(0).get()")
    stopped = page.event("stopped")
    assert stopped["reason"] == "exception"
    assert page.place(stopped) == ("fail", 16)
    assert page.local_names(stopped)["doomed"] == "0"
    page.resume()
    assert "ZeroDivisionError" in kernel.finish(cell).error


@pytest.mark.usefixtures("actors")
def test_the_stop_button_while_one_looks_at_an_actor_that_failed(page, kernel):
    page.ok("setExceptionBreakpoints", filters=["uncaught"])
    cell = page.run("plain.fail.call_one(0).get()")
    page.event("stopped")
    assert kernel.stop_s(cell) < PROMPT_S
    page.event("continued")
    kernel.ok("slow.wait.call_one(1).get()")


@pytest.mark.usefixtures("actors")
def test_pause_in_an_actor(page, kernel):
    cell = page.run("plain.spin.call_one().get()")
    kernel.until(lambda: page.ask("pause", threadId=1)["success"])
    stopped = page.event("stopped")
    assert page.place(stopped)[0] == "spin"
    page.evaluate(stopped, "self.go_on = False")
    page.resume()
    assert kernel.finish(cell).status == "ok"


@pytest.mark.usefixtures("actors")
def test_the_stop_button_while_an_actor_is_stopped(page, kernel):
    page.gutter(ACTORS, 16)
    for _ in range(3):  # and the call after each stops again, however soon it comes
        cell = page.run("plain.fail.call_one(1).get()")
        page.event("stopped")
        assert kernel.stop_s(cell) < PROMPT_S
        page.event("continued")
    cell = page.run("plain.fail.call_one(1).get()")
    page.event("stopped")
    page.resume()
    assert "1.0" in kernel.finish(cell).shown


def test_breakpoint_in_a_frame(page, kernel):
    """What `breakpoint()` calls while the debugger is attached."""
    code = """%%mesh
import sys
dap = sys.breakpointhook.__self__.dap
def stops():
    dap.stop_at(sys._getframe())
    return 'went on'
print(dap.is_attached, stops())"""
    cell = page.run(code)
    stopped = page.event("stopped")
    assert page.place(stopped) == ("stops", 6)
    page.resume()
    assert "True went on" in kernel.finish(cell).text()


ATTACHED = "%%mesh\nimport sys\nprint(sys.breakpointhook.__self__.dap.is_attached)"


def test_off_and_on_while_stopped(page, kernel):
    """The red button of the overlay."""
    code = "%%mesh\na = 1\nb = 2\nprint('a', a)"
    cell, _ = page.stop_at(code, 3)
    page.off()
    assert "a 1" in kernel.finish(cell).text()
    assert "False" in kernel.ok(ATTACHED).text()
    page.on()
    cell, _ = page.stop_at(code, 3)
    page.resume()
    kernel.finish(cell)
