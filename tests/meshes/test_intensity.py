"""How often a rank is started again, decided on a clock that the tests turn."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.elastic import restart
from monarch_nb.meshes.restarting.intensity import Intensity

FAILURES = st.lists(st.tuples(st.integers(0, 3), st.floats(0, 30)), max_size=60)
"""Which rank fails, and how long after the one before."""


@given(FAILURES, st.integers(1, 5), st.floats(0.1, 60))
def test_never_more_than_max_restarts_of_a_rank_within_any_period(failures, most, within_s):
    intensity = Intensity(restart(max=most, within_s=within_s))
    allowed = defaultdict(list)
    now = 0.0
    for rank, pause_s in failures:
        now += pause_s
        recent = [at for at in allowed[rank] if at > now - within_s]
        if intensity.allows(rank, now):
            assert len(recent) < most
            allowed[rank].append(now)
        else:
            assert len(recent) == most
            allowed[rank].clear()  # whoever heals it begins anew


@given(st.integers(1, 5), st.floats(0.1, 60), st.integers(0, 20))
def test_a_rank_that_fails_seldom_is_always_started_again(most, within_s, count):
    intensity = Intensity(restart(max=most, within_s=within_s))
    assert all(intensity.allows(0, now=1.01 * at * within_s) for at in range(count))


def test_each_rank_has_a_count_of_its_own():
    intensity = Intensity(restart(max=1, within_s=10))
    assert all(intensity.allows(rank, now=0.0) for rank in range(64))
    assert not any(intensity.allows(rank, now=1.0) for rank in range(64))


def test_what_is_said_of_a_rank_that_has_failed_too_often():
    assert Intensity(restart(max=3, within_s=60)).refusal([2]) == (
        "rank 2 was restarted 3 times within 60 s"
    )
    assert Intensity(restart(max=1, within_s=0.5)).refusal([0, 1, 3]) == (
        "ranks 0-1,3 were restarted 1 time within 0.5 s"
    )


@pytest.mark.parametrize(
    "arguments, error, says",
    [
        ({"max": 0}, ValueError, "max=0: 1 restart or more"),
        ({"max": -1}, ValueError, "max=-1"),
        ({"max": 1.5}, TypeError, "max=1.5: how many restarts is a whole number"),
        ({"max": True}, TypeError, "max=True"),
        ({"within_s": 0}, ValueError, "within_s=0: the period is above 0 seconds"),
        ({"within_s": -1.0}, ValueError, "within_s=-1.0"),
        ({"within_s": float("inf")}, ValueError, "within_s=inf"),
        ({"within_s": float("nan")}, ValueError, "within_s=nan"),
        ({"within_s": "60"}, TypeError, "within_s='60': the period is a number of seconds"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(arguments, error, says):
    with pytest.raises(error, match=says):
        restart(**arguments)
