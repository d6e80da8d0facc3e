"""How what a rank logs leaves it: seldom, and not faster than it is taken."""

import pytest

from monarch_nb.services.metrics import Recorder
from monarch_nb.worker.output.metrics import MAX_UNANSWERED, MetricsPump


@pytest.fixture
def sent() -> list:
    return []


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def pump(sent, recorder, monkeypatch) -> MetricsPump:
    """One whose own thread does nothing: it would outlive the test."""
    monkeypatch.setattr(MetricsPump, "wake", lambda _: None)
    return MetricsPump(recorder, lambda tag, content: sent.append((tag, content)), 4)


def test_what_has_gathered_is_one_message(pump, recorder, sent):
    for step, value in enumerate((0.5, float("nan"), 2.0)):
        recorder.add("loss", step, value)
    pump.drain()
    pump.drain()
    points = {"loss": [[0, 0.5], [1, None], [2, 2.0]]}
    assert sent == [(0, {"points": points, "run": [0, "", 1]})]


def test_while_nothing_is_taken_nothing_is_sent_and_what_gathers_stays_small(pump, recorder, sent):
    for step in range(100_000):
        recorder.add("loss", step, float(step == 77_777))
        if step % 1_000 == 0:
            pump.drain()
    assert len(sent) == MAX_UNANSWERED
    for _ in range(MAX_UNANSWERED):
        pump.on_taken()
    pump.drain()
    points = sent[-1][1]["points"]["loss"]
    assert len(points) <= 256
    assert max(high for *_, high, _ in points) == 1.0
    assert points[-1][0] == 99_999


def test_names_that_are_too_many_are_told(pump, recorder, sent):
    for number in range(40):
        recorder.add(f"name{number}", 0, 1.0)
    pump.drain()
    told = [content["left_out"] for _, content in sent if "left_out" in content]
    assert told == [[8, "name32"]]
