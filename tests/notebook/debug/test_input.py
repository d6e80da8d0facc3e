"""`input()` on ranks: the person in front of the cell is asked, one rank after the other."""

import pytest

from tests.notebook.prompts import Prompt

FIRST_CELLS = ["%mesh up --gpus 3"]
NO_KEYBOARD = "EOFError: a rank has no keyboard. Ask in a cell of the controller, without %%mesh"


def test_each_rank_asks_by_its_number(kernel):
    code = "%%mesh\nprint('first')\nname = input('about you\\nname? ')\nprint('hello', name)"
    asked = []
    with Prompt(kernel, code) as prompt:
        for question in prompt.questions():
            assert "first\n" in prompt.cell.text()  # it stands above the question
            asked.append(question)
            prompt.reply("n" + question.removeprefix("rank ")[0])
    assert sorted(asked) == [f"rank {rank}: about you\nname? " for rank in range(3)]
    assert prompt.cell.status == "ok", prompt.cell.error
    assert kernel.ok("%%mesh\nname").displays == [{"text/plain": "[0] 'n0'\n[1] 'n1'\n[2] 'n2'"}]


def test_of_those_that_wait_the_lowest_number_is_asked_first(kernel, tmp_path):
    head = f"import pathlib, time\nfolder = pathlib.Path({str(tmp_path)!r})"
    waits = "while rank != 1 and not (folder / 'go').exists(): time.sleep(0.01)"
    asks = "(folder / f'asks-{rank}').touch()\ninput('name? ')"
    with Prompt(kernel, f"%%mesh\n{head}\n{waits}\n{asks}") as prompt:
        assert prompt.at() == "rank 1: name? "
        (tmp_path / "go").touch()
        kernel.until(lambda: len(list(tmp_path.glob("asks-*"))) == 3)
        kernel.settle()  # their questions are under way
        prompt.reply("")
        prompt.type("", at="rank 0: name? ")
        prompt.type("", at="rank 2: name? ")


def test_a_rank_asks_again_and_gets_an_empty_line(kernel):
    with Prompt(kernel, "%%mesh 1\nlines = [input(), input(7)]\nlines") as prompt:
        prompt.type("", at="rank 1: ")
        prompt.type(" two ", at="rank 1: 7")
    assert prompt.cell.displays[-1] == {"text/plain": "[1] ['', ' two ']"}


def test_an_endpoint_asks_in_the_cell_that_calls_it(kernel):
    kernel.ok("from monarch_nb import Actor, endpoint\n"
              "class Asker(Actor):\n    @endpoint\n    def ask(self):\n"
              "        return input('how many? ')\n"
              "asker = mesh0.slice(gpus=2).spawn('asker', Asker)")  # fmt: skip
    with Prompt(kernel, "asker.ask.call_one().get()") as prompt:
        prompt.type("5", at="rank 2: how many? ")
    assert prompt.cell.displays[-1] == {"text/plain": "'5'"}


def test_the_line_that_tells_of_a_wait_is_not_cleared_above_a_question(kernel):
    """JupyterLab would take the question away with it, and the cell wait for ever."""
    code = "import time\ntime.sleep(1)\nname = input('name? ')\nprint('hello', name)"
    with Prompt(kernel, f"%%mesh 0-1 --progress-after 0.2\n{code}") as prompt:
        kernel.until(lambda: "waiting for" in prompt.cell.shown)
        first = prompt.at()
        cleared = len(prompt.cell.contents("clear_output"))
        prompt.reply("Ada")
        prompt.sees(f"[{first[5]}] hello Ada")
        prompt.type("Grace")
    assert len(prompt.cell.contents("clear_output")) == cleared


def test_the_stop_button_takes_the_question_back(kernel):
    cell = kernel.start("%%mesh 0-1\ninput('name? ')", allow_stdin=True)
    assert kernel.asked(of=cell) in ("rank 0: name? ", "rank 1: name? ")
    assert kernel.stop_s(cell) < 5.0
    assert "KeyboardInterrupt" in cell.error
    assert kernel.ok("%%mesh\n1").displays == [{"text/plain": "[0-2] 1"}]


@pytest.mark.parametrize("code, may_ask", [
    ("%%mesh 0\ninput('name? ')", False),  # nbconvert
    ("%%mesh 0 --noblock -o job\nimport time\ntime.sleep(0.5)\ninput('name? ')", True),
])  # fmt: skip
def test_where_nobody_can_answer_the_call_fails(kernel, code, may_ask):
    cell = kernel.finish(kernel.start(code, allow_stdin=may_ask))
    if "job" in code:
        cell = kernel.run("job.result()", allow_stdin=False)
    assert NO_KEYBOARD in cell.error


def test_at_the_prompt_of_a_debugger_nobody_is_asked(kernel):
    with Prompt(kernel, "%%mesh 0\nbreakpoint()\n1") as prompt:
        prompt.type("input()", at="(rank 0) ")
        prompt.sees(NO_KEYBOARD)
        prompt.type("continue", at="(rank 0) ")
