"""What has happened in a run, as an onlooker sees it who is told the truth, and what must not be.

Rule: nothing is stopped by a violation; who runs the simulation looks at `wrong` now and then.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

from monarch_nb.core.wire.frames import HOST_SHIFT
from tests.simulation.clock import Clock


class Made(NamedTuple):
    """A call that was made: by whom, to whom."""

    caller: int
    targets: tuple[int, ...]


class Ledger:
    """Of one run. `late_s`: a host that was given up because nothing was heard of it may go on for
    so long, until it has noticed."""

    def __init__(self, clock: Clock, late_s: float) -> None:
        self.wrong: list[str] = []
        self.story: list[str] = []
        self.seen: Counter[str] = Counter()
        self.open: dict[int, Made] = {}
        """Calls that have not ended, by their numbers."""
        self._clock = clock
        self._late_s = late_s
        self._ends: Counter[int] = Counter()
        self._executed: set[tuple[int, int]] = set()
        self._last: dict[tuple[int, int], int] = {}  # of each sender to each receiver
        self._lost: dict[tuple[int, int], float] = {}  # when a process was told that one is gone
        self._lost_hosts: dict[int, float] = {}

    def is_wrong(self, what: str) -> None:
        self.wrong.append(f"{self._clock.now - 1000:.3f} s: {what}")

    def tell(self, what: str) -> None:
        self.story.append(f"{self._clock.now - 1000:8.3f} s  {what}")

    # calls

    def called(self, number: int, caller: int, targets: tuple[int, ...]) -> None:
        self.open[number] = Made(caller, targets)
        self.seen["calls"] += 1

    def ended(self, number: int) -> None:
        self._ends[number] += 1
        if self._ends[number] > 1:
            self.is_wrong(f"call {number} ended twice")
        self.open.pop(number, None)

    def forget_calls_of(self, caller: int) -> None:
        """Who has made these is dead, and waits no more."""
        for number in [number for number, made in self.open.items() if made.caller == caller]:
            del self.open[number]

    def executes(self, process: int, source: int, number: int) -> None:
        self.seen["executions"] += 1
        if (process, number) in self._executed:
            self.is_wrong(f"{process:x} executes call {number} twice")
        self._executed.add((process, number))
        if number < self._last.get((source, process), 0):
            self.is_wrong(f"{process:x} executes call {number} of {source:x} out of order")
        self._last[source, process] = number
        lost_at = self._lost.get((source, process))
        host_lost_at = self._lost_hosts.get(process >> HOST_SHIFT)
        if lost_at is None:
            return
        late_s = 0.0 if host_lost_at is None else self._late_s
        if self._clock.now > lost_at + late_s:
            self.is_wrong(f"{process:x} executes call {number} after {source:x} has lost it")

    # deaths

    def told_dead(self, told: int, process: int) -> None:
        self._lost.setdefault((told, process), self._clock.now)

    def host_lost(self, host: int) -> None:
        self._lost_hosts.setdefault(host, self._clock.now)


class Watches:
    """Who is to be told by one agent of which ends, and was."""

    def __init__(self, ledger: Ledger, agent: int) -> None:
        self._ledger = ledger
        self._agent = agent
        self._waiting: defaultdict[int, set[int]] = defaultdict(set)
        self._due: Counter[tuple[int, int]] = Counter()
        self._ended: set[int] = set()
        self._left: set[int] = set()  # controllers that are told nothing more

    def wants(self, watcher: int, process: int) -> None:
        if process in self._ended:
            self._due[watcher, process] += 1
        else:
            self._waiting[process].add(watcher)

    def ended(self, process: int) -> None:
        self._ended.add(process)
        for watcher in self._waiting.pop(process, ()):
            self._due[watcher, process] += 1

    def told(self, watcher: int, process: int) -> None:
        if process not in self._ended:  # nobody has asked for it
            self._waiting[process].discard(watcher)
            return
        self._due[watcher, process] -= 1
        if self._due[watcher, process] < 0:
            what = f"agent {self._agent:x} tells {watcher:x} twice of the end of {process:x}"
            self._ledger.is_wrong(what)

    def left(self, controller: int) -> None:
        """It has gone, or another one has taken its place: it is told nothing more."""
        self._left.add(controller)

    def adopted(self, old: int, new: int) -> None:
        self.left(old)
        for watchers in self._waiting.values():
            if old in watchers:
                watchers.add(new)

    def check(self) -> None:
        for (watcher, process), count in self._due.items():
            if count > 0 and watcher not in self._ended and watcher not in self._left:
                what = f"agent {self._agent:x} does not tell {watcher:x} of the end of {process:x}"
                self._ledger.is_wrong(what)
