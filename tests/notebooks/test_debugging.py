"""The tutorial on debugging: what its reader sees, and that it runs where nobody can type."""

import re

import pytest

from tests.notebooks import reading

NOTEBOOK = reading.NOTEBOOKS / "debugging.ipynb"

pytestmark = pytest.mark.timeout(2 * reading.LIMIT_S)

TYPED_AT = ("breakpoint()", "step.call", "%mesh debug 2", "%debug", "%mesh pm 3", "rank + 1")
"""Cells where a person types; without one they go on, or fail with a word."""
IN_THE_BACKGROUND = ("later.get()", "dist.init_process_group", "--noblock", "%mesh interrupt")


def test_lines_that_were_typed_stand_before_their_answers(recorded):
    text = recorded("def step(x)")
    assert text.startswith("ranks 0-3 at Cell In[2]:5 step()\n-> z = y + rank\n(rank 0)  p x, y\n")
    assert "(rank 0)  rank 3\nrank 3 at Cell In[2]:5 step()\n" in text
    assert "(rank 3)  p z\n45\n(rank 3)  cast 0-2 p 'z' in locals()\nranks 0-2: False\n" in text
    assert text.endswith("[0] 42\n[1] 43\n[2] 44\n[3] 45\n")
    actor = recorded("step.call(2)")
    assert "0     gpus=0  trainer.step  Cell In[3]:12 step()" in actor
    assert "(rank 0)  cast gpus=0:2 p self.weight\nrank 0: 1.0\nrank 1: 2.0\n" in actor


def test_stops_without_a_waiting_cell_and_failures_are_opened_later(recorded):
    assert recorded("step.call(3)").endswith("%mesh debug opens the prompt\n")
    assert "(rank 2)  p loss\n" in recorded("%mesh debug 2")
    assert "(rank 2)  cast all p wanted\nrank 2: 3\nrank 3: 4\n" in recorded("%debug")
    assert "(rank 3)  p index, len(rows)\n(3, 3)\n(rank 3)  q\n" in recorded("%mesh pm 3")
    assert "(rank 1)  cast all p wanted\n" in recorded("rank + 1")


def test_without_a_person_breakpoints_are_passed_over(executed):
    def now(source: str) -> str:
        return reading.text_of(reading.find(executed, source))

    assert "breakpoint in step(), line 5: nobody can type here, going on\n" in now("def step(x)")
    for command in ("%mesh debug 2", "%debug", "%mesh pm 3"):
        # beside it may stand what the ranks of a call in the background print, each line with `[`
        own = [line for line in now(command).splitlines(True) if not line.startswith("[")]
        assert "".join(own).endswith("nobody can type here: this front end takes no input\n")


def test_failures(shown):
    assert "ranks 2-3: IndexError: list index out of range\n" in shown("wanted = index + 1")
    assert "ranks 1-3: IndexError: list index out of range\n" in shown("rank + 1")
    assert shown("%mesh debugger all").startswith("the visual debugger is for ranks 0-3 of mesh0")


def test_hangs(shown):
    late = shown("def load()")
    assert "rank 3 was interrupted at\n" in late
    assert "The next cell has a new process group\n" in late
    assert shown("%mesh collectives") == (
        "ranks 0,2-3 wait in all_reduce #1 f32[4]; rank 1 is in broadcast #1 f32[4]\n"
        "The stop button ends the wait; the next cell has a new process group\n\n"
        "ranks 0,2-3  all_reduce #1 f32[4], waiting\n"
        "rank 1       broadcast #1 f32[4], waiting\n"
    )
    assert re.search(
        r"^rank 1 +Cell In\[\d+\], line 3, in <module>", shown("%mesh stacks"), re.MULTILINE
    )
    assert "mesh0: all ranks are in a new process group (gloo)" in shown("%mesh interrupt")
    again = shown("again = kept")
    for rank in range(4):
        kept = ", ".join([f"{rank}."] * 4)
        assert f"[{rank}] (tensor([6., 6., 6., 6.]), tensor([{kept}]))" in again


def test_the_committed_notebook_is_what_runs(executed):
    reading.check_committed(NOTEBOOK, executed, but=(*TYPED_AT, *IN_THE_BACKGROUND))
