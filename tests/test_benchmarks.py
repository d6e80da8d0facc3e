"""The record of a benchmark run: an interrupted run is no loss, and a table can be made again. And
what is measured of a kernel that drops cells or does not stop: a figure, or a text that says why.
"""

import pytest
from jupyter_core.utils import ensure_event_loop

from benchmarks import cells, measures, outputs, record, report, work
from benchmarks.catalog import MEASURES
from benchmarks.measures import Scale
from benchmarks.runner import Outcome
from benchmarks.systems import peers


@pytest.fixture(scope="module", autouse=True)
def event_loop() -> None:
    ensure_event_loop()  # jupyter_client keeps one for the thread; it is no leak of the first test


def test_a_run_reads_the_same_after_it_was_kept(tmp_path):
    run = report.Run(
        systems=["monarch_nb", "raw", "ray"],
        measures=list(MEASURES[:3]),
        versions={"peers": {"ray": "2.0"}},
        remarks=["a remark"],
    )
    run.outcomes["monarch_nb", "call"] = [Outcome({"time": 1e-4}), Outcome(error="it hung", left=2)]
    run.outcomes["raw", "call"] = [Outcome({"time": 5e-5})]
    run.outcomes["ray", "flight"] = [Outcome({"rate": "no figure today"})]
    path = tmp_path / "results.json"
    record.save([run], path)
    text = report.text(record.load(path))
    assert text == report.text([run])
    assert "| 100 us; 1 of 3 rounds failed [1] | 50 us (0.5 x) |" in text
    assert "- [1] it hung" in text
    assert [each.name for each in tmp_path.iterdir()] == ["results.json"]


def test_a_run_that_is_added_takes_the_place_of_what_it_measures_again():
    call, flight = MEASURES[:2]
    before = report.Run(["monarch_nb", "raw"], [call, flight], {})
    before.outcomes["monarch_nb", "call"] = [Outcome({"time": 1e-4})]
    before.outcomes["monarch_nb", "flight"] = [Outcome({"rate": 40_000.0})]
    again = report.Run(["monarch_nb", "ray"], [call], {}, remarks=["a quiet hour"])
    again.outcomes["monarch_nb", "call"] = [Outcome({"time": 2e-4})]
    again.outcomes["ray", "call"] = [Outcome({"time": 1e-3})]
    runs = report.with_run(again, [before])
    text = report.text(runs)
    assert "| work | monarch_nb | raw | ray | target |" in text
    assert "| 200 us | not measured | 1 ms (5 x) |" in text
    assert "| 40 000/s | - | not measured |" in text
    assert "before the run: `call`\n" in text
    assert "  - a quiet hour" in text
    assert report.with_run(again, runs) == [runs[0], again]


def test_a_measure_of_notebooks_is_asked_only_of_systems_that_have_one():
    asked = {
        name: {peer.name for peer in peers() if peer.offers(name)}
        for name in ("cell", "print", "paced", "interrupt", "tab", "flood", "silent", "board")
    }
    both, nobody = {"ipyparallel", "nbdistributed"}, set()
    assert list(asked.values()) == [both, both, both, both, nobody, nobody, nobody, nobody]


def test_text_that_is_displayed_is_the_output_of_a_cell_too():
    """So ipyparallel shows what ranks print; the measure waited for a stream until it gave up."""
    displays = "def print(text, flush=True): display({'text/plain': text}, raw=True)"
    figures = outputs.interrupt(_notebook("1+1", r"\b2\b", displays), "", Scale.quick())
    assert figures["dropped"] == 0
    assert 0 < figures["prompt"] < figures["free"] < outputs.STOP_S


@pytest.mark.slow
def test_a_print_is_there_when_that_of_the_last_rank_is():
    """Ranks of ipyparallel come one by one: the first was there before the last had printed."""
    in_turn = "def print(text):\n    for _ in 'ab': display(text); time.sleep(0.2)"
    figures = outputs.printed(_notebook("1+1", r"\b2\b", in_turn), "", Scale.quick())
    assert float(figures["time"]) > 0.2


def test_a_cell_that_is_dropped_after_a_stop_is_sent_again():
    every_second_runs = "runs = not globals().get('runs', True)\nif runs: print('it ran')"
    figures = outputs.interrupt(_notebook(every_second_runs, "it ran"), "", Scale.quick())
    assert figures["dropped"] == outputs.STOPS


@pytest.mark.slow
def test_a_prompt_that_never_comes_back_is_told_in_words(monkeypatch):
    monkeypatch.setattr(outputs, "STOP_S", 0.5)
    deaf = "import signal\n_ = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})"
    figures = outputs.interrupt(_notebook("1+1", r"\b2\b", deaf), "", Scale.quick())
    assert figures == dict.fromkeys(("prompt", "free", "dropped"), "not within 0.5 s")


@pytest.mark.slow
def test_ranks_that_a_stop_ends_are_told_of(monkeypatch):
    monkeypatch.setattr(outputs, "STOP_S", 3.0)
    child = "import subprocess\nrank = subprocess.Popen(['sleep', '60'])"
    cell = "print('answered' if rank.poll() is None else '')"
    figures = outputs.interrupt(_notebook(cell, "answered", child), "", Scale.quick())
    assert 0 < figures["prompt"] < 3.0
    assert figures["free"] == "not within 3 s, 1 of 2 processes had ended"


def _notebook(cell: str, shows: str, *setup: str) -> cells.Notebook:
    return cells.Notebook(kernel="python3", setup=setup, cell=cell, shows=shows)


class Here:
    """Ranks that are this process; it notes what they are asked."""

    def __init__(self, asked):
        self.asked = asked

    def each(self, method):
        return lambda *args: [self.one(method)(*args)]

    def one(self, method):
        return lambda *args: [self.asked.append(method), getattr(work, method)(*args)][1]

    def down(self):
        """Nothing."""


def test_a_result_is_made_before_it_is_moved(monkeypatch):
    """The first touch of 256 MB took three quarters of the time of a first result."""
    monkeypatch.setattr(measures, "ARRAY_FLOATS", 1024)
    asked = []
    figures = measures.array_result(lambda _: Here(asked), Scale.quick())
    assert asked[:3] == ["echo", "hold", "fill"]
    assert float(figures["cold"]) > 0
