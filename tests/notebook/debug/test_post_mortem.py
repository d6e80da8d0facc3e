"""The frames of what failed on ranks, looked into afterwards, or where it fails."""

import pytest

from tests.notebook.prompts import Prompt

FIRST_CELLS = ["%mesh up --gpus 4"]

pytestmark = pytest.mark.timeout(120)

FAILING = """\
%%mesh
class Big: pass
import weakref

def deep(n):
    held = Big()
    globals()["seen"] = weakref.ref(held)
    return [1, 2][n + 1]

deep(rank)
"""


def test_debug_after_a_failed_cell_opens_its_frames(kernel):
    failed = kernel.run(FAILING)
    assert "ranks 1-3: IndexError" in failed.error
    with Prompt(kernel, "%debug") as prompt:
        assert prompt.at() == "(rank 1) "
        prompt.sees("ranks 1-3 at Cell In[")
        prompt.sees(":8 deep(), where it failed\nIndexError: list index out of range\n")
        prompt.sees("help shows what can be typed here; q leaves all ranks\n")
        prompt.reply("p n, type(held).__name__")
        prompt.sees("(1, 'Big')\n")
        prompt.type("up")
        prompt.sees("-> deep(rank)")
        prompt.type("n")
        prompt.sees("it has failed here and goes nowhere")
        prompt.type("cast 2-3 p n")
        prompt.sees("rank 2: 2\nrank 3: 3\n")
        prompt.type("c")
        prompt.type("attach debugee 3", at="(rank 2) ")
        prompt.sees("rank 3 is not stopped here")
        prompt.type("attach 3", at="(rank 2) ")
        prompt.type("q", at="(rank 3) ")
    assert prompt.cell.status == "ok", prompt.cell.shown
    with Prompt(kernel, "%debug") as prompt:
        prompt.type("q", at="(rank 1) ")


def test_one_rank_is_opened_again_and_let_go_by_success(kernel):
    kernel.run(FAILING)
    with Prompt(kernel, "%mesh pm 3") as prompt:
        prompt.type("p n", at="(rank 3) ")
        prompt.sees("3\n")
        prompt.type("q")
    assert "Big object" in kernel.ok("%%mesh 3 --no-stream\nprint(seen())").text()
    assert "None" in kernel.ok("%%mesh 3\nprint(seen())").text(), "a success lets go of frames"
    gone = kernel.run("%mesh pm 3", allow_stdin=True)
    assert "mesh0: no failure is kept by rank 3" in gone.error


def test_clear_lets_go_of_what_frames_hold(kernel):
    kernel.run(FAILING)
    assert "let go" in kernel.ok("%mesh clear").text()
    assert "[1-3] None" in kernel.ok("%%mesh 1-3\nprint(seen())").text()


def test_the_stop_button_leaves_the_frames(kernel):
    kernel.run(FAILING)
    with Prompt(kernel, "%mesh pm") as prompt:
        prompt.at()
        kernel.interrupt()
        kernel.finish(prompt.cell)
    with Prompt(kernel, "%mesh pm 1") as prompt:
        prompt.type("q")


def test_ranks_stop_where_they_fail(kernel):
    assert "stop where their code fails" in kernel.ok("%mesh pdb on").text()
    try:
        with Prompt(kernel, FAILING) as prompt:
            prompt.at()
            prompt.sees("deep(), where it failed\n")
            prompt.reply("p n")
            prompt.sees("1\n")
            prompt.type("continue")
        assert "ranks 1-3: IndexError" in prompt.cell.error
        with Prompt(kernel, FAILING) as prompt:
            prompt.at()
            kernel.interrupt()
            kernel.finish(prompt.cell)
        assert "KeyboardInterrupt" in prompt.cell.error
    finally:
        kernel.ok("%mesh pdb off")
    assert "IndexError" in kernel.run(FAILING, allow_stdin=True).error


@pytest.mark.fault
def test_a_rank_that_is_back_stops_where_it_fails_as_the_others_do(fresh):
    fresh.ok("%mesh pdb on")
    fresh.run("%%mesh 2\nimport os; os._exit(3)")
    fresh.ok("%mesh heal")
    with Prompt(fresh, "%%mesh 2\nfails = 1 / 0") as prompt:
        prompt.type("c", at="(rank 2) ")
    assert "ZeroDivisionError" in prompt.cell.error


ACTORS = """\
from monarch_nb import Actor, endpoint, this_host

class Plain(Actor):
    @endpoint
    def fails(self, x):
        y = x / 2
        return 1 / 0

    @endpoint
    def fine(self):
        return "fine"

class Waiting(Actor):
    @endpoint
    async def fails(self, x):
        y = x / 2
        return 1 / 0

    @endpoint
    async def fine(self):
        return "fine"

procs = this_host().spawn_procs({"gpus": 1}, name="failing")
plain, waiting = procs.spawn("plain", Plain), procs.spawn("waiting", Waiting)
plain.fine.call().get()
"""


@pytest.fixture(scope="module")
def actors(kernel):
    kernel.ok(ACTORS)
    yield kernel
    kernel.ok("procs.stop().get()")


def test_debug_after_a_call_that_failed(actors):
    kernel = actors
    for actor in ("plain", "waiting"):
        failed = kernel.run(f"{actor}.fails.call(6).get()")
        assert "ZeroDivisionError" in failed.error
        with Prompt(kernel, "%debug") as prompt:
            prompt.type("p y", at="(rank 0) ")
            prompt.sees("3.0\n")
            prompt.type("q")
        kernel.ok(f"{actor}.fine.call().get()")
        again = kernel.ok("%debug", allow_stdin=True)
        assert "do not keep the frames" in again.text()


def test_actors_stop_where_they_fail(actors):
    kernel = actors
    kernel.ok("%mesh pdb on --name failing")
    for actor in ("plain", "waiting"):
        with Prompt(kernel, f"{actor}.fails.call(6).get()") as prompt:
            prompt.type("p y", at="(rank 0) ")
            prompt.sees("3.0\n")
            prompt.type("c")
        assert "ZeroDivisionError" in prompt.cell.error
        with Prompt(kernel, f"{actor}.fails.call(6).get()") as prompt:
            prompt.at()
            kernel.interrupt()
            kernel.finish(prompt.cell)
        assert "fine" in kernel.ok(f"{actor}.fine.call().get()").shown
    kernel.ok("%mesh pdb off --name failing")


def test_debug_after_a_failure_here_is_ipythons(kernel):
    kernel.run("here = 5\n1 / 0")
    with Prompt(kernel, "%debug") as prompt:
        assert prompt.at() == "ipdb> "
        prompt.reply("p here")
        prompt.sees("5\n")
        prompt.type("q")
