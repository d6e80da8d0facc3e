"""What is left of collectives: whether the group can still be used."""

import threading

import pytest

from monarch_nb.worker.groups.waits import Abandoned


def left_with(is_done) -> Abandoned:
    left = Abandoned(lambda: None)
    left.add("all_reduce", object(), is_done)
    return left


def test_what_never_ends_makes_the_group_useless():
    left = left_with(lambda: False)
    with pytest.raises(RuntimeError, match="left its last all_reduce before it had ended"):
        left.check(object())
    left.forget()
    left.check(object())


def test_what_has_ended_on_the_peers_and_ends_here_a_moment_later_is_waited_for():
    ended = threading.Event()
    left = left_with(ended.is_set)
    timer = threading.Timer(0.03, ended.set)
    timer.start()
    left.check(object())
    timer.join()
    assert not left


def test_a_work_itself_may_be_waited_for_again():
    left, work = Abandoned(lambda: None), object()
    left.add("all_reduce", work, lambda: False)
    left.check(work)


def test_what_was_broken_is_not_waited_for():
    left = left_with(lambda: False)
    left.broke("recv")
    with pytest.raises(RuntimeError, match="left its last recv"):
        left.check(object())
