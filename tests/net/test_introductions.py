"""Who makes two hosts known to each other, and what becomes of their links: pure decisions."""

import pytest

from monarch_nb.core.wire.messages import codec
from monarch_nb.core.wire.messages.hosts import Detour, Expect, HostGone, Meet
from monarch_nb.net.hosts.direct import DirectLinks
from monarch_nb.net.hosts.handshake import Secret
from monarch_nb.net.hosts.introductions import Introductions
from monarch_nb.net.hosts.link import Timing
from monarch_nb.net.hosts.routes import Routes

ONE, TWO = 2, 3
TIMING = Timing(pulse_s=0.5, silent_s=1.5, outage_s=30.0)


def kinds(told) -> list[tuple[int, type]]:
    return [(host, type(message)) for host, message in told]


def test_a_host_that_is_to_come_back_is_made_known_when_it_has():
    introductions = Introductions()
    introductions.expect(TWO)
    assert introductions.add(ONE, ["one"], is_back=True) == []
    assert introductions.introduce(ONE, TWO) == []
    told = introductions.add(TWO, ["two"], is_back=True)
    assert kinds(told) == [(TWO, Expect), (ONE, Meet)]


def test_who_waits_for_a_host_that_does_not_come_is_told():
    introductions = Introductions()
    introductions.expect(TWO)
    introductions.add(ONE, ["one"])
    introductions.introduce(ONE, TWO)
    assert introductions.give_up(TWO) == [(ONE, HostGone(TWO))]
    assert introductions.give_up(TWO) == []


class FakeLink:
    """A link that does nothing; so many records have come."""

    def __init__(self, host, secret, *_, received=0):
        self.host, self.secret, self.received = host, secret, received
        self.drained = None

    def end(self):
        pass

    def send(self, *_):
        pass

    def drain(self, received):
        self.drained = received
        return []


class End:
    """The direct links of one host, what it tells and what it has."""

    def __init__(self):
        self.told, self.made = [], []
        routes = Routes(lambda _: None)
        routes.serve(FakeLink(1, Secret.new()))
        self.links = DirectLinks(routes, TIMING, self._new, self._tell, lambda *_: None)

    def _new(self, host, secret, *_):
        self.made.append(FakeLink(host, secret, received=4))
        return self.made[-1]

    def _tell(self, _host, message):
        self.told.append(message)

    def hear(self, message, host=TWO):
        self.links.told(host, codec.json_of(codec.encode(message)))


@pytest.fixture
def end():
    return End()


def test_a_link_that_the_other_end_gives_up_is_answered_with_what_has_come(end):
    secret = Secret.new()
    end.hear(Expect(TWO, secret.to_text()))
    end.hear(Detour(7, secret.session.hex()))
    assert end.told == [Detour(4, secret.session.hex(), answers=True)]
    assert end.made[0].drained == 7


def test_what_is_said_of_another_link_changes_nothing(end):
    end.hear(Expect(TWO, Secret.new().to_text()))
    end.hear(Detour(7, "of a link that was never known here"))
    assert end.told == [Detour(0, "of a link that was never known here", answers=True)]
    assert end.made[0].drained is None
    assert end.links.has(end.made[0])


def test_who_asks_again_hears_the_same_and_an_answer_is_not_answered(end):
    secret = Secret.new()
    end.hear(Expect(TWO, secret.to_text()))
    for _ in range(2):
        end.hear(Detour(7, secret.session.hex()))
    assert end.told == [Detour(4, secret.session.hex(), answers=True)] * 2
    end.hear(Detour(7, secret.session.hex(), answers=True))
    assert len(end.told) == 2


def test_until_a_link_is_settled_there_is_no_other(end):
    secret = Secret.new()
    end.hear(Expect(TWO, secret.to_text()))
    end.links.lost(end.made[0])
    end.hear(Expect(TWO, Secret.new().to_text()))
    assert len(end.made) == 1
    end.links.tell_again()  # another controller has come
    assert end.told == [Detour(4, secret.session.hex())] * 2
    end.hear(Detour(6, secret.session.hex(), answers=True))
    assert end.made[0].drained == 6
    end.hear(Expect(TWO, Secret.new().to_text()))
    assert len(end.made) == 2
