"""Stories of hosts that die and of connections that break while messages are on their way, with the
check that what a process is sent has come once and in order, and each answer once."""

import random
from collections import Counter

from tests.net.simulated import TIMING, Network

_LONGEST_S = 8 * TIMING.outage_s
"""Until all is known. A host that nobody heard closing is given up after an outage, and one that
was under it after another one."""


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
        host, what = self._some_host(), self.random.random()
        if what < 0.35:
            self.network.kill(host)
        elif what < 0.6:
            self.network.break_connection(host)
        elif what < 0.7:
            self.network.lose_direct_link(host)
        else:
            self.network.freeze_connection(host, self.random.choice([0.5, 2.0, 8.0]))

    def _some_host(self):
        # of many few carry for others, and only their ends change the tree
        carriers = sorted(self.network.carriers() - self.network.dead)
        if carriers and self.random.random() < 0.5:
            return self.random.choice(carriers)
        return self.random.choice(self.living)

    def check(self):
        network = self.network
        alive = set(network.processes(self.living))
        asked = {each: n for each, n in self.asked.items() if each[1] in alive}
        waiting = set(asked)

        def answered():
            answers = network.controller.answers
            waiting.difference_update([each for each in waiting if answers[each]])
            return not waiting

        assert network.clock.run_until(
            lambda: answered() and set(network.controller.lost) >= network.dead, _LONGEST_S
        ), self.what_is_missing(waiting)
        answers = network.controller.answers
        assert asked == {each: n for each, n in answers.items() if each[1] in alive and n}
        assert set(network.controller.lost) == network.dead
        assert max(answers.values(), default=1) == 1
        for number in self.living:
            host = network.hosts[number]
            assert not host.lost
            for process in network.processes([number]):
                assert host.got.get(process, []) == self.sent[process]
        for number in network.dead:
            for process in network.processes([number]):
                got = network.hosts[number].got.get(process, [])
                assert got == self.sent[process][: len(got)]

    def what_is_missing(self, waiting):
        hosts = sorted({process >> 48 for _, process in waiting})
        return (
            f"{len(waiting)} answers of hosts {hosts}; lost "
            f"{self.network.controller.lost}, dead {self.network.dead}"
        )


def tell(seed, hosts, fan_out, monkeypatch, rounds=30, says=3, harms=1):
    """Tell a story: rounds with up to so many messages and, one in four, up to so many harms.
    Return how often what happened in it. Raises `AssertionError` for a violation."""
    story = Story(seed, hosts, fan_out, monkeypatch)
    try:
        for _ in range(rounds):
            for _ in range(story.random.randint(0, says)):
                story.say()
            if story.random.random() < 0.25 and len(story.living) > 2:
                for _ in range(story.random.randint(1, harms)):
                    story.harm()
            story.network.clock.run(story.random.choice([0.001, 0.01, 0.1, 0.5, 2.0]))
        story.check()
    finally:
        story.network.close()
    return story.network.seen


def tell_of_many(seed, monkeypatch, hosts=1000):
    """Tell a story of many hosts, many of which are harmed at once."""
    fan_out = random.Random(seed).choice([4, 32])
    return tell(seed, hosts, fan_out, monkeypatch, rounds=15, says=1, harms=12)
