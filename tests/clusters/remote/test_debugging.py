"""Breakpoints, failures and JupyterLab's debugger on ranks of other hosts."""

import re

import pytest

from tests.kernel.front_end import FrontEnd
from tests.notebook.prompts import Prompt

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

PROMPT_S = 0.5
STEP = """%%mesh
def step(x):
    y = x * 2
    breakpoint()
    z = y + rank
    return z
step(21)
"""
WORK = """%%mesh
def work(x):
    y = x + rank
    z = y * 2
    return z

print('work', work(20))
"""


def test_a_breakpoint_in_a_cell(kernel):
    with Prompt(kernel, STEP) as prompt:
        assert prompt.at() == "(rank 0) "
        prompt.sees("ranks 0-3 at Cell In[")
        prompt.reply("cast all p y + rank")
        prompt.sees("rank 0: 42\nrank 1: 43\nrank 2: 44\nrank 3: 45\n")
        prompt.type("rank 3")
        prompt.type("n", at="(rank 3) ")
        prompt.sees("-> return z")
        prompt.type("p z")
        prompt.sees("45\n")
        prompt.type("ranks")
        prompt.sees("hosts=1, gpus=0")
        prompt.type("continue")
    assert prompt.cell.displays[-1] == {"text/plain": "[0] 42\n[1] 43\n[2] 44\n[3] 45"}


def test_a_breakpoint_that_nobody_waits_for_is_opened_later(kernel):
    cell = kernel.ok(STEP.replace("%%mesh", "%%mesh 2-3 --noblock -o job"))
    kernel.until(lambda: "ranks 2-3 at Cell In[" in cell.shown, 10)
    with Prompt(kernel, "%mesh debug 3") as prompt:
        prompt.type("p y, rank", at="(rank 3) ")
        prompt.sees("(42, 3)\n")
        prompt.type("continue")
    assert "True" in kernel.ok("print(job.wait(10))").text()


def test_the_frames_of_a_failure(kernel):
    failed = kernel.run("%%mesh\ndef share(part):\n    return 6 / part\nshare(rank % 2)")
    assert "ranks 0,2: ZeroDivisionError: division by zero" in failed.error
    with Prompt(kernel, "%debug") as prompt:
        prompt.type("cast all p part", at="(rank 0) ")
        prompt.sees("ranks 0,2: 0\n")
        prompt.type("rank 2")
        prompt.type("up", at="(rank 2) ")
        prompt.sees("-> share(rank % 2)")
        prompt.type("continue")
    assert prompt.cell.status == "ok"


@pytest.fixture
def page(kernel):
    """JupyterLab with its debugger on, for rank 3 on node2."""
    kernel.ok("%mesh debugger 3")
    page = FrontEnd(kernel)
    page.on()
    yield page
    page.off()


def test_the_visual_debugger_stops_looks_steps_and_goes_on(page, kernel):
    cell, stopped = page.stop_at(WORK, 4)
    assert page.place(stopped) == ("work", 4)
    assert page.rank_of(stopped) == "rank 3 / MainThread"
    assert page.local_names(stopped) == {"x": "20", "y": "23"}
    assert page.evaluate(stopped, "__import__('socket').gethostname()") == "'node2'"
    page.ok("next", threadId=stopped["threadId"])
    stepped = page.event("stopped")
    assert page.place(stepped) == ("work", 5)
    assert page.local_names(stepped)["z"] == "46"
    page.resume()
    assert kernel.finish(cell).status == "ok"
    assert "[3] work 46\n" in cell.text()


def test_the_stop_button_while_a_rank_is_stopped_there(page, kernel):
    cell, _ = page.stop_at(WORK, 4)
    assert kernel.stop_s(cell) < PROMPT_S
    assert re.search(r"rank 3 was interrupted at\n  Cell In\[\d+\], line 7", cell.error)
    page.event("continued")
