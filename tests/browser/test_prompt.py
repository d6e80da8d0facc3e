"""The debugger's prompt in JupyterLab: typed at in the cell, and gone when nobody asks any more."""

import os
import re
import signal

import pytest

from tests import support
from tests.browser.lab import STOP, Cell, Notebook, picture

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

STEP = """%%mesh
def step(x):
    y = x * 2
    breakpoint()
    z = y + rank
    return z

step(21)"""


GREETING = "help shows what can be typed here"
NUMBER = re.compile(r"^\d+\s*$", re.MULTILINE)


class Prompt:
    """The box below a cell, as a person finds it."""

    def __init__(self, notebook: Notebook, cell: Cell) -> None:
        self.cell = cell
        self.keyboard = notebook.page.keyboard
        self._boxes = cell.element.locator(
            ".jp-OutputArea-stdin-item:not(.jp-OutputArea-stdin-hiding)"
        )

    def asks(self, *prompts: str) -> str:
        """Wait until one of these is the only question, with the cursor in its box; return it."""
        asked = [[prompt] for prompt in prompts]

        def is_asked() -> bool:
            return self._questions() in asked

        support.eventually(
            is_asked, 20, lambda: f"{prompts}, not {self._questions()} {self._state()}"
        )
        self._boxes.locator("input:focus").wait_for()
        return self._questions()[0]

    def _state(self) -> str:
        boxes = self.cell.element.locator(".jp-OutputArea-stdin-item")
        return f"{self.cell.text!r} {boxes.evaluate_all('all => all.map(one => one.outerHTML)')}"

    def _questions(self) -> list[str]:
        return [text.strip() for text in self._boxes.locator(".jp-Stdin-prompt").all_inner_texts()]

    def type(self, line: str, at: str = "(rank 0)") -> None:
        """Type where the cursor is, and press Enter."""
        self.asks(at)
        self.keyboard.type(line)
        self.keyboard.press("Enter")

    def click(self) -> None:
        """Put the cursor into the box again, as after a walk through the menus."""
        self._boxes.locator("input").click()

    def is_gone(self) -> None:
        """Wait until nothing asks."""
        boxes = self.cell.element.locator(".jp-OutputArea-stdin-item")
        support.eventually(lambda: boxes.count() == 0, 10, "the box to go")


SESSION = [
    ("(rank 0)", "p x, y", "(21, 42)"),
    ("(rank 0)", "cast 0-2 p y", "ranks 0-2: 42"),
    ("(rank 0)", "rank 3", "rank 3 at Cell In[2]"),
    ("(rank 3)", "n", "-> return z"),
    ("(rank 3)", "p z", "45"),
]


@pytest.fixture
def ranks(notebook: Notebook) -> Notebook:
    notebook.run("%mesh up --gpus 4")
    return notebook


def all_stopped(lines: list[str], place: str, source: str) -> list[int]:
    """Return the ranks that are told to be there; who stops within 0.1 s is told together."""
    found: list[int] = []
    for head, below in zip(lines[::2], lines[1::2], strict=True):
        who, _, where = head.partition(" at ")
        assert (where, below) == (place, source)
        for part in who.split()[1].split(","):
            first, _, last = part.partition("-")
            found += range(int(first), int(last or first) + 1)
    return sorted(found)


def is_told_where_all_stopped(cell: Cell) -> bool:
    """Return whether the cell has greeted and told of four ranks: output comes by its own way."""
    lines = [line.rstrip() for line in cell.text.splitlines()]
    stops = [line for line in lines if line not in (GREETING, "(rank 0)")]
    if GREETING not in lines or len(stops) % 2:
        return False
    return all_stopped(stops, "Cell In[2]:5 step()", "-> z = y + rank") == [0, 1, 2, 3]


def number_in(cell: Cell) -> int:
    """Wait for a line that is a number; where a rank stopped may come late, in the same output."""
    found = NUMBER.search(cell.shows(NUMBER).inner_text())
    assert found
    return int(found[0])


def test_a_session_at_the_prompt(ranks: Notebook) -> None:
    cell = ranks.start(STEP)
    prompt = Prompt(ranks, cell)
    prompt.asks("(rank 0)")
    support.eventually(lambda: is_told_where_all_stopped(cell), 20, "where all ranks stopped")
    for at, line, answer in SESSION:
        prompt.type(line, at)
        cell.shows(answer)  # read before the next is typed: it comes by another way than questions
    prompt.asks("(rank 3)")
    picture(ranks.page, "prompt-light")
    ranks.theme("JupyterLab Dark")
    picture(ranks.page, "prompt-dark")
    prompt.type("continue", at="(rank 3)")
    cell.finish()
    prompt.is_gone()
    lines = [line.rstrip() for line in cell.text.splitlines()]
    start = lines.index("(rank 0)  p x, y")
    assert lines[:start].count(GREETING) == 1
    assert lines[start:] == [
        "(rank 0)  p x, y",
        "(21, 42)",
        "(rank 0)  cast 0-2 p y",
        "ranks 0-2: 42",
        "(rank 0)  rank 3",
        "rank 3 at Cell In[2]:5 step()",
        "-> z = y + rank",
        "(rank 3)  n",
        "> Cell In[2](6)step()",
        "-> return z",
        "(rank 3)  p z",
        "45",
        "(rank 3)  continue",
        *(f"[{rank}] {42 + rank}" for rank in range(4)),
    ]


def test_the_stop_button_closes_the_box(ranks: Notebook) -> None:
    cell = ranks.start(STEP)
    prompt = Prompt(ranks, cell)
    prompt.asks("(rank 0)")
    ranks.page.click(STOP)
    cell.shows("KeyboardInterrupt: all ranks have stopped")
    prompt.is_gone()
    assert ranks.run("%%mesh\nrank * 0").text == "[0-3] 0"


@pytest.mark.fault
def test_a_rank_that_dies_takes_its_question_along(ranks: Notebook) -> None:
    cell = ranks.start("%%mesh\nimport os\nbreakpoint()\nx = 1")
    prompt = Prompt(ranks, cell)
    prompt.type("p os.getpid()")
    process = number_in(cell)
    prompt.asks("(rank 0)")
    os.kill(process, signal.SIGKILL)
    prompt.type("p rank", at="(rank 1)")
    prompt.type("continue", at="(rank 1)")
    cell.shows("rank 0: the process was killed by signal 9 (SIGKILL)")
    prompt.is_gone()


@pytest.mark.fault
def test_a_lost_question_holds_up_no_cell(ranks: Notebook) -> None:
    cell = ranks.start("%%mesh 3\nimport os\nbreakpoint()\nx = 1")
    prompt = Prompt(ranks, cell)
    prompt.type("p os.getpid()", at="(rank 3)")
    process = number_in(cell)
    prompt.asks("(rank 3)")
    os.kill(process, signal.SIGKILL)
    cell.shows("rank 3: the process was killed by signal 9 (SIGKILL)")
    prompt.is_gone()
    assert ranks.run("%%mesh 1-2\nrank * 0").text == "[1-2] 0"


def test_input_on_ranks_asks_in_the_cell_rank_by_rank(ranks: Notebook) -> None:
    cell = ranks.start("%%mesh 1-2\nname = input('name? ')\nprint('hello', name)")
    box = Prompt(ranks, cell)
    questions = ["rank 1: name?", "rank 2: name?"]
    first = box.asks(*questions)  # of two that ask together the lower; a busy machine parts them
    questions.remove(first)
    box.type("Ada", at=first)
    box.asks(*questions)
    for theme in ("Dark", "Light"):
        ranks.theme(f"JupyterLab {theme}")
        picture(ranks.page, f"input-{theme.lower()}")
    box.click()
    box.type("Grace", at=questions[0])
    cell.finish().shows(f"[{questions[0][5]}] hello Grace")
    assert f"[{first[5]}] hello Ada" in cell.text
    box.is_gone()
