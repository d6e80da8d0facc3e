"""Spans of time as seconds ago: what is covered is counted once."""

from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.control.debug.sessions import covered_s

ends = st.tuples(st.integers(0, 30), st.integers(0, 30))
spans = st.lists(ends.map(lambda pair: (max(pair), min(pair))), max_size=8)


@given(spans, st.integers(0, 40))
def test_every_second_counts_once(found, within):
    seconds = {second for start, end in found for second in range(end, start) if second < within}
    assert covered_s(found, within) == len(seconds)
