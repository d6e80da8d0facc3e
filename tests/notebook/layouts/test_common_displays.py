"""Figures that ranks show at different times: equal ones are one, and each rank's stay in order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_nb.core.errors.folding import listed_ranks, rank_list
from monarch_nb.notebook.layouts.layout import Layout
from tests.notebook.layouts.test_live_displays import ALL, SIZE, Ranks


def figure(name: str) -> dict[str, str]:
    return {"image/png": name, "text/plain": f"<{name}>"}


@pytest.fixture
def ranks() -> Ranks:
    return Ranks()


def test_ranks_that_come_seconds_later_join(ranks):
    ranks.show(0, figure("A"))
    assert ranks.lines() == ["[0]", "<A>"]
    ranks.show(1, figure("B"))
    assert ranks.lines() == ["[0]", "<A>", "[1]", "<B>"]
    ranks.show(2, figure("A"))
    ranks.lines()
    ranks.show(3, figure("B"))
    assert ranks.lines() == ["[0,2]", "<A>", "[1,3]", "<B>"]


def test_pages_join_with_their_label_inside(ranks):
    for rank in ALL:
        ranks.show(rank, {"text/html": "<b>x</b>", "text/plain": "x"})
        ranks.lines()
    [one] = ranks.page.outputs
    assert one["data"]["text/plain"] == "[0-3] x"
    assert one["data"]["text/html"].endswith("[0-3]</div><b>x</b>")


@pytest.mark.parametrize("is_line_shown", [True, False])
def test_what_a_rank_has_said_before_stays_above(ranks, is_line_shown):
    ranks.show(0, figure("A"))
    ranks.lines()
    ranks.print(1, "first\n")
    if is_line_shown:
        ranks.lines()
    ranks.show(1, figure("A"))
    assert ranks.lines() == ["[0]", "<A>", "[1] first", "[1]", "<A>"]


def test_a_line_without_an_end_is_not_overtaken(ranks):
    ranks.show(0, figure("A"))
    ranks.lines()
    ranks.print(1, "first")
    ranks.show(1, figure("A"))
    assert ranks.lines().count("<A>") == 2


def test_the_same_figure_twice_of_each_rank(ranks):
    for rank in ALL:
        ranks.show(rank, figure("A"))
        ranks.lines()
        ranks.print(rank, "between\n")
        ranks.lines()
        ranks.show(rank, figure("A"))
        ranks.lines()
    figures = [line for line in ranks.lines() if line.startswith("[") and "between" not in line]
    assert figures == ["[0-3]", "[0]", "[1]", "[2]", "[3]"]  # text stays where it is


def test_two_equal_figures_in_a_row_are_joined_one_by_one(ranks):
    for rank in ALL:
        for _ in range(2):
            ranks.show(rank, figure("A"))
            ranks.lines()
    assert ranks.lines() == ["[0-3]", "<A>", "[0-3]", "<A>"]


def test_a_cell_that_was_cleared_begins_anew(ranks):
    ranks.show(0, figure("A"))
    ranks.lines()
    for rank in ALL:
        ranks.clear(rank, wait=False)
    ranks.show(1, figure("A"))
    assert "<A>" in "".join(ranks.lines())
    assert "[1]" in "".join(ranks.lines())


def test_another_run_in_the_same_cell_begins_anew(ranks):
    ranks.show(0, figure("A"))
    ranks.lines()
    ranks.output.expect("m", ALL, SIZE)
    ranks.show(1, figure("A"))
    assert ranks.lines() == ["[0]", "<A>", "[1]", "<A>"]


def test_what_is_held_back_is_whole_when_it_is_shown(ranks):
    ranks.output.expect("m", ALL, SIZE, Layout(streams=False))
    for rank in ALL:
        ranks.show(rank, figure("A"))
        assert ranks.lines() == []
    ranks.output.conclude("m", {})
    ranks.output.end()
    assert ranks.page.lines == ["[0-3]", "<A>"]


def test_all_ranks_are_named_however_scattered_they_are():
    scattered = [*range(0, 90, 3), 4, 5]
    assert listed_ranks(rank_list(scattered)) == sorted(scattered)
    assert listed_ranks("") == []


SHOWN = st.sampled_from(["A", "B", "line"])


@given(st.lists(st.tuples(st.sampled_from(ALL), SHOWN, st.booleans()), max_size=24))
@settings(deadline=None, max_examples=60)
def test_each_rank_sees_its_own_in_order(said):
    ranks = Ranks()
    expected: dict[int, list[str]] = {rank: [] for rank in ALL}
    for rank, what, waits in said:
        expected[rank].append(what)
        if what == "line":
            ranks.print(rank, "line\n")
        else:
            ranks.show(rank, figure(what))
        if waits:
            ranks.lines()
    ranks.output.end()
    found: dict[int, list[str]] = {rank: [] for rank in ALL}
    lines = iter(ranks.page.lines)
    for line in lines:
        label, _, text = line.partition(" ")
        what = text or next(lines).strip("<>")
        for rank in listed_ranks(label.strip("[]")):
            found[rank].append(what)
    assert found == expected
