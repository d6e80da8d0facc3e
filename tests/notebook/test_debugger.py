"""pdb on the ranks, at the prompt of the cell that waits."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.notebook.prompts import Prompt
from tests.notebook.ranks import fresh, kernel, pids_of_ranks

__all__ = ["fresh", "kernel"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

STEP = """\
def step(x):
    y = x * 2
    breakpoint()
    z = y + rank
    return z
"""
ON_ALL = f"%%mesh\n{STEP}step(21)"
PROMPT_S = 0.15
ANSWER_S = 0.03


def test_the_cell_says_who_stopped_where_and_asks(kernel):
    with Prompt(kernel, ON_ALL) as prompt:
        assert prompt.at() == "(rank 0) "
        prompt.sees("ranks 0-3 at Cell In[")
        prompt.sees(":5 step()\n-> z = y + rank\n")
        prompt.reply("p x, y")
        prompt.sees("(21, 42)\n")
        prompt.type("continue")
    assert prompt.cell.status == "ok"
    assert "[3] 45" in prompt.cell.shown


def test_one_rank_is_stepped_while_others_stay(kernel):
    with Prompt(kernel, ON_ALL) as prompt:
        prompt.type("rank 2")
        prompt.type("n", at="(rank 2) ")
        prompt.sees("-> return z")
        prompt.type("p z")
        prompt.sees("44\n")
        prompt.type("rank 1")
        prompt.type("p 'z' in locals()")
        prompt.sees("False\n")
        prompt.type("c")
        prompt.type("p rank", at="(rank 0) ")
        prompt.type("continue")
    assert prompt.cell.status == "ok"


def test_a_command_is_cast_and_equal_answers_are_told_once(kernel):
    with Prompt(kernel, ON_ALL) as prompt:
        prompt.type("cast 0-2 p y")
        prompt.sees("ranks 0-2:\n42\n")
        prompt.type("cast gpus=1:3 p y + rank")
        prompt.sees("rank 1:\n43\nrank 2:\n44\n")
        prompt.type("cast all n")
        prompt.sees("ranks 0-3:\n> Cell In[")
        prompt.type("cast ranks(gpus=(0,3)) p z")
        prompt.sees("rank 0:\n42\nrank 3:\n45\n")
        prompt.type("cast 7 n")
        prompt.sees("no rank 7")
        prompt.type("cast 1")
        prompt.sees("cast needs a command")
        prompt.type("continue")


def test_words_for_all_ranks(kernel):
    with Prompt(kernel, f"%%mesh 1-2\n{STEP}step(1)") as prompt:
        prompt.type("ranks")
        prompt.sees("gpus=2")
        prompt.type("where*")
        prompt.sees("ranks 1-2:\n")
        prompt.sees("ranks 0,3:\nidle\n")
        prompt.type("detach")
        prompt.type("list", at="(mesh) ")
        prompt.sees("gpus=1")
        prompt.type("nonsense")
        prompt.sees("there is no command 'nonsense'")
        prompt.type("attach 0")
        prompt.sees("rank 0 is not stopped here. Stopped: ranks 1-2")
        prompt.type("a 2")
        prompt.type("p rank", at="(rank 2) ")
        prompt.sees("2\n")
        prompt.type("help")
        prompt.sees("cast 0-2 COMMAND")
        prompt.type("continue")


def test_all_of_pdb_works(kernel):
    with Prompt(kernel, ON_ALL) as prompt:
        for line, answer in (
            ("l", "  4  \t    breakpoint()"),
            ("where", "<module>()"),
            ("up", "-> step(21)"),
            ("down", "-> z = y + rank"),
            ("args", "x = 21"),
            ("display y", "display y: 42"),
            ("!y = 7", ""),
            ("whatis y", "<class 'int'>"),
            ("b 6", "Breakpoint 1 at"),
            ("b", "Num Type"),
            ("nonsense = ", "*** SyntaxError"),
            ("p 1/0", "*** ZeroDivisionError"),
            ("interact", "needs a terminal"),
            ("run", "run the cell again"),
            ("c", "[old: 42]"),
        ):
            prompt.type(line)
            prompt.sees(answer)
        prompt.type("clear", at="(rank 0) ")
        prompt.type("y", at="(rank 0) Clear all breaks? ")
        prompt.sees("Deleted breakpoints 1")
        prompt.type("p z")
        prompt.sees("7\n")
        prompt.type("continue")
    assert "[0] 7\n[1] 43" in prompt.cell.shown


def test_quit_ends_the_cell_of_one_rank(kernel):
    with Prompt(kernel, ON_ALL) as prompt:
        prompt.type("q")
        prompt.type("continue", at="(rank 1) ")
    assert "rank 0: bdb.BdbQuit: quit in the debugger" in prompt.cell.error
    assert "/bdb.py" not in prompt.cell.error


def test_a_breakpoint_in_a_module_and_by_pdb(kernel, tmp_path):
    (tmp_path / "train_it.py").write_text(
        "import pdb\n\ndef step(x):\n    pdb.set_trace()\n    return x + 1\n"
    )
    kernel.ok(f"%%mesh\nimport sys; sys.path.insert(0, {str(tmp_path)!r})\nimport train_it")
    with Prompt(kernel, "%%mesh\ntrain_it.step(3)") as prompt:
        prompt.at()
        prompt.sees("ranks 0-3 at train_it.py:5 step()\n-> return x + 1\n")
        prompt.reply("s")
        prompt.sees("--Return--")
        prompt.type("u")
        prompt.sees("-> train_it.step(3)")
        prompt.type("continue")


ACTORS = """\
import asyncio
from monarch_nb import Actor, endpoint, this_host

class Plain(Actor):
    @endpoint
    def step(self, x):
        breakpoint()
        y = x + 1
        return y

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
outer = procs.slice(gpus=1).spawn("outer", Outer, plain.slice(gpus=0))
"""


@pytest.fixture(scope="module")
def actors(kernel):
    kernel.ok(ACTORS)
    kernel.ok("plain.fine.call().get()")  # its processes are there
    yield kernel
    kernel.ok("procs.stop().get()")


def test_actors_stop_with_their_source_shown(actors):
    with Prompt(actors, "plain.step.call(1).get()") as prompt:
        prompt.at()
        prompt.sees("ranks 0-1 at Cell In[")
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
    with Prompt(actors, "waiting.step.call(1).get()") as prompt:
        prompt.type("n")
        prompt.sees("-> y = x + 2")
        prompt.type("n")
        prompt.sees("-> return y")
        prompt.type("p y")
        prompt.sees("3\n")
        prompt.type("continue")
    assert prompt.cell.status == "ok", prompt.cell.shown


def test_stepping_into_an_await_comes_out_in_the_users_code(actors):
    with Prompt(actors, "waiting.step.call(1).get()") as prompt:
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
    with Prompt(actors, "await plain.step.call(1)") as prompt:
        prompt.type("p x")
        prompt.sees("1\n")
        prompt.type("continue")
    assert prompt.cell.status == "ok", prompt.cell.shown


def test_an_interrupt_at_the_prompt_ends_the_cell(kernel):
    for code in (ON_ALL, "%%mesh 2\nimport asyncio\nbreakpoint()\nawait asyncio.sleep(9)"):
        with Prompt(kernel, code) as prompt:
            prompt.at()
            pressed = time.monotonic()
            kernel.interrupt()
            kernel.finish(prompt.cell)
            assert prompt.cell.finished_s - pressed < 0.5
        assert "KeyboardInterrupt" in prompt.cell.error
    assert kernel.ok("%%mesh\n1 + 1").status == "ok"


def test_an_interrupt_reaches_actors_that_are_stopped(actors):
    for call in ("plain.step.call(1).get()", "waiting.step.call(1).get()"):
        with Prompt(actors, call) as prompt:
            prompt.at()
            actors.interrupt()
            actors.finish(prompt.cell)
        assert "KeyboardInterrupt" in prompt.cell.error
        assert "monarch_kernel" not in prompt.cell.error
        assert "fine" in actors.ok("plain.fine.call().get()").shown


def test_what_is_called_and_not_waited_for_is_told_of_and_opened_later(actors):
    cell = actors.ok("later = plain.step.call(5)", allow_stdin=True)
    actors.until(lambda: "%mesh debug opens the prompt" in cell.text("stderr"))
    assert "ranks 0-1 at Cell In[" in cell.text("stderr")
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
    actors.ok("later = plain.step.call(5)", allow_stdin=True)
    with Prompt(actors, "later.get()") as prompt:
        prompt.type("continue")
    assert prompt.cell.status == "ok", prompt.cell.shown


def test_where_nobody_can_type_state_is_told_and_it_goes_on(kernel):
    cell = kernel.ok(f"%%mesh 1\n{STEP}[step(n) for n in range(3)]", allow_stdin=False)
    told = cell.text("stderr")
    assert "breakpoint in step(), line 5: nobody can type here, going on\n" in told
    assert "  x = 0\n" in told
    assert "  y = 0\n" in told
    assert told.count("going on") == 1, "a loop is not to flood the notebook"
    assert "[1, 3, 5]" in cell.shown


def test_input_of_the_cell_and_the_prompt_take_turns(actors):
    code = "f = plain.step.call(1)\nname = input('your name? ')\nprint(f.get(), name)"
    with Prompt(actors, code) as prompt:
        asked = [prompt.at()]
        prompt.reply("continue" if asked == ["(rank 0) "] else "Ada")
        asked.append(prompt.at())
        prompt.reply("continue" if asked[1] == "(rank 0) " else "Ada")
    assert sorted(asked) == ["(rank 0) ", "your name? "]
    assert "Ada" in prompt.cell.shown


def test_an_expression_that_prints_a_hundred_megabytes_is_cut(kernel):
    with Prompt(kernel, "%%mesh 0\nbig = 'a' * 100_000_000\nbreakpoint()\nbig = None") as prompt:
        prompt.type("p big")
        prompt.sees("... 99900003 more characters")
        prompt.type("p len(big)")
        prompt.sees("100000000\n")
        prompt.type("c")
    assert len(prompt.cell.text()) < 200_000


def test_a_rank_that_runs_on_gives_the_prompt_back(kernel):
    code = f"%%mesh 0-1\nimport time\n{STEP}step(1)\nif rank == 0: time.sleep(1.5)\nx = 1"
    with Prompt(kernel, code) as prompt:
        prompt.type("u", at="(rank 0) ")
        prompt.type("n")
        prompt.type("n")
        prompt.sees("rank 0 runs on; it may wait for rank 1, stopped here")
        prompt.type("p rank", at="(rank 1) ")
        prompt.sees("1\n")
        prompt.sees("rank 0 at Cell In[")
        prompt.type("continue")


def test_nothing_is_stopped_and_unknown_ranks(kernel):
    cell = kernel.run("%mesh debug", allow_stdin=True)
    assert cell.error.startswith("no rank is stopped in a debugger. breakpoint() in a cell")
    assert "nobody can type here" in kernel.run("%mesh debug", allow_stdin=False).error
    assert "mesh0 has no rank 9" in kernel.run("%mesh pm 9", allow_stdin=True).error


def test_a_rank_that_dies_at_the_prompt(fresh):
    with Prompt(fresh, "%%mesh\nimport os\nbreakpoint()\nx = 1") as prompt:
        prompt.type("!os._exit(3)")
        prompt.sees("rank 0 is lost")
        prompt.type("p rank", at="(rank 1) ")
        prompt.sees("1\n")
        prompt.type("continue")
    assert "exited with code 3" in prompt.cell.error


def test_a_rank_that_is_killed_while_its_prompt_is_open(fresh):
    pids = pids_of_ranks(fresh)
    fresh.ok(f"import os, signal; pids = {pids}")
    with Prompt(fresh, "%%mesh 0-1\nbreakpoint()\nx = 1") as prompt:
        assert prompt.at() == "(rank 0) "
        os.kill(pids[0], signal.SIGKILL)
        prompt.type("continue", at="(rank 1) ")
    assert "rank 0: the process was killed by signal 9 (SIGKILL)" in prompt.cell.error


def test_the_prompt_is_quick(kernel):
    asked, answered = [], []
    for _ in range(5):
        started = time.monotonic()
        with Prompt(kernel, "%%mesh\nbreakpoint()\nx = 1") as prompt:
            prompt.at()
            asked.append(time.monotonic() - started)
            for _ in range(5):
                typed = time.monotonic()
                prompt.reply("p rank")
                prompt.at()
                answered.append(time.monotonic() - typed)
            prompt.reply("continue")
    assert sorted(asked)[2] < PROMPT_S, asked
    assert sorted(answered)[12] < ANSWER_S, answered
