"""Curves stay small, go forward in steps, and lose no extreme."""

import itertools
import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.core.curves import (
    CAPACITY,
    MAX_STEP,
    Curve,
    Fold,
    Sample,
    Trace,
    from_wire,
    thinned,
    to_wire,
)
from monarch_nb.errors import RemoteProtocolError

VALUES = st.floats(allow_nan=False, allow_infinity=False)
STEPS = st.integers(-MAX_STEP, MAX_STEP) | st.integers(0, 300)
TOLD = st.lists(st.tuples(STEPS, VALUES), min_size=1, max_size=200)


def folded(told, capacity: int = CAPACITY) -> Fold:
    fold = Fold(capacity)
    for step, value in told:
        fold.add(Sample.of(step, value))
    return fold


@given(TOLD, st.integers(4, 40))
def test_a_fold_is_bounded_goes_forward_and_keeps_the_extremes(told, capacity):
    points = folded(told, capacity).points
    assert len(points) <= capacity
    steps = [point[0] for point in points]
    assert steps == sorted(set(steps))
    assert steps[-1] == max(step for step, _ in told)
    assert min(low for _, _, low, _, _ in points) == min(value for _, value in told)
    assert max(high for _, _, _, high, _ in points) == max(value for _, value in told)
    assert sum(count for *_, count in points) == len(told)
    assert all(low <= mean <= high for _, mean, low, high, _ in points)


@given(st.dictionaries(st.integers(0, 400), st.lists(VALUES, min_size=1, max_size=5)))
def test_while_nothing_is_put_together_the_mean_is_that_of_the_ranks(by_step):
    told = [(step, value) for step, values in by_step.items() for value in values]
    random.Random(0).shuffle(told)
    points = folded(told).points
    assert [(step, count) for step, *_, count in points] == [
        (step, len(by_step[step])) for step in sorted(by_step)
    ]
    for step, mean, low, high, _ in points:
        values = by_step[step]
        assert (low, high) == (min(values), max(values))
        wanted = sum(value / len(values) for value in values)
        scale = max(map(abs, values))
        assert math.isclose(mean, wanted, rel_tol=1e-9, abs_tol=scale * 1e-9)


@given(TOLD, st.integers(4, 20), st.data())
def test_a_reader_that_takes_only_changes_sees_the_same(told, capacity, data):
    fold, seen, version = Fold(capacity), [], -1
    for step, value in told:
        fold.add(Sample.of(step, value))
        if data.draw(st.booleans()):
            now = fold.version
            first, points = fold.changed_since(version)
            version, seen = now, seen[:first] + points
            assert seen == fold.points
    assert fold.changed_since(fold.version)[1] == []


def test_a_late_rank_changes_its_point_and_those_after_it_only():
    fold = folded([(step, 1.0) for step in range(10)])
    version = fold.version
    fold.add(Sample.of(7, 3.0))
    assert fold.changed_since(version) == (7, fold.points[7:])
    assert fold.points[7] == (7, 2.0, 1.0, 3.0, 2)


def test_a_million_steps_of_a_thousand_fit():
    fold = Fold()
    for step in range(0, 1_000_000, 7):
        fold.add(Sample.of(step, -1.0 if step == 700_007 else 0.0))
    assert CAPACITY / 4 <= len(fold.points) <= CAPACITY
    assert sum(low == -1.0 for _, _, low, _, _ in fold.points) == 1


@pytest.mark.parametrize("gap", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_a_gap_unless_another_rank_has_a_value(gap):
    fold = folded([(0, 1.0), (1, gap), (2, gap), (2, 5.0)])
    assert fold.points == [(0, 1, 1, 1, 1), (1, None, None, None, 0), (2, 5, 5, 5, 1)]
    trace = Trace()
    trace.add(0, gap)
    assert trace.points == [(0, None)]


@given(st.lists(st.tuples(STEPS, VALUES), min_size=1, max_size=300), st.integers(4, 40))
def test_a_trace_is_bounded_and_its_points_are_values_that_were_told(told, capacity):
    trace = Trace(capacity)
    for step, value in told:
        trace.add(step, value)
    steps = [step for step, _ in trace.points]
    assert len(steps) <= capacity
    assert steps == sorted(set(steps))
    assert set(trace.points) <= set(told)
    assert steps[-1] == max(step for step, _ in told)


def test_of_a_step_that_is_told_twice_the_last_counts_for_its_rank():
    trace = Trace()
    for value in (1.0, 2.0):
        trace.add(3, value)
    assert trace.points == [(3, 2.0)]


@given(st.lists(VALUES | st.just(math.nan), max_size=100), st.integers(1, 20))
def test_thinned_is_bounded_and_keeps_the_extremes(values, most):
    samples = thinned(range(len(values)), values, most)
    assert len(samples) <= most
    finite = [value for value in values if math.isfinite(value)]
    told = [sample for sample in samples if sample.weight]
    assert sum(sample.weight for sample in samples) == len(finite)
    assert min((s.low for s in told), default=None) == min(finite, default=None)
    assert max((s.high for s in told), default=None) == max(finite, default=None)
    assert all(s.low <= s.mean <= s.high for s in told)


# one measure


def test_a_curve_knows_its_steps_and_how_much_it_keeps():
    curve = Curve()
    assert curve.steps is None
    for rank, steps in ((0, (5, 6, 3)), (1, (4,))):
        curve.add(rank, [Sample.of(step, 1.0) for step in steps])
    assert (curve.steps, curve.trace_points) == ((3, 6), 4)
    assert curve.of(0) == [(3, 1.0), (5, 1.0), (6, 1.0)]


# the wire


@given(STEPS, VALUES | st.just(math.nan), VALUES)
def test_samples_survive_the_wire(step, value, other):
    for sample in (Sample.of(step, value), Sample.over([step, step], [value, other])):
        back = from_wire(json.loads(json.dumps(to_wire(sample))))
        assert back.weight == sample.weight
        assert sample.weight == 0 or back == sample


@pytest.mark.parametrize("data", [
    None, 5, [], [1], ["1", 2], [1, "2"], [1.5, 2], [1, [2]], [2**54, 1.0], [1, 2, 3, 4],
    [1, 5, 0, 4, 2], [1, 2, 1, 3, 0], [1, 2, 1, 3, -1], [1, 2, 1, math.inf, 2],
    [1, math.nan, math.nan, math.nan, 3], {"step": 1},
])  # fmt: skip
def test_anything_else_is_refused(data):
    with pytest.raises(RemoteProtocolError):
        from_wire(data)


def test_an_integer_that_is_too_large_is_a_gap():
    assert from_wire([1, 10**400]).weight == 0


def test_a_mean_is_the_same_in_whatever_order_ranks_are_heard():
    for values in itertools.permutations((2.0, 3.0, 4.0, 5.0)):
        assert folded((0, value) for value in values).points == [(0, 3.5, 2.0, 5.0, 4)]


def test_values_whose_sum_is_too_large_have_a_mean():
    [(_, mean, *_)] = folded([(0, 1.5e308), (0, 1.7e308)]).points
    assert mean == pytest.approx(1.6e308)
