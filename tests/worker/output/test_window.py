"""How much a rank may print ahead of the controller, by a clock of the test."""

from monarch_nb.worker.output.window import STUCK_S, WINDOW_CHARS, Window


def test_it_is_stuck_once_it_was_full_for_some_seconds():
    now = 0.0
    window = Window(lambda: now)
    window.send(1)
    now = 60.0  # the controller need not tell of every line
    window.send(WINDOW_CHARS)
    assert window.is_full
    assert not window.is_stuck
    now += STUCK_S + 0.1
    assert window.is_stuck
    window.take(1)
    assert window.is_full
    assert not window.is_stuck
    window.take(WINDOW_CHARS // 16)
    assert not window.is_full
