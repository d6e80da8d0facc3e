"""Prompts of ranks in a page: opened, typed at, completed, taken over, left."""

import pytest

from tests.kernel.front_end import FrontEnd
from tests.notebook.prompts import Prompt
from tests.notebook.view.fake_browser import check
from tests.notebook.view.test_real_ranks import Watcher

FIRST_CELLS = ["%mesh up --gpus 2"]
STOPS = """%%mesh
def step(x):
    y = x * 2
    breakpoint()
    return y + rank
step(21)"""
STEPS = """%%mesh
def step(x):
    return x + rank
step(21)"""
THREADS = (
    "import threading; print(sum(t.name == 'monarch-live-debug' for t in threading.enumerate()))"
)


class Terminal:
    """The small terminal of a page."""

    def __init__(self, page, rank, failed=False):
        self.page, self.number, self.read = page, page.key + 1, 0
        self.opened = page.ask(
            "debug", type="do", session=self.number, mesh="mesh0", rank=rank, failed=failed
        )

    def events(self):
        found = [m for m in self.page.messages("session") if m["session"] == self.number]
        return [check(each) for each in found]

    @property
    def text(self):
        return "".join(each["text"] for each in self.events())

    def type(self, line):
        self.read = len(self.text)
        return self.page.ask("line", type="do", session=self.number, line=line)

    def sees(self, text):
        self.page.kernel.until(lambda: text in self.text[self.read :], 10.0)

    def asks(self, prompt):
        self.page.kernel.until(lambda: self.events() and self.events()[-1]["prompt"] == prompt)

    def is_over(self):
        self.page.kernel.until(lambda: any(each["over"] for each in self.events()))

    def leave(self):
        self.page.ask("leave", type="do", session=self.number)
        self.is_over()


@pytest.fixture
def page(kernel):
    made = Watcher(kernel)
    yield made
    made.close()
    kernel.until(lambda: kernel.ok(THREADS).text().split() == ["0"])


def test_a_page_types_at_a_rank_while_the_cell_blocks(kernel, page):
    with Prompt(kernel, STOPS) as prompt:
        assert prompt.at() == "(rank 0) "
        page.until(lambda: page.mesh["rows"][1][0] == "paused")
        place = page.mesh["rows"][1][1]
        assert place.startswith("paused at Cell In["), place
        assert place.endswith(":5 step()"), place
        assert page.ask("rank", mesh="mesh0", rank=1)["what"] == place
        terminal = Terminal(page, 1)
        assert terminal.opened == {"said": ""}
        terminal.asks("(rank 1) ")
        terminal.sees("at Cell In[")
        terminal.type("p x, y + rank")
        terminal.sees("(21, 43)\n")
        assert "step" in page.ask("words", session=terminal.number, line="st")["words"]
        terminal.type("rank 0")  # the cell's own: it is told
        prompt.sees("the prompt was taken over by the mesh view")
        terminal.type("continue")
        terminal.asks("(running) ")
        terminal.leave()
        assert "this prompt is closed" in terminal.type("p 1")
    assert prompt.cell.status == "ok"


def test_a_page_that_goes_leaves_ranks_stopped_and_the_next_one_takes_over(kernel, page):
    cell = kernel.start(STOPS, allow_stdin=True)
    page.until(lambda: page.mesh["rows"][0][0] == "paused")
    gone = Watcher(kernel)
    lost = Terminal(gone, 0)
    lost.asks("(rank 0) ")
    gone.close()
    terminal = Terminal(page, 0)
    terminal.asks("(rank 0) ")
    terminal.type("cast all p y")
    terminal.sees("ranks 0-1: 42\n")
    terminal.type("continue")
    kernel.finish(cell)
    while kernel.is_asked():
        kernel.asked()
    terminal.leave()


def test_failed_frames_are_opened_and_let_go(kernel, page):
    kernel.run("%%mesh 1\ndef load(n):\n    return 1 / n\nload(0)")
    assert "rank 0 keeps no failure" in Terminal(page, 0, failed=True).opened
    terminal = Terminal(page, 1, failed=True)
    terminal.sees("where it failed")
    terminal.type("p n")
    terminal.sees("0\n")
    terminal.leave()
    again = Terminal(page, 1, failed=True)
    again.type("continue")
    again.is_over()


def test_what_is_not_stopped_is_said(kernel, page):
    assert (
        "rank 1 is not stopped at a prompt of pdb. no rank is stopped" in Terminal(page, 1).opened
    )
    assert "no rank 7" in Terminal(page, 7).opened


def test_the_visual_debugger_is_chosen(kernel, page):
    def choose(**args):
        return page.ask("debugger", type="do", **args)

    assert page.ask("debugger")["whom"] == "controller"
    said = choose(whom="ranks", mesh="mesh0", ranks="1")["said"]
    assert "the visual debugger is for rank 1 of mesh0" in said
    assert page.ask("debugger") == {"whom": "ranks", "mesh": "mesh0", "ranks": "1"}
    assert "nobody" in choose(whom="off")["said"]
    assert "for ranks 0-1 of mesh0" in choose(whom="ranks", mesh="mesh0", ranks=None)["said"]
    assert "ranks of which mesh" in choose(whom="ranks")
    assert "the controller" in choose(whom="controller")["said"]


def test_a_rank_that_the_visual_debugger_has_stopped_is_shown_there(kernel, page):
    kernel.ok("%mesh debugger all")
    front = FrontEnd(kernel)
    front.on()
    front.gutter(STEPS, 3)
    cell = front.run(STEPS)
    front.event("stopped")  # of the first, whichever that is; the other is not shown
    kernel.until(lambda: len(front.ok("debugInfo")["stoppedThreads"]) == 2)
    shown = "rank 1 is stopped by JupyterLab's debugger, which shows it"
    assert shown in Terminal(page, 1).opened
    assert front.rank_of(front.event("stopped")) == "rank 1 / MainThread"
    front.resume()
    kernel.finish(cell)
    front.off()
    kernel.ok("%mesh debugger controller")


def test_a_post_mortem_in_a_page_writes_nothing_into_the_notebook(kernel, page):
    cell = kernel.run("%%mesh 1\ndef load(n):\n    return 1 / n\nload(0)")
    before = cell.shown
    terminal = Terminal(page, 1, failed=True)
    terminal.sees("where it failed")
    kernel.settle(0.3)
    assert cell.shown == before
    terminal.leave()
    assert "paused" not in kernel.ok("%mesh status").shown
