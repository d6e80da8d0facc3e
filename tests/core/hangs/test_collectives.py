"""Ledgers side by side: the first disagreement is found, whatever the order, and named in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.core.hangs.collectives import (
    Entry,
    Standing,
    disagreement,
    line,
    pending,
    tensors_text,
)

OPS = ("all_reduce", "broadcast", "barrier", "scatter")
calls = st.lists(st.tuples(st.sampled_from(OPS), st.sampled_from(["f32[4]", "f32[8]"])), max_size=6)


def ledger(of: list[tuple[str, str]], *, done: bool = True, first: int = 1) -> list[Entry]:
    """All but the last have ended; the last has, if it is `done`."""
    last = first + len(of) - 1
    return [
        Entry("0", seq, op, tensors, done or seq < last)
        for seq, (op, tensors) in enumerate(of, first)
    ]


@given(st.integers(1, 5), calls)
def test_ranks_that_do_the_same_agree(size, of):
    assert disagreement({rank: Standing(ledger(of)) for rank in range(size)}) == ""
    assert disagreement({rank: Standing(ledger(of, done=False)) for rank in range(size)}) == ""


@given(st.integers(2, 5), calls.filter(len), st.data())
def test_a_rank_that_has_not_come_is_named(size, of, data):
    late = data.draw(st.integers(0, size - 1))
    found = {rank: Standing(ledger(of, done=False)) for rank in range(size)}
    found[late] = Standing(ledger(of[:-1]), {"0": range(size)}, place="in data.py:41 load()")
    told = disagreement(found)
    assert f"rank {late} is in data.py:41 load(), it has not come to {of[-1][0]} #{len(of)}" in told
    assert f"{of[-1][0]} #{len(of)} {of[-1][1]};" in told


@given(calls.filter(len), st.data())
def test_the_first_difference_is_the_one_that_is_named(of, data):
    at = data.draw(st.integers(0, len(of) - 1))
    other = list(of)
    other[at] = ("all_to_all", of[at][1])
    told = disagreement({0: Standing(ledger(of)), 1: Standing(ledger(other))})
    assert f"{of[at][0]} #{at + 1} " in told
    assert f"all_to_all #{at + 1} " in told


@given(calls.filter(lambda of: len(of) > 1), st.data())
def test_what_one_ledger_has_lost_is_no_disagreement(of, data):
    kept = data.draw(st.integers(1, len(of)))
    short = ledger(of)[-kept:]
    assert disagreement({0: Standing(ledger(of)), 1: Standing(short)}) == ""


@pytest.mark.parametrize("mine, theirs, differ", [
    (("all_reduce", "f32[4]"), ("all_reduce", "f32[8]"), True),
    (("all_reduce", "f32[4]"), ("all_reduce", "i64[4]"), True),
    (("scatter", "f32[4]"), ("scatter", ""), False),
    (("all_to_all", "f32[4]"), ("all_to_all", "f32[8]"), False),
])  # fmt: skip
def test_sizes_differ_only_where_they_may_not(mine, theirs, differ):
    found = {0: Standing(ledger([mine])), 1: Standing(ledger([theirs]))}
    assert bool(disagreement(found)) is differ


def waiting(op: str = "all_reduce", seq: int = 18, tensors: str = "f32[1024]", group: str = "0"):
    entries = [Entry(group, seq - 1, "barrier", "", True), Entry(group, seq, op, tensors, False)]
    return Standing(entries, waits_in=op, waits_s=6.2)


def test_words():
    assert disagreement({0: waiting(), 1: waiting("broadcast")}) == (
        "rank 0 waits in all_reduce #18 f32[1024]; rank 1 is in broadcast #18 f32[1024]"
    )
    assert disagreement(
        {0: waiting(), 1: waiting(), 2: waiting("reduce"), 3: waiting("reduce")}
    ) == ("ranks 0-1 wait in all_reduce #18 f32[1024]; ranks 2-3 are in reduce #18 f32[1024]")
    late = Standing([Entry("0", 17, "barrier", "", True)], place="in data.py:41 load()")
    assert disagreement({0: waiting(), 1: waiting(), 2: late, 3: late}) == (
        "ranks 0-1 wait in all_reduce #18 f32[1024]; ranks 2-3 are in data.py:41 load(), "
        "they have not come to all_reduce #18"
    )
    assert line({0: waiting(), 1: waiting(), 3: late}) == (
        "ranks 0-1 in all_reduce #18 for 6 s; rank 3 in data.py:41 load()"
    )


def test_a_rank_that_waits_for_another_one_is_there():
    elsewhere = Standing([Entry("0", 17, "barrier", "", True)], waits_in="recv", waits_s=3)
    assert disagreement({0: waiting(), 1: elsewhere}) == (
        "rank 0 waits in all_reduce #18 f32[1024]; rank 1 is in recv, "
        "it has not come to all_reduce #18"
    )


def test_members_of_a_group_count_though_they_have_done_nothing_in_it():
    first = [Entry("7", 1, "all_reduce", "f32[4]", False)]
    idle = Standing([], {"7": [0, 1]}, place="idle")
    told = disagreement({0: Standing(first), 1: idle, 2: Standing(place="idle")})
    assert told == (
        "rank 0 waits in all_reduce #1 of group 7 f32[4]; rank 1 is idle, "
        "it has not come to all_reduce #1 of group 7"
    )


def test_other_sizes_are_told_where_nothing_else_differs():
    assert line({0: waiting(), 1: waiting(tensors="f32[8]")}) == (
        "rank 0 in all_reduce #18 f32[1024] for 6 s; rank 1 in all_reduce #18 f32[8] for 6 s"
    )


def test_what_is_called_stands_for_what_it_is_made_of():
    objects = waiting("all_gather", 3)._replace(waits_in="all_gather_object")
    assert line({0: objects}) == "rank 0 in all_gather_object #3 for 6 s"
    assert line({0: waiting()._replace(waits_in="wait")}) == "rank 0 in all_reduce #18 for 6 s"
    unknown = Standing([], waits_in="send", waits_s=3)
    assert line({0: unknown, 1: Standing()}) == "rank 0 in send for 3 s; rank 1 elsewhere"


def test_a_rank_waits_in_the_first_that_has_not_ended_since_the_last_that_has():
    entries = [Entry("0", seq, "barrier", "", seq in {1, 3}) for seq in range(1, 6)]
    assert pending(entries).seq == 4
    assert pending(entries[:3]) is None


def test_many_tensors_are_cut():
    assert tensors_text(["Float"] * 5, [[2]] * 5) == "f32[2] f32[2] f32[2] and 2 more"
    assert tensors_text(["Odd"], [[]]) == "Odd[]"
