"""pdb in actors, plain and async, called from cells that wait and from cells that do not."""

import pytest

from tests.kernel.client import Cell, KernelClient
from tests.notebook.debug.test_debugger import ALL, ON_ALL
from tests.notebook.prompts import Prompt, stopped
from tests.notebook.ranks import stop

FIRST_CELLS = ["%mesh up --gpus 4"]

pytestmark = pytest.mark.timeout(120)

BOTH = {0, 1}

ACTORS = """\
import asyncio, time
from monarch_nb import Actor, endpoint, this_host

def half(x):
    return x / 2

class Plain(Actor):
    @endpoint
    def step(self, x):
        breakpoint()
        y = x + 1
        return y

    @endpoint
    def deep(self, x):
        breakpoint()
        return half(x)

    @endpoint
    def nap(self):
        print("started", flush=True)
        while True:
            time.sleep(0.01)

    @endpoint
    def fine(self):
        return "fine"

class Waiting(Actor):
    @endpoint
    async def step(self, x):
        breakpoint()
        await asyncio.sleep(0.05)
        y = x + 2
        return y

class Outer(Actor):
    def __init__(self, inner):
        self.inner = inner

    @endpoint
    async def step(self, x):
        return (await self.inner.step.call_one(x)) * 10

procs = this_host().spawn_procs({"gpus": 2}, name="actors")
plain, waiting = procs.spawn("plain", Plain), procs.spawn("waiting", Waiting)
second = procs.spawn("second", Plain)  # in a thread of its own
outer = procs.slice(gpus=1).spawn("outer", Outer, plain.slice(gpus=0))
"""


@pytest.fixture(scope="module")
def actors(kernel):
    kernel.ok(ACTORS)
    kernel.ok("plain.fine.call().get()")  # its processes are there
    yield kernel
    kernel.ok("procs.stop().get()")


def until_told(kernel: KernelClient, cell: Cell) -> None:
    """Wait until the text below the cell says that both ranks have stopped, and what to type."""
    kernel.until(lambda: stopped(cell.text("stderr")) == BOTH)
    kernel.until(lambda: cell.text("stderr").endswith("\n%mesh debug opens the prompt\n"))


def test_actors_stop_with_their_source_shown(actors):
    with Prompt(actors, "plain.step.call(1).get()", BOTH) as prompt:
        prompt.at()
        prompt.sees(" at Cell In[")
        prompt.sees("-> y = x + 1")
        prompt.reply("ll")
        prompt.sees("def step(self, x):")
        prompt.type("ranks")
        prompt.sees("plain.step")
        prompt.type("cast plain ranks(0:2) n")
        prompt.sees("-> return y")
        prompt.type("continue")
    assert prompt.cell.status == "ok", prompt.cell.shown


def test_steps_go_through_an_await(actors):
    with Prompt(actors, "waiting.step.call(1).get()", BOTH) as prompt:
        prompt.type("n")
        prompt.sees("-> y = x + 2")
        prompt.type("n")
        prompt.sees("-> return y")
        prompt.type("p y")
        prompt.sees("3\n")
        prompt.type("continue")
    assert prompt.cell.status == "ok", prompt.cell.shown


def test_stepping_into_an_await_comes_out_in_the_users_code(actors):
    with Prompt(actors, "waiting.step.call(1).get()", BOTH) as prompt:
        prompt.type("s")
        prompt.sees("--Call--")
        prompt.type("r")
        prompt.sees("-> y = x + 2")
        prompt.type("continue")
    assert prompt.cell.status == "ok", prompt.cell.shown


def test_an_actor_called_by_an_actor_stops_in_the_cell_that_waits(actors):
    with Prompt(actors, "outer.step.call(4).get()") as prompt:
        prompt.type("p x", at="(rank 0) ")
        prompt.sees("4\n")
        prompt.type("c")
    assert "50" in prompt.cell.shown


def test_an_awaiting_cell_asks_too(actors):
    with Prompt(actors, "await plain.step.call(1)", BOTH) as prompt:
        prompt.type("p x")
        prompt.sees("1\n")
        prompt.type("continue")
    assert prompt.cell.status == "ok", prompt.cell.shown


def test_an_interrupt_reaches_actors_that_are_stopped(actors):
    for call in ("plain.step.call(1).get()", "waiting.step.call(1).get()"):
        with Prompt(actors, call, BOTH) as prompt:
            prompt.at()
            actors.interrupt()
            actors.finish(prompt.cell)
        assert "KeyboardInterrupt" in prompt.cell.error
        assert "monarch_kernel" not in prompt.cell.error
        assert "fine" in actors.ok("plain.fine.call().get()").shown
        assert "opens the prompt" not in prompt.cell.shown, "nobody stays there"


def test_calls_are_stepped_into_after_an_interrupt(actors):
    stop(actors, "second.nap.call().get()")
    with Prompt(actors, "second.deep.call(1).get()", BOTH) as prompt:
        prompt.type("cast all s")
        prompt.sees("--Call--")
        prompt.type("continue")
    assert "0.5" in prompt.cell.shown


def test_what_is_called_and_not_waited_for_is_told_of_and_opened_later(actors):
    cell = actors.ok("later = plain.step.call(5)", allow_stdin=True)
    until_told(actors, cell)
    with Prompt(actors, "%mesh debug 1") as prompt:
        prompt.type("p x", at="(rank 1) ")
        prompt.sees("5\n")
        prompt.type("detach")
        prompt.type("quit")
        prompt.sees("ranks 0-1 stay stopped")
    with Prompt(actors, "%mesh debug") as prompt:
        prompt.type("continue")
    assert "6" in actors.ok("later.get()").shown


def test_a_cell_that_waits_for_an_earlier_stop_asks(actors):
    cell = actors.ok("later = plain.step.call(5)", allow_stdin=True)
    until_told(actors, cell)
    with Prompt(actors, "later.get()") as prompt:
        prompt.type("continue")
    assert prompt.cell.status == "ok", prompt.cell.shown


def test_input_of_the_cell_and_the_prompt_take_turns(actors):
    code = "f = plain.step.call(1)\nname = input('your name? ')\nprint(f.get(), name)"
    asked = []
    with Prompt(actors, code) as prompt:
        for question in prompt.questions():  # one for both ranks, or one each
            asked.append(question)
            prompt.reply("Ada" if question == "your name? " else "continue")
    assert asked.count("your name? ") == 1
    assert len(asked) > 1
    assert "Ada" in prompt.cell.shown


def test_calls_are_as_fast_as_ever_after_a_debugger_was_used(actors):
    with Prompt(actors, "plain.step.call(1).get()", BOTH) as prompt:
        prompt.type("n")
        prompt.type("continue")
    traced = "import sys\nsys.gettrace() is not None or sys.getprofile() is not None"
    assert "[0-3] False" in actors.ok(f"%%mesh\n{traced}").shown
    with Prompt(actors, ON_ALL, ALL) as prompt:
        for _ in range(4):  # to the end of the function, then of the cell
            prompt.type("cast all n")
    assert "[0-3] False" in actors.ok(f"%%mesh\n{traced}").shown
