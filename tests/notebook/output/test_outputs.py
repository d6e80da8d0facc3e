"""Output of ranks on its way to a cell: order, folding, labels, at most ten messages a second."""

import threading
import time
import weakref
from typing import Any

import pytest

from monarch_nb.control.output.routing import OutputEvent
from monarch_nb.core.text.stream_folder import StreamFolder
from monarch_nb.notebook.output.cell_output import FLUSH_S, CellOutput
from monarch_nb.notebook.output.flusher import Flusher
from monarch_nb.notebook.output.mime import composed, labelled, results
from tests import support


class Recorder:
    """A sink that remembers."""

    redraws = True

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []

    def stream(self, name: str, text: str) -> None:
        self.sent.append((name, text))

    def display(self, kind: str, content: Any) -> None:
        self.sent.append((kind, dict(content["data"]) if "data" in content else dict(content)))

    @property
    def text(self) -> str:
        return "".join(text for name, text in self.sent if name == "stdout")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def said(
    rank: int, text: str, *, stream: str = "stdout", size: int = 4, content: Any = None
) -> Any:
    return OutputEvent(1, rank, "m", size, stream, text, content or {})


def shown(rank: int, data: dict[str, str], *, size: int = 4, kind: str = "display_data") -> Any:
    content = {"type": kind, "data": data, "metadata": {}}
    return said(rank, "", stream="display", size=size, content=content)


@pytest.fixture
def sink() -> Recorder:
    return Recorder()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def output(sink, clock) -> CellOutput:
    made = CellOutput(sink, clock)
    made.expect("m", range(4), 4)
    return made


def test_equal_lines_go_out_at_once_when_all_have_said_them(output, sink, clock):
    for rank in range(4):
        due = output.add(said(rank, "hello\n"))
    assert due <= clock.now
    output.flush()
    assert sink.sent == [("stdout", "[0-3] hello\n")]


def test_a_line_of_one_rank_waits_a_little_for_the_others(output, sink, clock):
    due = output.add(said(2, "alone\n"))
    assert clock.now < due < clock.now + 0.2
    output.flush()
    assert sink.sent == []
    clock.now = due
    output.flush()
    assert sink.sent == [("stdout", "[2] alone\n")]


def test_ranks_that_have_ended_are_not_waited_for(output, sink):
    output.finish("m", [0, 1, 3])
    output.add(said(2, "alone\n"))
    output.flush()
    assert sink.sent == [("stdout", "[2] alone\n")]


def test_ten_messages_a_second_at_most(output, sink, clock):
    output.finish("m", [1, 2, 3])
    start = clock.now
    for step in range(1000):
        clock.now = start + step / 1000
        output.add(said(0, f"{step}\n"))
        output.flush()
    assert len(sink.sent) <= 11
    output.end()
    assert sink.text == "".join(f"[0] {step}\n" for step in range(1000))


def test_the_first_text_after_a_pause_goes_out_at_once(output, sink, clock):
    output.finish("m", [1, 2, 3])
    output.add(said(0, "a\n"))
    assert output.flush() is None
    clock.now += FLUSH_S
    output.add(said(0, "b\n"))
    output.flush()
    assert [text for _, text in sink.sent] == ["[0] a\n", "[0] b\n"]


def test_the_end_of_the_cell_sends_everything(output, sink):
    output.add(said(0, "no newline"))
    output.add(said(1, "other\n"))
    output.end()
    assert sorted(sink.text.splitlines()) == ["[0] no newline", "[1] other"]


def test_what_comes_after_the_end_is_shown_too(output, sink, clock):
    output.finish("m", range(4))
    output.end()
    output.add(said(3, "late\n"))
    clock.now += 1
    output.flush()
    assert sink.sent == [("stdout", "[3] late\n")]


def test_stdout_and_stderr_keep_their_order(output, sink):
    output.finish("m", [1, 2, 3])
    for stream, text in [
        ("stdout", "1\n"),
        ("stdout", "2\n"),
        ("stderr", "3\n"),
        ("stdout", "4\n"),
    ]:
        output.add(said(0, text, stream=stream))
    output.end()
    assert sink.sent == [
        ("stdout", "[0] 1\n[0] 2\n"),
        ("stderr", "[0] 3\n"),
        ("stdout", "[0] 4\n"),
    ]


def test_one_rank_has_no_labels(sink, clock):
    output = CellOutput(sink, clock)
    output.add(said(0, "plain\n", size=1))
    output.add(shown(0, {"text/plain": "x"}, size=1))
    output.end()
    assert sink.sent == [("stdout", "plain\n"), ("display_data", {"text/plain": "x"})]


def test_equal_displays_of_all_ranks_are_one(output, sink):
    for rank in range(4):
        output.add(said(rank, "first\n"))
        output.add(shown(rank, {"text/plain": "<x>"}))
    output.end()
    assert sink.sent == [
        ("stdout", "[0-3] first\n"),
        ("display_data", {"text/plain": "[0-3] <x>"}),
    ]


def test_a_figure_keeps_its_bytes_and_gets_a_header(output, sink):
    figure = {"image/png": "aGk=", "text/plain": "<Figure>"}
    output.add(shown(2, figure))
    output.end()
    (_, header), (_, image) = sink.sent
    assert header["text/plain"] == "[2]"
    assert "[2]" in header["text/html"]
    assert image == figure


def test_html_and_labels_are_put_together():
    [one] = labelled("[0]", {"data": {"text/html": "<b>x</b>", "text/plain": "x"}, "metadata": {}})
    assert one["data"]["text/html"].endswith("[0]</div><b>x</b>")
    assert one["data"]["text/plain"] == "[0] x"


def test_text_is_no_markup_in_a_page():
    text = {"data": {"text/plain": "<script>x()</script>"}, "metadata": {}}
    page = {"data": {"text/html": "<b>x</b>", "text/plain": "x"}, "metadata": {}}
    [one] = composed([("[0]", [text]), ("<i>", [page])])
    assert "&lt;script&gt;x()&lt;/script&gt;" in one["data"]["text/html"]
    assert "<script>" not in one["data"]["text/html"]
    assert "<i>" not in one["data"]["text/html"]
    assert one["data"]["text/html"].endswith("<b>x</b></div>")


def test_results_of_ranks_are_folded_and_put_together():
    def plain(text: str) -> dict[str, Any]:
        return {"data": {"text/plain": text}, "metadata": {}}

    shown = list(results({0: plain("1"), 1: plain("2"), 2: plain("1"), 3: plain("a\nb")}, 4))
    assert [one["data"] for one in shown] == [{"text/plain": "[0,2] 1\n[1] 2\n[3]\na\nb"}]


def test_the_flusher_sends_what_is_due_and_ends():
    sink = Recorder()
    output = CellOutput(sink)
    flusher = Flusher()
    flusher.due(output, output.add(said(0, "a\n")))
    flusher.due(output, output.add(said(1, "b\n")))
    support.eventually(lambda: "b" in sink.text and "a" in sink.text)
    flusher.close()


class Due:
    """Something to flush, once."""

    def __init__(self) -> None:
        self.flushed = threading.Event()

    def flush(self) -> None:
        self.flushed.set()


def test_what_is_due_in_a_thousand_years_holds_nothing_up():
    flusher = Flusher()
    flusher.due(Due(), time.monotonic() + 1e12)
    for soon in (Due(), Due()):
        flusher.due(soon, time.monotonic() + 0.02)
        assert soon.flushed.wait(5)
    flusher.close()


def test_a_result_that_is_no_text_is_shown_as_one():
    odd = {"data": {"text/plain": 5}, "metadata": {}}
    assert [one["data"] for one in results({0: odd}, 1)] == [{"text/plain": "5"}]


def test_a_cell_that_has_ended_keeps_no_tables_of_its_lines(output, sink, clock, monkeypatch):
    made = weakref.WeakSet()
    monkeypatch.setattr(StreamFolder, "__init__", remembering(made, StreamFolder.__init__))
    output.expect("other", [0], 4)
    output.add(said(0, "a\n"))
    output.end()
    assert len(made) == 1  # it runs on
    output.conclude("other", {})
    output.end()
    assert len(made) == 0
    output.conclude("m", {})
    output.add(said(1, "late\n"))
    clock.now += 1
    output.flush()
    assert sink.text == "[0] a\n[1] late\n"


def remembering(made: Any, original: Any) -> Any:
    def init(self: Any, *args: Any, **options: Any) -> None:
        made.add(self)
        original(self, *args, **options)

    return init


def test_a_flood_costs_time_and_messages_in_proportion():
    sink = Recorder()
    output = CellOutput(sink)
    output.expect("m", range(4), 4)
    line = "x" * 50 + "\n"
    for _ in range(250):
        for rank in range(4):
            output.add(said(rank, line * 100))
    output.end()
    assert len(sink.sent) == 1
    assert len(sink.text) < 1_000_000  # the throttle says how many lines it has hidden
    assert "lines hidden; all of it: %mesh logs ...\n" in sink.text
    output.expect("n", range(4), 4, number=7)
    output.add(OutputEvent(1, 0, "n", 4, "stdout", line * 20_000))
    output.end()
    assert "hidden; all of it: %mesh logs --cell 7 ...\n" in sink.text
