"""Whether ranks are in step in their groups, and which waits end no more."""

from monarch_nb.core.hangs.agreement import differences, waits_in_vain, words
from monarch_nb.core.wire.messages.groups import Awaited, GroupCounts, GroupWait, Standings


def rank(left: str = "", **counts: int) -> Standings:
    """Of two ranks; `to_1=3` is three things sent to rank 1."""
    named = {kind.replace("_", " ").replace("any", "*"): count for kind, count in counts.items()}
    return Standings([GroupCounts("0", [0, 1], named, left)], [], True)


def whats(*ranks: Standings) -> list[str]:
    return [each.what for each in differences(dict(enumerate(ranks)))]


def test_ranks_that_have_begun_the_same_are_in_step():
    assert whats(rank(cpu=3, to_1=2), rank(cpu=3, from_0=2)) == []
    assert whats(rank(to_1=2), rank(from_any=2)) == []
    assert whats(rank(cpu=0), rank()) == []


def test_what_was_left_sent_or_begun_by_one_is_told():
    assert whats(rank(cpu=3), rank(cpu=4)) == ["rank 1 had begun more collectives than rank 0"]
    assert whats(rank("all_reduce", cpu=3), rank(cpu=3)) == [
        "rank 0 had left all_reduce before its end"
    ]
    said = "rank 1 had not received what was sent to it, or waited for more"
    assert whats(rank(to_1=3), rank(from_0=2)) == [said]
    assert whats(rank(to_1=1), rank(from_any=2)) == [said]


def test_a_group_that_a_member_does_not_have_and_one_of_which_a_member_is_silent():
    found = differences({0: rank(cpu=1), 1: Standings([], [], True)})
    assert words(found) == "the process group is gone: rank 1 had not come to it"
    assert differences({0: rank(cpu=1)}) == []


def wait(kind: str, number: int, peers: list[int]) -> GroupWait:
    return GroupWait(1, "all_reduce", 0, 0, [Awaited("0", kind, number, peers)])


def test_a_wait_is_in_vain_if_one_that_failed_had_begun_less():
    told = {0: rank(cpu=4), 1: rank(cpu=3)}
    assert waits_in_vain(0, wait("cpu", 4, [1]), {1}, told) == [1]
    assert waits_in_vain(0, wait("cpu", 4, [1]), set(), told) == []
    assert waits_in_vain(0, wait("cpu", 3, [1]), {1}, told) == []
    assert waits_in_vain(0, wait("", 0, [1]), {1}, told) == [1]


def test_who_receives_waits_for_what_was_not_sent():
    told = {0: rank(from_1=2), 1: rank(to_0=1)}
    assert waits_in_vain(0, wait("from 1", 2, [1]), {1}, told) == [1]
    assert waits_in_vain(0, wait("from 1", 1, [1]), {1}, told) == []
    told = {0: rank(), 1: rank(), 2: rank()}
    assert waits_in_vain(0, wait("from *", 1, [1, 2]), {1}, told) == []
    assert waits_in_vain(0, wait("from *", 1, [1, 2]), {1, 2}, told) == [1, 2]


def test_while_one_of_several_may_still_come_the_wait_goes_on():
    told = {0: rank(cpu=4), 1: rank(cpu=3)}
    both = GroupWait(1, "wait", 0, 0, [Awaited("0", "cpu", n, [1]) for n in (3, 4)])
    assert waits_in_vain(0, both, {1}, told) == []
    assert waits_in_vain(0, GroupWait(1, "wait", 0, 0, []), {1}, told) == []
