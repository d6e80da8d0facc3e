"""The order in which a rank takes turns, and what a stop does to a cell at any moment."""

import json
import queue
from types import SimpleNamespace

import pytest

from monarch_nb.actors.post_mortem import LastFailures
from monarch_nb.actors.sync_driver import Task
from monarch_nb.core.shape.extent import Extent, Point
from monarch_nb.core.wire.frames import HEADER, Message
from monarch_nb.core.wire.messages.cells import CellOutcome, InterruptCell, RunCell
from monarch_nb.process.context import here
from monarch_nb.process.futures.future import waiting
from monarch_nb.process.payloads import Payload
from monarch_nb.worker.cells import queue as cell_queue
from monarch_nb.worker.cells.interrupts import InterruptGate
from monarch_nb.worker.cells.unseen import UnseenCells

CONTROLLER = 7


class Shell:
    """Cells here are names of what the test wants to happen in them."""

    def __init__(self, *_):
        self.does = {}
        self.ran = []
        self.gate = InterruptGate()
        self.expect, self.rest = self.gate.expect, self.gate.close

    def run(self, code, *, filename, first_line, publish):
        try:
            self.gate.open()
            self.ran.append(code)
            self.does.get(code, lambda: None)()
        except KeyboardInterrupt:
            return CellOutcome("interrupted")
        finally:
            self.gate.close()
        return CellOutcome("ok")


class Rank:
    """A cell queue, and the main loop that serves it."""

    def __init__(self):
        self.said = []
        self.struck = 0
        hosting = SimpleNamespace(
            board=None, flush_output=None, interrupt_main=self.strike, failed=LastFailures()
        )
        links = SimpleNamespace(forked=False)
        proc = SimpleNamespace(links=links, send=self.send, encode_bytes=Payload)
        root = SimpleNamespace(rank=Point(0, Extent(["gpus"], [1])))
        runtime = SimpleNamespace(proc=proc, hosting=hosting, root=root)
        self.work = queue.SimpleQueue()
        quiet = SimpleNamespace(is_on_its_way=lambda: False)
        controller = SimpleNamespace(keeps=False)
        never = SimpleNamespace(begin=None, end=lambda: None)
        self.cells = cell_queue.CellQueue(
            runtime, self.work, {}, controller, UnseenCells(), quiet, None, never
        )
        self.shell = self.cells.shell

    def strike(self):
        self.struck += 1
        self.shell.gate.interrupt()  # a handler of SIGINT does that, wherever the main thread is

    def send(self, _process, _kind, port, parcel, **_):
        self.said.append((port, json.loads(parcel.payload)["status"]))

    def cell(self, name, port):
        fields = HEADER.unpack(HEADER.pack(0, 0, 0, 0, 0, 0, CONTROLLER, port))
        body = RunCell(name, name)
        self.cells.on_cell(body, Message(fields, b""))

    def stop(self, port):
        fields = HEADER.unpack(HEADER.pack(0, 0, 0, 0, 0, 0, CONTROLLER, 0))
        self.cells.on_interrupt(InterruptCell(port), Message(fields, b""))

    def serve(self):
        while not self.work.empty():
            item = self.work.get()
            item[0].step(item[1])


@pytest.fixture
def rank(monkeypatch):
    monkeypatch.setattr(cell_queue, "CellShell", Shell)
    outer = here.get()
    yield Rank()
    here.set(outer)


def test_cells_that_come_while_one_waits_for_an_answer_keep_their_order(rank):
    answers = []

    def wait():
        assert waiting.pump(lambda: bool(answers), lambda _: None, None)

    def answer():
        answers.append(1)
        rank.cell("later", 3)

    rank.shell.does["waits"] = wait
    rank.cell("waits", 1)
    rank.cell("early", 2)
    rank.work.put((Task(answer), None))
    rank.serve()
    assert rank.shell.ran == ["waits", "early", "later"]


def test_cells_behind_one_whose_wait_is_interrupted_are_run(rank):
    def press():
        raise KeyboardInterrupt

    rank.shell.does["waits"] = lambda: waiting.pump(lambda: False, lambda _: None, None)
    rank.cell("waits", 1)
    rank.cell("behind", 2)
    rank.work.put((Task(press), None))
    rank.serve()
    assert rank.said == [(1, "interrupted"), (2, "ok")]


def test_a_cell_that_waits_for_its_turn_is_dropped_at_once_and_nothing_is_struck(rank):
    rank.shell.does["runs"] = lambda: rank.stop(2)
    rank.cell("runs", 1)
    rank.cell("waits", 2)
    rank.serve()
    assert rank.said == [(2, "stopping"), (2, "cancelled"), (1, "ok")]
    assert rank.shell.ran == ["runs"]
    assert rank.struck == 0


def test_a_stop_that_comes_as_the_turn_begins_reaches_the_cell(rank):
    rank.cells.enter = lambda *_: rank.stop(1)
    rank.cell("begins", 1)
    rank.serve()
    assert rank.said == [(1, "stopping"), (1, "interrupted")]
    assert rank.shell.ran == []


def test_a_stop_that_comes_as_the_turn_ends_is_not_for_the_next(rank):
    rank.cells.leave = lambda **_: rank.stop(1)
    rank.cell("ends", 1)
    rank.cell("next", 2)
    rank.serve()
    assert rank.said == [(1, "stopping"), (1, "ok"), (1, "stopping"), (2, "ok")]


def test_stops_that_come_too_late_are_forgotten(rank):
    for port in range(1, 100):
        rank.cell("a", port)
        rank.serve()
        rank.stop(port)
    rank.cell("b", 100)
    rank.serve()
    assert rank.shell.ran[-1] == "b"
    assert rank.struck == 0
    kept = [value for value in vars(rank.cells).values() if isinstance(value, set | dict)]
    assert not any(kept)
