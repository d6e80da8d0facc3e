"""How the states of bars leave a rank."""

import threading

import numpy as np
import pytest

from monarch_nb.worker.output.progress import Reporter


class Bar:
    """As far as one of tqdm is looked at."""


@pytest.fixture
def reporter(monkeypatch):
    """One whose own thread does nothing: it would outlive the test."""
    monkeypatch.setattr(Reporter, "wake", lambda _: None)
    return Reporter(lambda: 1, lambda *_: None)


def test_a_cell_does_not_end_while_its_bars_are_on_their_way(reporter, monkeypatch):
    sent, has_begun, may_end = [], threading.Event(), threading.Event()

    def send(_tag, states):
        has_begun.set()
        assert may_end.wait(10)
        sent.extend(states)

    monkeypatch.setattr(reporter, "_send", send)
    reporter.report(1, {"id": 1})
    other = threading.Thread(target=reporter.drain)
    other.start()
    assert has_begun.wait(10)
    threading.Timer(0.05, may_end.set).start()
    reporter.drain()
    assert [state["id"] for state in sent] == [1]
    other.join()


def test_a_count_that_is_no_number_harms_nobody(reporter):
    bar = Bar()
    bar.n, bar._monarch_told = np.zeros(3), np.ones(3)
    reporter.living[1] = bar
    reporter.drain()
