"""What ranks said becomes one text: each in its own order, rank after rank, equal pieces once."""

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.core.text.alignment import MAX_NESTING, aligned

RANKS = range(4)


def shown(*texts: str) -> str:
    """Of ranks that have said these lines, as `0-1 a | 2 b`; `+` joins lines written at once."""
    said = {
        rank: [("stdout", line.replace("+", "\n")) for line in text.split("/")]
        for rank, text in enumerate(texts)
        if text
    }
    return " | ".join(
        f"{','.join(map(str, run.ranks))} {'/'.join(line for _, line in run.pieces)}"
        for run in aligned(said)
    )


@pytest.mark.parametrize("texts, result", [
    (["a"], "0 a"),
    (["a/b", "a/b"], "0,1 a/b"),
    (["0/x", "1/y", "2/z"], "0 0/x | 1 1/y | 2 2/z"),
    (["start/0", "start/1"], "0,1 start | 0 0 | 1 1"),
    (["0/together", "1/together"], "0 0 | 1 1 | 0,1 together"),
    (["s1/a/s2/b", "s1/c/s2/d"], "0,1 s1 | 0 a | 1 c | 0,1 s2 | 0 b | 1 d"),
    (["", "a/b", "c", "a/d"], "1,3 a | 1 b | 3 d | 2 c"),
    (["noise/more", "a/1/z", "a/2/z"], "0 noise/more | 1,2 a | 1 1 | 2 2 | 1,2 z"),
])  # fmt: skip
def test_equal_lines_are_once_and_others_in_the_order_of_ranks(texts, result):
    assert shown(*texts) == result


@pytest.mark.parametrize("texts, result", [
    # the losses of two ranks are equal by chance: no reason to tear the steps of rank 0 apart
    (["step 0/loss 1", "step 1/loss 2", "step 2/loss 1"],
     "0 step 0/loss 1 | 1 step 1/loss 2 | 2 step 2/loss 1"),
    # a table that was printed at once, with the same heading on all ranks
    (["  a b+0 1 2", "  a b+0 3 4"], "0   a b\n0 1 2 | 1   a b\n0 3 4"),
    (["  a b+0 1 2", "  a b+0 1 2"], "0,1   a b\n0 1 2"),
    # indented lines and rules stay with what they belong to
    (["memory 0/  free 1", "memory 1/  free 1"], "0 memory 0/  free 1 | 1 memory 1/  free 1"),
    (["====/report 0/====", "====/report 1/===="], "0 ====/report 0/==== | 1 ====/report 1/===="),
    (["a 0//b 0", "a 1//b 1"], "0 a 0//b 0 | 1 a 1//b 1"),
    # but go with a line that all have said
    (["====/start/  now/0", "====/start/  now/1"], "0,1 ====/start/  now | 0 0 | 1 1"),
])  # fmt: skip
def test_what_belongs_together_stays_together(texts, result):
    assert shown(*texts) == result


PIECES = st.lists(st.sampled_from(["a", "b", "c", "  in", "--", "d\ne"]), max_size=8)


@given(st.lists(PIECES, min_size=1, max_size=5))
def test_each_rank_keeps_its_order_and_nothing_is_lost_or_told_twice(texts):
    said = {rank: [("stdout", text) for text in pieces] for rank, pieces in enumerate(texts)}
    runs = aligned(said)
    for rank, pieces in said.items():
        assert [one for run in runs if rank in run.ranks for one in run.pieces] == pieces


@given(st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=2, max_size=6))
def test_ranks_with_nothing_in_common_come_one_after_the_other(texts):
    said = {rank: [("stdout", f"{rank}: {one}") for one in text] for rank, text in enumerate(texts)}
    order = [run.ranks for run in aligned(said)]
    assert order == [(rank,) for rank, text in enumerate(texts) if text]


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=8), st.data())
def test_lines_of_all_ranks_are_once_whatever_each_says_in_between(common, data):
    own = st.lists(st.integers(0, 9), max_size=2)
    said = {
        rank: [
            ("stdout", piece)
            for line in common
            for piece in (*(f"{rank}-{one}" for one in data.draw(own)), line)
        ]
        for rank in RANKS
    }
    folded = [one for run in aligned(said) if len(run.ranks) == 4 for _, one in run.pieces]
    assert folded == common


def test_thousands_of_ranks_that_are_at_different_steps_take_no_time():
    said = {rank: [("stdout", f"step {one}") for one in range(rank % 97)] for rank in range(2_000)}
    runs = aligned(said)
    for rank in (5, 96, 1_999):
        assert [one for run in runs if rank in run.ranks for one in run.pieces] == said[rank]
    depths = [len(list(group)) for _, group in groupby(runs, key=lambda run: run.ranks)]
    assert len(depths) > MAX_NESTING
