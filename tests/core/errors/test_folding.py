"""Folding: what ranks have in common is said once, and nothing is lost or reordered."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.core.errors.folding import (
    fold_errors,
    fold_outputs,
    format_errors,
    rank_label,
    rank_words,
)
from monarch_nb.core.errors.records import ErrorRecord, FrameRecord
from monarch_nb.core.text.lines import BURST, MAX_LINE, LineAssembler, Throttle


def expand(label):
    """`[0-2,5]` as a set of ranks."""
    ranks = set()
    for part in label.strip("[]").split(","):
        first, _, last = part.partition("-")
        ranks |= set(range(int(first), int(last or first) + 1))
    return ranks


# -------------------------------------------------------------------------------- labels and groups


@pytest.mark.parametrize("ranks, label", [
    ([0, 1, 2, 3], "[0-3]"), ([3, 0, 2], "[0,2-3]"), ([7], "[7]"), ([0, 1, 5, 6, 9], "[0-1,5-6,9]"),
])  # fmt: skip
def test_labels(ranks, label):
    assert rank_label(ranks) == label


def test_a_mesh_of_one_rank_has_no_labels():
    assert rank_label([0], total=1) == ""
    assert fold_outputs({0: "x"}, total=1)[0].label == ""


def test_scattered_ranks_are_counted():
    assert rank_label(range(0, 64, 2)).endswith(",... 32 in all]")


@given(st.sets(st.integers(0, 12), min_size=1))
def test_labels_name_exactly_the_ranks(ranks):
    assert expand(rank_label(ranks)) == ranks


def test_equal_outputs_form_groups_in_order_of_rank():
    groups = fold_outputs({3: "b", 0: "a", 2: "b", 1: "b"})
    assert [(group.ranks, group.label) for group in groups] == [((0,), "[0]"), ((1, 2, 3), "[1-3]")]


# ------------------------------------------------------------------------------------------- errors


def error(message, line=1, name="ValueError"):
    return ErrorRecord(name, message, frames=(FrameRecord("<cell>", line, "f", "raise x"),))


def test_equal_errors_are_told_once():
    groups = fold_errors({rank: error("bad value") for rank in range(4)})
    assert format_errors(groups) == [
        "ranks 0-3: ValueError: bad value",
        "Traceback (most recent call last):",
        '  File "<cell>", line 1, in f',
        "    raise x",
        "ValueError: bad value",
    ]


def test_messages_that_differ_are_listed():
    groups = fold_errors({0: error("a"), 1: error("b\nc"), 2: error("a")})
    assert format_errors(groups)[0] == "ranks 0-2: ValueError, 2 different messages"
    assert format_errors(groups)[-5:] == [
        "ValueError: a",
        "The messages differ:",
        "  ranks 0,2: a",
        "  rank 1: b",
        "    c",
    ]


def test_errors_of_different_places_stay_apart():
    groups = fold_errors({0: error("a"), 1: error("a", line=2), 2: error("a", name="KeyError")})
    assert [group.ranks for group in groups] == [(0,), (1,), (2,)]
    text = format_errors(groups)
    assert [line for line in text if line.startswith("rank ")] == [
        "rank 0: ValueError: a", "rank 1: ValueError: a", "rank 2: KeyError: a",
    ]  # fmt: skip
    assert text.count("") == 2


def test_many_messages_are_cut_short():
    text = format_errors(fold_errors({rank: error(f"{rank}" * 1000) for rank in range(100)}))
    assert text[-1] == "  ... 84 more messages"
    assert len(text) < 30


def test_a_mesh_of_one_rank_shows_the_traceback_alone():
    assert format_errors(fold_errors({0: error("a")}), total=1) == error("a").format()
    assert rank_words([3]) == "rank 3"


# -------------------------------------------------------------------------------------------- lines


@given(st.lists(st.text("ab\n\r", max_size=4), max_size=12))
def test_lines_do_not_depend_on_the_chunks(chunks):
    whole, split = LineAssembler(), LineAssembler()
    lines = [line for chunk in chunks for line in split.feed(chunk)]
    assert whole.feed("".join(chunks)) == lines
    assert whole.pending == split.pending == whole.take() == split.take()


def test_a_carriage_return_takes_the_line_back():
    lines = LineAssembler()
    assert lines.feed("10%\r20%\r") == []
    assert lines.pending == "20%"
    assert lines.feed("30%\rdone\nwin\r\nx") == ["done", "win"]
    assert lines.take() == "x"


def test_a_line_without_end_stays_small():
    lines = LineAssembler()
    for _ in range(1000):
        assert lines.feed("x" * 1000) == []
    assert len(lines.pending) == MAX_LINE
    (line,) = lines.feed("\n")
    assert line.endswith("... [990000 more characters]")


def test_the_throttle_hides_counts_and_shows_the_last_lines():
    throttle = Throttle()
    shown = [text for i in range(20_000) for text in throttle.show("stdout", f"{i}\n", now=0.0)]
    assert len(shown) < BURST / 80
    end = throttle.close()
    hidden = int(re.fullmatch(r"\.\.\. (\d+) lines hidden \.\.\.\n", end[0].text)[1])
    assert len(shown) + hidden + len(end) - 1 == 20_000
    assert end[-1].text == "19999\n"


def test_the_throttle_shows_again_after_a_pause():
    throttle = Throttle(burst=1000, refill_per_s=1000)
    for i in range(100):
        throttle.show("stdout", f"{i}\n", now=0.0)
    note, line = throttle.show("stdout", "later\n", now=5.0)
    assert note.text.endswith("lines hidden ...\n")
    assert line.text == "later\n"
