"""Bars of many ranks: which are one row, and how a row reads."""

import pytest

from monarch_nb.core.text import bars
from monarch_nb.core.text.bars import Bar


def bar(done: float, total: float | None = 100, **facts) -> Bar:
    return Bar(1, 1, done=done, total=total, **facts)


def told(positions: dict[int, Bar]) -> list[tuple[tuple[int, ...], str]]:
    return [(row.ranks, bars.position(row.bar, row.farthest)) for row in bars.rows(positions)]


def test_ranks_that_move_together_are_one_row():
    assert told({rank: bar(40 + rank) for rank in range(4)}) == [((0, 1, 2, 3), " 40%")]


def test_the_slowest_is_a_row_of_its_own():
    ranks = {rank: bar(45 + rank % 3) for rank in range(64)} | {3: bar(12)}
    others = tuple(rank for rank in range(64) if rank != 3)
    assert told(ranks) == [((3,), " 12%"), (others, " 45%")]


def test_ranks_all_over_the_place_are_few_rows_and_the_slowest_is_seen():
    found = told({rank: bar(rank * 100 / 63) for rank in range(64)})
    assert len(found) == 2
    assert found[0] == ((0, 1, 2, 3), "  0%")
    assert found[1] == (tuple(range(4, 64)), "  6-100%")


def test_one_that_is_done_is_not_with_one_that_is_not():
    assert told({0: bar(100, closed=True), 1: bar(99)}) == [((1,), " 99%"), ((0,), "100%")]


def test_another_total_or_name_is_another_row():
    assert len(told({0: bar(50), 1: bar(50, 200)})) == 2
    assert len(told({0: bar(50, description="train"), 1: bar(50, description="load")})) == 2


def test_descriptions_that_differ_in_numbers_are_told_once():
    [row] = bars.rows({rank: bar(5, description=f"loss 0.{rank}e-3") for rank in range(4)})
    assert row.bar.description == "loss #"
    [row] = bars.rows({rank: bar(5, description="loss 0.5", postfix="a") for rank in range(4)})
    assert (row.bar.description, row.bar.postfix) == ("loss 0.5", "a")


def test_of_those_that_are_done_the_one_that_took_longest_is_told():
    [row] = bars.rows({0: bar(9, 9, elapsed_s=1), 1: bar(9, 9, elapsed_s=5)})
    assert row.bar.elapsed_s == 5


def test_without_a_total_counts_are_near_or_not():
    assert [row.ranks for row in bars.rows({0: bar(100, None), 1: bar(97, None)})] == [(0, 1)]
    assert [row.ranks for row in bars.rows({0: bar(100, None), 1: bar(7, None)})] == [(1,), (0,)]


@pytest.mark.parametrize("one, text", [
    (bar(45, description="train", elapsed_s=3, rate=15, postfix="loss=0.3"),
     "train:  45%|█████████           | 45/100 [00:03<00:03, 15.00it/s, loss=0.3]"),
    (bar(100, elapsed_s=3725, closed=True),
     "100%|████████████████████| 100/100 [1:02:05, 37.25s/it]"),
    (bar(7, None, unit="files", elapsed_s=1), "7files [00:01, 7.00files/s]"),
    (bar(1_500_000, 3e9, unit="B", scaled=True, rate=2e6, elapsed_s=1),
     "  0%|                    | 1.5M/3G [00:01<24:59, 2MB/s]"),
    (bar(3, elapsed_s=0, closed=True), "  3%|                    | 3/100 [00:00] stopped"),
    (bar(-1, elapsed_s=0), "  0%|                    | -1/100 [00:00]"),
])  # fmt: skip
def test_a_bar_reads_as_tqdms_does(one, text):
    assert bars.line(one) == text


def test_what_a_rank_says_is_checked():
    body = {"id": 1, "serial": 2, "done": float("nan"), "total": -3, "rate": 0, "elapsed_s": -1,
            "description": "x" * 9999}  # fmt: skip
    read = Bar.read(body)
    assert (read.done, read.total, read.rate, read.elapsed_s) == (0.0, None, None, 0.0)
    assert len(read.description) < 300
    for wrong in ({}, {"id": 1}, {"id": 1, "serial": 1, "done": "many"}):
        with pytest.raises((KeyError, ValueError)):
            Bar.read(wrong)


def test_bars_that_have_ended_leave_a_line():
    ended, gone = bar(100, closed=True), bar(100, closed=True, stays=False)
    assert bars.lines([bar(5), gone, ended]).count("\n") == 1
