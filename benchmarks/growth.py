"""How the time of a call grows with the hosts that it reaches, on a simulated clock.

The hosts are real gateways over a simulated network (`tests/net/simulated.py`), each with a
processor of its own: what a step takes is measured and passes on the clock of its host alone, so
ten thousand hosts work side by side in one thread. A record takes 50 us on its way.
"""

import gc
import time
from collections import deque
from collections.abc import Callable

import pytest

from benchmarks.measures import Figures, Scale
from benchmarks.timing import median
from tests.net import simulated
from tests.net.simulated import CONTROLLER, Clock, Network

COUNTS = (10, 100, 1000, 10_000)
TREE = 32
_DELAY_S = 50e-6
_CALLS = 5
_GROWS_S = 300.0  # of the simulated clock
_LIMIT_S = 60.0


class Processor(simulated.Loop):
    """The loop of a host that does one thing after the other, each as long as it takes here."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._waiting: deque[Callable[[], object]] = deque()
        self._is_working = False
        self._began: float | None = None
        self._at = 0.0

    @property
    def now(self) -> float:
        spent = 0.0 if self._began is None else time.thread_time() - self._began
        return max(self.clock.now, self._at) + spent

    def turn(self, action: Callable[[], object]) -> None:
        self._waiting.append(action)
        if not self._is_working:
            self._is_working = True
            self.clock.after(0.0, self._work)

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        until = self.now + seconds
        self.clock.after(until - self.clock.now, lambda: self.is_over or self.turn(action))

    def _work(self) -> None:
        self._at = self.clock.now
        action = self._waiting.popleft()
        self._began = time.thread_time()
        action()
        self._at += time.thread_time() - self._began
        self._began = None
        if self._waiting:
            self.clock.after(self._at - self.clock.now, self._work)
        else:
            self.clock.after(self._at - self.clock.now, self._rest)

    def _rest(self) -> None:
        if self._waiting:
            self._work()
        else:
            self._is_working = False


def growth(_: Scale) -> Figures:
    """A call to 2 processes of each of 10 to 10 000 hosts: time on the simulated clock."""
    figures: dict[str, float] = {}
    for count in COUNTS:
        figures[f"tree_{count}"] = _time_of_call(count, TREE)
        figures[f"star_{count}"] = _time_of_call(count, count)
    figures["times"] = figures["tree_10000"] / figures["tree_1000"]
    return {**figures}


def _time_of_call(hosts: int, fan_out: int) -> float:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulated, "Loop", Processor)
        patch.setattr(simulated, "MOST_DELAY_S", _DELAY_S)
        network = Network(0, hosts, fan_out, patch, hosts_dial=True)
        clock = network.clock
        try:
            clock.run_until(lambda: len(network.connected()) <= min(hosts, fan_out), _GROWS_S)
            clock.run(2.0)
            times = [_one_call(network, number) for number in range(1, _CALLS + 1)]
        finally:
            network.close()
    return median(times)


def _one_call(network: Network, number: int) -> float:
    clock, loop = network.clock, network.host(CONTROLLER).loop
    hosts, answers = list(network.hosts), network.controller.answers
    expected = len(answers) + 2 * len(hosts)
    gc.collect()
    gc.disable()
    try:
        began = clock.now
        loop.turn(lambda: network.cast(hosts, number, 1000 + number))
        if not clock.run_until(lambda: len(answers) == expected, _LIMIT_S, step_s=1e-4):
            raise AssertionError(f"{expected - len(answers)} answers did not come")
        took = clock.now - began
    finally:
        gc.enable()
    clock.run(0.3)
    return took
