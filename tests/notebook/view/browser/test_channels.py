"""Who is due when: clients, periods, silence. The clock is the test's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.notebook.view.browser.channels import (
    EARLY_S,
    MAX_CLIENTS,
    SILENCE_S,
    Channels,
    Turn,
)
from monarch_nb.notebook.view.browser.protocol import Hello
from monarch_nb.notebook.view.feed.inputs import View


def hello(client="a", period_s=0.1, parts=(), mesh=None):
    return Hello(client, period_s, frozenset(parts), mesh)


@pytest.fixture
def channels():
    return Channels()


def test_nobody_looks(channels):
    assert channels.next_at() is None
    assert channels.turns(0.0) == []


def test_a_hello_is_answered_by_a_state_at_once_then_by_deltas(channels):
    channels.hello(1, hello(), 5.0)
    assert channels.next_at() <= 5.0
    everything = View(frozenset(), None)
    assert channels.turns(5.0) == [Turn(1, None, ("a",), everything)]
    channels.told(1, 7)
    assert channels.next_at() == pytest.approx(5.15)
    assert channels.turns(5.1) == []
    assert channels.turns(5.16) == [Turn(1, 7, (), everything)]


def told_at(channels, *news):
    """When the one channel is told, with news at these moments."""
    channels.hello(1, hello(), 0.0)
    channels.turns(0.0)
    channels.told(1, 1)
    found = []
    for at in [*news, None]:
        while (due := channels.next_at()) <= (at if at is not None else due) and due < 10:
            had_news = channels._channels[1].news_at is not None
            assert channels.turns(due)
            if had_news:  # else there is nothing to tell
                channels.told(1, 1)
                found.append(pytest.approx(due))
            if at is None:
                return found
        channels.news(at)
    return found


def test_news_are_told_when_they_come():
    """Looks between that find nothing do not count: an event after a silence is not late."""
    assert told_at(Channels(), 5.01, 5.33, 5.61) == [5.01, 5.33, 5.61]


def test_what_several_hosts_tell_within_moments_goes_together():
    """The hub knows that there are several, and gives them the time."""
    channels = Channels()
    channels.hello(1, hello(), 0.0)
    channels.turns(0.0)
    channels.turns(4.999)
    for at in (5.004, 5.005, 5.007):
        channels.news(at)
    assert channels.next_at() == pytest.approx(5.004)


def test_news_in_the_rhythm_of_the_period_are_not_late_though_some_come_early():
    news = [5 + 0.1 * turn - (0.015 if turn % 2 else 0) for turn in range(9)]
    assert told_at(Channels(), *news) == news


def test_news_that_come_too_often_are_told_once_in_a_period():
    found = told_at(Channels(), *[5 + 0.01 * turn for turn in range(100)])
    assert 9 <= len(found) <= 14  # 80 ms apart at the least


def test_what_is_urgent_does_not_wait_for_the_period(channels):
    channels.hello(1, hello(period_s=5.0), 0.0)
    channels.turns(0.0)
    channels.told(1, 1)
    channels.news(0.5)
    assert channels.next_at() == pytest.approx(5.0 - EARLY_S)
    channels.news(0.6, urgent=True)
    assert channels.next_at() <= 0.6
    assert channels.turns(0.6)
    channels.told(1, 2)
    channels.news(0.61, urgent=True)
    assert channels.next_at() == pytest.approx(0.7 - EARLY_S)
    assert channels.turns(0.69)
    channels.told(1, 3)
    channels.news(0.8)
    assert channels.next_at() == pytest.approx(5.69 - EARLY_S)


def test_news_are_for_whoever_looks(channels):
    channels.news(1.0)
    assert channels.next_at() is None


def test_a_second_client_gets_a_state_after_the_delta_of_the_first(channels):
    channels.hello(1, hello("a"), 0.0)
    channels.turns(0.0)
    channels.told(1, 7)
    channels.hello(1, hello("b", 2.0), 0.05)
    assert channels.turns(0.05) == [Turn(1, 7, ("b",), View(frozenset(), None))]


def test_all_get_a_state_when_one_wants_more(channels):
    channels.hello(1, hello("a", mesh="x"), 0.0)
    channels.turns(0.0)
    channels.told(1, 7)
    channels.hello(1, hello("b", parts=["strips"], mesh="y"), 1.0)
    [turn] = channels.turns(1.0)
    assert turn == Turn(1, None, ("a", "b"), View(frozenset({"strips"}), frozenset({"x", "y"})))


def test_the_fastest_period_counts_and_goes_with_its_client(channels):
    channels.hello(1, hello("a", 2.0), 0.0)
    channels.hello(1, hello("b", 0.2), 0.0)
    assert channels.period_s() == 0.2
    channels.bye(1, "b")
    assert channels.period_s() == 2.0
    channels.hello(2, hello("c", 0.5), 0.0)
    assert channels.period_s() == 0.5
    channels.close(2)
    assert channels.period_s() == 2.0


def test_who_is_silent_is_forgotten_and_comes_back_with_a_sign_of_life(channels):
    channels.hello(1, hello(), 0.0)
    channels.turns(0.0)
    channels.told(1, 7)
    assert channels.heard(1, "a", 20.0)
    channels.turns(20.0 + SILENCE_S - 1)
    assert len(channels) == 1
    channels.turns(21.0 + SILENCE_S)
    assert channels.next_at() is None
    assert channels.heard(1, "a", 90.0)
    assert channels.turns(90.0) == [Turn(1, None, ("a",), View(frozenset(), None))]


def test_a_stranger_has_to_say_hello(channels):
    assert not channels.heard(1, "a", 0.0)
    channels.hello(1, hello("a"), 0.0)
    assert not channels.heard(1, "b", 0.0)
    channels.bye(1, "a")
    assert not channels.heard(1, "a", 0.0)


def test_states_for_one_client_are_not_more_than_ten_a_second(channels):
    states = 0
    for tick in range(200):
        channels.hello(1, hello(), tick * 0.01)
        states += sum(len(turn.states) for turn in channels.turns(tick * 0.01))
    assert states <= 21


def test_too_many_clients_are_refused(channels):
    for number in range(MAX_CLIENTS):
        assert channels.hello(1, hello(f"c{number}"), 0.0)
    assert not channels.hello(1, hello("more"), 0.0)
    assert channels.hello(1, hello("c3", 1.0), 0.0)


_EVENT = st.tuples(
    st.sampled_from(["hello", "ping", "news", "bye", "close"]),
    st.integers(1, 2),
    st.sampled_from("abc"),
    st.sampled_from([0.1, 0.5, 5.0]),
    st.sampled_from([0.0, 0.03, 1.0, 40.0]),
)


@given(st.lists(_EVENT, max_size=40))
def test_no_channel_is_looked_at_more_often_than_its_period(events):
    """But for states, which come within a tenth of a second, also after a silence."""
    channels, now = Channels(), 0.0
    looked, asked = {}, {}
    for kind, number, client, period_s, pause_s in [*events, ("ping", 1, "x", 0.0, 0.2)]:
        if kind == "hello":
            channels.hello(number, hello(client, period_s), now)
            asked.setdefault((number, client), now)
        elif kind == "ping":
            channels.heard(number, client, now)
        elif kind == "news":
            channels.news(now)
        elif kind == "bye":
            channels.bye(number, client)
            asked.pop((number, client), None)
        else:
            channels.close(number)
            asked = {key: at for key, at in asked.items() if key[0] != number}
        end = now + pause_s
        while (at := channels.next_at()) is not None and max(at, now) <= end:
            now = max(at, now)
            for turn in channels.turns(now):
                if not turn.states:
                    assert now - looked.get(turn.channel, -9.0) >= 0.1 - EARLY_S - 1e-9
                for each in turn.states:
                    assert now - asked.pop((turn.channel, each), now) <= 0.1 + 1e-9
                looked[turn.channel] = now
                channels.told(turn.channel, 1)
        now = end
    assert not asked
