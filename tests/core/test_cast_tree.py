"""What goes down and up a tree of hosts, as it is written and taken apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.core import reply_folding
from monarch_nb.core.cast_tree import Branch, Node, TreeCast, TreeFold
from monarch_nb.core.casting import Run
from monarch_nb.core.reply_folding import Group, Numbered
from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import HOST_SHIFT
from monarch_nb.errors import RemoteProtocolError


def run(host: int, rank: int = 0) -> Run:
    return Run(host << HOST_SHIFT | 1, rank, 2)


UNDER = {2: [4, 5], 3: [6], 4: [7]}
RUNS = {host: [run(host, 2 * host)] for host in (2, 4, 5, 7)}
BRANCH = Branch.of(2, UNDER, RUNS)
CAST = TreeCast(55, 9, BRANCH, [0, 11, 12, 13], b"piece")


def sent(cast: TreeCast) -> TreeCast:
    [message] = frames.open_frames([cast.head() + cast.piece])
    return TreeCast.unpack(message)


def test_a_branch_is_its_hosts_in_order_each_before_those_under_it():
    assert BRANCH.nodes == [Node(2, 3, 1), Node(4, 1, 1), Node(7, 0, 1), Node(5, 0, 1)]
    assert BRANCH.runs == [run(2, 4), run(4, 8), run(7, 14), run(5, 10)]
    assert BRANCH.receivers == 8
    assert list(BRANCH.own_runs) == [run(2, 4)]


def test_a_cast_comes_as_it_was_sent_and_goes_on_in_parts():
    cast = sent(CAST)
    assert cast == CAST
    four, five = cast.under()
    assert (four.host, four.numbers) == (4, [11, 12])
    assert [node.host for node in four.branch.nodes] == [4, 7]
    assert (five.host, five.numbers, five.branch.runs) == (5, [13], [run(5, 10)])
    [seven] = sent(four).under()
    assert (seven.host, seven.numbers, seven.branch.runs) == (7, [12], [run(7, 14)])


def test_who_gets_it_alone_is_not_reached_by_the_others():
    cast = CAST._replace(numbers=[0, 0, 0, 13])
    assert [each.host for each in cast.under()] == [5]
    alone = cast.alone(4)
    assert (alone.branch.nodes, alone.numbers) == ([Node(4, 0, 1)], [0])
    assert list(alone.under()) == []


def test_what_was_lost_comes_again_with_all_that_is_under_it():
    part = CAST.part_of(4).counted()
    assert (part.host, part.numbers) == (4, [0, 12])
    assert [each.host for each in part.under()] == [7]


def fold(*runs: Run) -> bytes:
    return reply_folding.fold(9, [Group(frames.REPLY, 0, list(runs), b"None")])


def test_folded_answers_are_taken_without_those_that_came_before():
    numbered = [Numbered(4, 3, 1), Numbered(5, 8, 2)]
    sent_up = TreeFold(55, numbered, fold(run(2), run(4), run(5)))
    [message] = frames.open_frames([sent_up.pack(99)])
    come = TreeFold.unpack(message)
    assert (come.caller, come.numbered) == (55, numbered)
    port, [group] = reply_folding.unfold(come.without([4]) or b"")
    assert (port, group.runs) == (9, [run(2), run(5)])
    assert come.without([2, 4, 5]) is None


@given(st.integers(0, 200), st.integers(0, 255))
def test_nonsense_is_refused_and_nothing_else_happens(at, byte):
    whole = bytearray(CAST.head() + CAST.piece)
    whole[40 + at % (len(whole) - 40)] = byte
    try:
        [message] = frames.open_frames([bytes(whole)])
        found = TreeCast.unpack(message)
    except RemoteProtocolError:
        return
    assert len(found.numbers) == len(found.branch.nodes)
    assert sum(1 for _ in found.under()) <= len(found.branch.nodes)


@pytest.mark.parametrize("cut", [0, 3, 20, 60, 100])
def test_half_of_it_is_refused(cut):
    [message] = frames.open_frames([CAST.head()[: 40 + cut]])
    with pytest.raises(RemoteProtocolError):
        TreeCast.unpack(message)
    whole = TreeFold(55, [Numbered(4, 3, 1)], b"").pack(9)
    [message] = frames.open_frames([whole[: 40 + cut % 20]])
    with pytest.raises(RemoteProtocolError):
        TreeFold.unpack(message)


@pytest.mark.parametrize(
    "nodes",
    [
        [Node(2, 0, 0), Node(3, 0, 0)],
        [Node(2, 1, 0), Node(3, 1, 0)],
        [Node(2, 5, 0), Node(3, 0, 0)],
    ],
    ids=["two roots", "one reaches out", "one is missing"],
)
def test_hosts_that_are_no_tree_are_refused(nodes):
    cast = TreeCast(55, 9, Branch(nodes, []), [0] * len(nodes), b"")
    with pytest.raises(RemoteProtocolError, match="no tree"):
        sent(cast)
