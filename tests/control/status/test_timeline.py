"""A letter for each rank and second: exact where somebody looked, a point where nobody did."""

import hypothesis
import pytest
from hypothesis import strategies as st

from monarch_nb.control.status.timeline import KEPT, Sample, Timeline


def idle(busy_s: float, since: float = 0.0, seen_at: float = 0.0, process: int = 1) -> Sample:
    return Sample(process, "idle", since, busy_s, False, seen_at)


def busy(busy_s: float, since: float, seen_at: float = 0.0, state: str = "busy") -> Sample:
    return Sample(1, state, since, busy_s, True, seen_at)


def after(*samples: Sample) -> str:
    """The row of one rank that was seen so at second 1, 2, 3 ..."""
    timeline = Timeline(1)
    for second, sample in enumerate(samples, 1):
        timeline.feed(second, float(second), [sample])
    assert timeline.seconds == len(samples)
    [strip] = timeline.strips()
    return strip


@pytest.mark.parametrize("samples, strip", [
    ([idle(0), idle(0), idle(0)], ".00"),
    ([busy(0, 0.5), busy(0, 0.5), busy(0, 0.5)], ".99"),
    ([idle(0), busy(0, 1.5), busy(0, 1.5), idle(1.75, 3.25)], ".592"),
    ([idle(7.0), idle(7.35), idle(7.4)], ".30"),
    ([idle(0), Sample(1, "collective", 1.2, 0.2, True, 0.0)], ".c"),
    ([idle(0), Sample(1, "collective", 1.8, 0.3, True, 0.0)], ".4"),  # so soon after it began
    ([Sample(1, "starting", 0, 0, False, 0), idle(0)], "s0"),
    ([Sample(1, state, 0, 0, False, 0) for state in
      ("paused", "silent", "exited", "unreachable", "stopped")], "pzxxx"),
])  # fmt: skip
def test_letters(samples, strip):
    assert after(*samples) == strip


def test_a_rank_with_another_process_goes_on_in_its_row():
    assert after(idle(50.0), idle(50.5), idle(0.0, process=2), idle(0.3, process=2)) == ".5.3"


def test_shares_are_exact_though_the_rank_is_seen_in_between():
    """Short calls fill a quarter of its time; 0.4 s before a second ends it is in one, or not."""
    samples = []
    for second in range(1, 6):
        at = second - 0.4
        in_call = second % 2 == 0
        found = busy(at / 4 - 0.001, at - 0.001, at) if in_call else idle(at / 4, at, at)
        samples.append(found)
    assert after(*samples)[2:] == "222"


def test_seconds_at_which_nobody_looked_share_what_was_done_in_all_of_them():
    timeline = Timeline(2, seconds=10)
    timeline.feed(13, 13.0, [idle(0), idle(0)])
    timeline.feed(14, 14.0, [idle(0), busy(0, 13.5)])
    timeline.feed(18, 18.0, [idle(2.0), busy(0, 13.5)])
    assert timeline.strips() == ["...05555", "...59999"]
    assert timeline.letters(13) == "05"
    assert timeline.letters(17) == "59"
    assert timeline.letters(18) == timeline.letters(9) == timeline.letters(-1) == ".."


def test_what_goes_on_since_then_is_told_from_then():
    dead = Sample(1, "exited", 6.4, 0.0, False, 0.0)
    waiting = Sample(1, "collective", 5.2, 4.2, True, 0.0)
    timeline = Timeline(2)
    timeline.feed(1, 1.0, [busy(0, 0), busy(0, 0)])
    timeline.feed(8, 8.0, [dead, waiting])
    assert timeline.strips() == ["......xx", ".8888ccc"]


def test_a_second_in_which_it_raised_has_a_mark():
    def rank(failed: int, process: int = 1) -> Sample:
        return Sample(process, "failed", 0.0, 0.0, False, 0.0, failed)

    samples = [rank(3), rank(3), rank(5), rank(5), rank(1, 2), rank(2, 2)]
    assert after(*samples) == ".0e0.e"
    waiting = Sample(1, "collective", 1.2, 0.2, True, 0.0, failed=1)
    assert after(idle(0), waiting) == ".e"


def test_a_rank_whose_host_has_not_told_yet_is_not_known_then():
    assert after(idle(5.0), idle(0.0), idle(5.5)) == "..2"


def test_a_controller_that_was_held_up_fills_what_it_missed():
    timeline = Timeline(1)
    timeline.feed(1, 1.0, [idle(0)])
    timeline.feed(5, 5.0, [idle(2.0)])
    assert timeline.strips() == [".5555"]
    timeline.feed(5, 5.001, [idle(2.001)])
    assert timeline.seconds == 5


@hypothesis.given(st.lists(st.booleans(), max_size=40), st.integers(1, 5))
def test_rows_are_bounded_and_as_long_as_the_time(looks, size):
    timeline = Timeline(size)
    for second, looked in enumerate(looks, 1):
        step = second * 20
        if looked:
            timeline.feed(step, float(step), [idle(0)] * size)
    strips = timeline.strips()
    last = max((place for place, looked in enumerate(looks, 1) if looked), default=0)
    assert [len(each) for each in strips] == [min(KEPT, 20 * last)] * size
    assert timeline.seconds == 20 * last
    if last:
        assert timeline.letters(timeline.seconds - 1) == "".join(each[-1] for each in strips)
