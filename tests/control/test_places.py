"""Which hosts may join a job, and come back to the next controller: pure decisions."""

import pytest

from monarch_nb.control.hosts.places import Place, Places
from monarch_nb.core.wire.messages.codec import Refused
from monarch_nb.core.wire.messages.hosts import OVER, PROTOCOL, Offer

NOT_KEPT = frozenset()


def offer(index: int = 0, host: int = 0, job: str = "job") -> Offer:
    return Offer(PROTOCOL, {}, job, index, "node1", [], host)


@pytest.fixture
def places():
    made = Places(NOT_KEPT.__contains__)
    made.invite("job", [5, 6])
    return made


def test_each_place_of_a_job_is_taken_once(places):
    first = places.find(offer(1))
    assert first == Place(6, "job", is_back=False, is_last=False)
    places.fill(first)
    assert "is taken" in places.find(offer(1)).error
    assert places.find(offer(0)) == Place(5, "job", is_back=False, is_last=True)


@pytest.mark.parametrize(
    "offered, why",
    [
        (offer(2), "has the places 0 to 1, not 2"),
        (offer(-1), "has the places 0 to 1, not -1"),
        (offer(job="other"), "has no such job"),
    ],
)
def test_what_is_no_place_is_refused(places, offered, why):
    assert why in places.find(offered).error


def test_a_host_that_was_given_up_joins_no_more(places):
    places.give_up(6)
    assert isinstance(places.find(offer(1)), Refused)


def test_who_looks_for_its_next_controller_is_let_in_once():
    places = Places(NOT_KEPT.__contains__)
    places.await_back("job", [5, 6])
    back = places.find(offer(0, 5))
    assert back == Place(5, "job", is_back=True, is_last=False)
    places.fill(back)
    assert places.find(offer(0, 5)) == Refused("the host is wanted no more", OVER)
    assert places.find(offer(0, 7)) == Refused("the job has no such host", OVER)


@pytest.mark.parametrize("kept", [(), (5,)])
def test_who_has_not_got_the_answer_may_ask_again(kept):
    places = Places(kept.__contains__)
    places.await_back("job", [5, 6])
    back = places.find(offer(0, 5))
    places.fill(back)
    assert places.find(offer(0, 5), is_coming=True) == back
    assert isinstance(places.find(offer(0, 5)), Refused)  # it is there


def test_who_comes_too_late_goes_on_where_it_is_kept():
    places = Places({6}.__contains__)
    places.await_back("job", [5, 6])
    places.give_up(6)
    assert places.find(offer(1, 6)).kind != OVER


def test_nobody_is_let_in_where_another_controller_takes_the_hosts(places):
    places.leave()
    assert places.find(offer(0)).kind != OVER
