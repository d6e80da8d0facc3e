"""Hundreds of hosts that die, and connections that break, while messages are on their way: what a
process is sent comes once and in order, and each answer once."""

import random
from collections import Counter

import pytest

from tests.net.simulated import Network


class Story:
    """Casts, calls, deaths and breaks in an order that the seed says."""

    def __init__(self, seed, hosts, fan_out, monkeypatch):
        self.random = random.Random(seed)
        self.network = Network(seed, hosts, fan_out, monkeypatch, hosts_dial=bool(seed % 2))
        self.sent = {each: [] for each in self.network.processes(self.network.hosts)}
        self.asked = Counter()
        self.number = 0

    @property
    def living(self):
        return [each for each in self.network.hosts if each not in self.network.dead]

    def say(self):
        self.number += 1
        network, number = self.network, self.number
        what = self.random.random()
        if what < 0.7:
            some = self.living
            if what < 0.2:
                some = sorted(self.random.sample(some, max(1, len(some) // 3)))
            network.cast(some, number, number + 1000)
        else:
            some = [self.random.choice(self.living)]
            for each in network.processes(some):
                network.call(each, number, number + 1000)
        for each in network.processes(some):
            self.sent[each].append(number)
            self.asked[number + 1000, each] += 1

    def harm(self):
        host, what = self.random.choice(self.living), self.random.random()
        if what < 0.4:
            self.network.kill(host)
        elif what < 0.7:
            self.network.break_connection(host)
        else:
            self.network.freeze_connection(host, self.random.choice([0.5, 2.0, 8.0]))

    def check(self):
        network = self.network
        alive = set(network.processes(self.living))
        asked = Counter({each: n for each, n in self.asked.items() if each[1] in alive})

        def answered():
            answers = network.controller.answers
            return asked == Counter({each: n for each, n in answers.items() if each[1] in alive})

        assert network.clock.run_until(
            lambda: answered() and set(network.controller.lost) >= network.dead, 90.0
        ), self.what_is_missing(asked)
        assert set(network.controller.lost) == network.dead
        assert max(network.controller.answers.values(), default=1) == 1
        for number in self.living:
            host = network.hosts[number]
            assert not host.lost
            for process in network.processes([number]):
                assert host.got.get(process, []) == self.sent[process]
        for number in network.dead:
            for process in network.processes([number]):
                got = network.hosts[number].got.get(process, [])
                assert got == self.sent[process][: len(got)]

    def what_is_missing(self, asked):
        missing = asked - self.network.controller.answers
        hosts = sorted({process >> 48 for _, process in missing})
        return (
            f"{sum(missing.values())} answers of hosts {hosts}; lost "
            f"{self.network.controller.lost}, dead {self.network.dead}"
        )


def tell(seed, hosts, fan_out, monkeypatch, rounds=30):
    story = Story(seed, hosts, fan_out, monkeypatch)
    try:
        for _ in range(rounds):
            for _ in range(story.random.randrange(4)):
                story.say()
            if story.random.random() < 0.25 and len(story.living) > 2:
                story.harm()
            story.network.clock.run(story.random.choice([0.001, 0.01, 0.1, 0.5, 2.0]))
        story.check()
    finally:
        story.network.close()


@pytest.mark.parametrize("seed", range(20))
def test_what_is_said_comes_once_and_in_order(seed, monkeypatch):
    tell(seed, 12, 2, monkeypatch)
