"""Similar lines of ranks are counted, different steps stay apart."""

from monarch_nb.control.output import routing
from monarch_nb.control.output.routing import SimilarLines


def taken(*chunks):
    lines = SimilarLines()
    for rank, text in chunks:
        lines.feed(rank, text)
    return lines.take()


def test_equal_and_similar_lines_are_counted():
    assert taken((0, "a\n"), (1, "a\n"), (0, "b\n")) == [(2, "a"), (1, "b")]
    assert taken((0, "rank 0 at 0xff: 1.5e-3\n"), (1, "rank 1 at 0xA0: 2\n")) == [
        (2, "rank 0 at 0xff: 1.5e-3")
    ]


def test_different_lines_of_a_rank_stay_apart_equal_ones_do_not():
    steps = [(rank, f"step {step} loss {rank}.{step}\n") for step in range(3) for rank in range(2)]
    assert taken(*steps) == [(2, f"step {step} loss 0.{step}") for step in range(3)]
    assert taken((0, "again\nagain\nagain\n")) == [(3, "again")]


def test_lines_come_in_chunks():
    assert taken((0, "he"), (1, "hello\n"), (0, "llo\nrest")) == [(2, "hello")]


def test_what_has_no_end_counts_when_nothing_more_comes():
    lines = SimilarLines()
    lines.feed(0, "rest")
    assert lines.take() == []
    lines.finish()
    assert lines.take() == [(1, "rest")]
    lines.finish()
    assert lines.take() == []


def test_taking_forgets():
    lines = SimilarLines()
    lines.feed(0, "a\n")
    assert lines.take() == [(1, "a")]
    assert lines.take() == []
    lines.feed(1, "a\n")
    assert lines.take() == [(1, "a")]


def test_kinds_without_end_are_bounded(monkeypatch):
    monkeypatch.setattr(routing, "MAX_GROUPS", 3)
    text = "".join(f"{letter}\n" for letter in "abcdea")
    assert taken((0, text)) == [(2, "a"), (1, "b"), (1, "c"), (2, "... more lines of other kinds")]
