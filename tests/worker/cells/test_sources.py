"""The text of cells of the controller, on a rank: asked for once, at the first look."""

import inspect
import linecache
import sys
import threading
import types

import pytest

from monarch_nb.control.client import text_of_cell
from monarch_nb.core.wire import frames
from monarch_nb.core.wire.messages import codec
from monarch_nb.core.wire.messages.cells import SourceText
from monarch_nb.worker.cells import sources

CELL = "/tmp/ipykernel_7/123.py"


class Links:
    receiving = forked = False

    def is_receiving(self):
        return self.receiving

    def flush(self):
        """Nothing is held."""


class Controller:
    """A process as far as a rank asks it for sources."""

    controller = 1

    def __init__(self, texts):
        self.texts, self.asked, self.links = texts, [], Links()
        self.waiting = {}

    def new_port(self):
        return 256 + len(self.asked)

    def look_for_dead(self, _):
        """Nobody is gone."""

    def control_all(self, processes, message, *, reply):
        [process] = processes
        self.asked.append((process, codec.verb_of(type(message)), message.filename))
        if message.filename in self.texts:
            header = (frames.CONTROL, 0, 0, 0, 0, reply, process, 0)
            text = codec.encode_answer(SourceText(self.texts[message.filename]))
            answer = frames.Message(header, text)
            threading.Thread(target=self.waiting[reply].deliver, args=(answer,)).start()


@pytest.fixture
def controller(monkeypatch):
    monkeypatch.setattr(linecache, "cache", {})
    monkeypatch.setattr(linecache, "updatecache", linecache.updatecache)
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    monkeypatch.setattr(sources, "WAIT_S", 0.05)
    made = Controller(
        {CELL: "a = 1\nb = 2", "<mesh cell 3>": "c = 3\n", "<ipython-input-1-x>": None}
    )
    sources.install(made)
    return made


def test_a_cell_is_asked_for_once(controller):
    assert linecache.getline(CELL, 2) == "b = 2"
    assert linecache.getlines(CELL) == ["a = 1\n", "b = 2"]
    linecache.checkcache()
    assert linecache.getline("<mesh cell 3>", 1) == "c = 3\n"
    assert controller.asked == [(1, "source", CELL), (1, "source", "<mesh cell 3>")]


@pytest.mark.parametrize("name", ["<ipython-input-1-x>", "/tmp/ipykernel_7/never_answered.py"])
def test_one_that_is_not_known_is_not_asked_for_again(controller, name):
    for _ in range(3):
        assert linecache.getlines(name) == []
    assert len(controller.asked) == 1


@pytest.mark.parametrize("name", ["<string>", "<frozen os>", "/no/such/file.py", "", "<stdin>"])
def test_what_is_no_cell_is_not_asked_for(controller, name):
    assert linecache.getlines(name) == []
    assert controller.asked == []


def test_files_are_read_here(controller):
    assert linecache.getline(__file__, 1).startswith('"""The text of cells')
    assert controller.asked == []


def test_the_thread_that_would_get_the_answer_does_not_ask(controller):
    controller.links.receiving = True
    assert linecache.getlines(CELL) == []
    controller.links.receiving = False
    assert linecache.getline(CELL, 1) == "a = 1\n"


def test_inspect_finds_functions_of_cells(controller):
    controller.texts[CELL] = "\n\ndef f():\n    return 'of a cell'\n"
    namespace = {"__name__": "__main__"}
    exec(compile(controller.texts[CELL], CELL, "exec"), namespace)
    assert inspect.getsource(namespace["f"]) == "def f():\n    return 'of a cell'\n"


def test_the_controller_tells_cells_and_no_files(monkeypatch):
    monkeypatch.setattr(linecache, "cache", {CELL: (3, None, ["a\n", "b"], CELL)})
    linecache.getlines(__file__)
    assert __file__ in linecache.cache
    assert (text_of_cell(CELL), text_of_cell(__file__), text_of_cell("/etc/passwd")) == (
        "a\nb",
        None,
        None,
    )


def test_a_forked_child_asks_nobody(controller):
    controller.links.forked = True
    assert linecache.getlines(CELL) == []
    assert controller.asked == []
