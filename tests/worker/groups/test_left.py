"""What is left of collectives: whether the group can still be used."""

import threading

import pytest

from monarch_nb.worker.groups.waits import Abandoned


def left_with(is_done) -> Abandoned:
    left = Abandoned(lambda: None)
    left.add("all_reduce", "0", object(), is_done)
    return left


def test_what_never_ends_makes_the_group_useless():
    left = left_with(lambda: False)
    with pytest.raises(RuntimeError, match="left its last all_reduce before it had ended"):
        left.check(object(), "0")
    left.forget()
    left.check(object(), "0")


def test_what_has_ended_on_the_peers_and_ends_here_a_moment_later_is_waited_for():
    ended = threading.Event()
    left = left_with(ended.is_set)
    timer = threading.Timer(0.03, ended.set)
    timer.start()
    left.check(object(), "0")
    timer.join()
    assert not left


def test_a_work_itself_may_be_waited_for_again():
    left, work = Abandoned(lambda: None), object()
    left.add("all_reduce", "0", work, lambda: False)
    left.check(work, "0")


def test_what_was_broken_is_not_waited_for():
    left = left_with(lambda: False)
    left.broke("recv", ["0"])
    with pytest.raises(RuntimeError, match="left its last recv"):
        left.check(object(), "0")


def test_other_groups_stay_of_use():
    left = left_with(lambda: False)
    left.check(object(), "ranks 0,1")
    left.refuse(["ranks 0,1"], "rank 2 was ahead")
    with pytest.raises(RuntimeError, match="used any more: rank 2 was ahead. Type: %mesh regroup"):
        left.check(object(), "ranks 0,1")
    left.forget("ranks 0,1")
    left.check(object(), "ranks 0,1")
    assert (left.left_in("0"), left.left_in("ranks 0,1")) == ("all_reduce", "")
