"""Hosts that die, and connections that break, while messages are on their way: what a process is
sent comes once and in order, and each answer once."""

import pytest

from tests.net.simulated import Network
from tests.net.stories import tell, tell_of_many


@pytest.mark.parametrize("seed", range(20))
def test_what_is_said_comes_once_and_in_order(seed, monkeypatch):
    tell(seed, 12, 2, monkeypatch)


@pytest.mark.slow
def test_so_it_is_with_a_thousand_hosts(monkeypatch):
    seen = tell_of_many(0, monkeypatch)
    assert min(seen.values()) > 0, seen  # all that may go wrong does


@pytest.mark.parametrize("hosts_dial", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_a_way_that_is_given_up_while_it_is_opened_is_none(seed, hosts_dial, monkeypatch):
    network = Network(seed, 2, 1, monkeypatch, hosts_dial=hosts_dial)
    below = network.hosts[3]
    network.clock.run_until(lambda: below.has_asked_for_a_way, 10.0, step_s=0.001)
    network.clock.run(seed / 1000)
    network.lose_direct_link(3)
    network.clock.run(0.2)
    network.cast([2, 3], 1, 1001)
    network.clock.run_until(lambda: len(network.controller.answers) == 4, 60.0)
    network.close()
    assert len(network.controller.answers) == 4
    assert network.controller.lost == below.lost == []
