"""What the controller prints in a cell stands where it was printed, among the ranks' output."""

import pytest

from monarch_nb.notebook.output.cell_output import CellOutput
from tests.notebook.output.test_outputs import Clock, Recorder, said

ACTOR = """
from monarch_nb import Actor, current_rank, endpoint
class Speaker(Actor):
    @endpoint
    def say(self, n):
        print(f'rank {current_rank()["gpus"]} says {n}')
        print(f'all say {n}')
speaker = mesh0.spawn('speaker', Speaker)
speaker.say.call(-1).get();
"""


@pytest.fixture
def output() -> CellOutput:
    return CellOutput(Recorder(), Clock())


def test_without_words_of_ranks_the_streams_are_left_alone(output):
    assert not output.follow("stdout", "mine\n")
    output.settle()
    assert output.sink.text == ""


def test_own_words_stand_behind_lines_that_waited_for_their_equals(output):
    output.add(said(0, "early\n"))
    assert output.follow("stdout", "mine\n")
    output.add(said(1, "late\n"))
    output.end()
    assert output.sink.text == "[0] early\nmine\n[1] late\n"


def test_an_unfinished_line_of_a_rank_is_not_torn(output):
    output.add(said(0, "almost"))
    assert not output.follow("stdout", "mine\n")
    output.add(said(0, " done\n"))
    output.end()
    assert output.sink.text == "[0] almost done\n"


def test_showing_something_sends_the_ranks_words_first(output):
    output.add(said(0, "early\n"))
    output.settle()
    assert output.sink.text == "[0] early\n"


FIRST_CELLS = ["%mesh up --gpus 4", ACTOR]


@pytest.mark.parametrize("wait", ["speaker.say.call(n).get()", "await speaker.say.call(n)"])
def test_prints_and_calls_in_turn(kernel, wait):
    cell = kernel.ok(
        f"for n in range(20):\n    print('before', n)\n    {wait}\n    print('after', n)"
    )
    lines = cell.shown.splitlines()
    assert len(lines) == 20 * 7
    for n in range(20):
        before, *ranks, together, after = lines[7 * n : 7 * n + 7]
        assert (before, together, after) == (f"before {n}", f"[0-3] all say {n}", f"after {n}")
        assert sorted(ranks) == [f"[{rank}] rank {rank} says {n}" for rank in range(4)]


@pytest.mark.parametrize(
    "last, shown",
    [("1 / 0", "ZeroDivisionError"), ("'val' 'ue'", "value"), ("display('val' 'ue')", "value")],
)
def test_results_displays_and_errors_come_after_what_ranks_said(kernel, last, shown):
    cell = kernel.run(f"speaker.say.call(7).get()\n{last}")
    assert cell.shown.index("[0-3] all say 7") < cell.shown.index(shown)
