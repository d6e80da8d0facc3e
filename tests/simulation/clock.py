"""Time that passes when it is told to, and loops that live in it."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable

Action = Callable[[], object]


class Clock:
    """What is to happen, in its order. Ties are broken by chance."""

    def __init__(self, seed: int) -> None:
        self.now = 1000.0
        self.random = random.Random(seed)
        self._events: list[tuple[float, float, int, Action]] = []
        self._order = itertools.count()

    def after(self, seconds: float, action: Action) -> None:
        place = (self.now + seconds, self.random.random(), next(self._order), action)
        heapq.heappush(self._events, place)

    def run(self, seconds: float) -> None:
        """Let so much time go by."""
        until = self.now + seconds
        while self._events and self._events[0][0] <= until:
            self.now, _, _, action = heapq.heappop(self._events)
            action()
        self.now = until

    def run_until(self, is_so: Callable[[], object], limit_s: float, step_s: float = 0.1) -> bool:
        until = self.now + limit_s
        while not is_so() and self.now < until:
            self.run(step_s)
        return bool(is_so())

    # what a link knows as the module `time`

    def monotonic(self) -> float:
        return self.now


class Loop:
    """The loop of one process, which may stand still, and ends with it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.is_over = False
        self.readers: dict[int, Action] = {}
        self.wakers: dict[int, Action] = {}  # by socket: has it read what has come
        self._frozen_until = 0.0

    @property
    def now(self) -> float:
        return self.clock.now

    @property
    def is_frozen(self) -> bool:
        return self.clock.now < self._frozen_until

    def freeze(self, seconds: float) -> None:
        """Do nothing for so long; what is due then is done afterwards."""
        self._frozen_until = max(self._frozen_until, self.clock.now + seconds)

    def turn(self, action: Action) -> None:
        """Do it when this process may run: at once, if it does not stand still."""
        if self.is_over:
            return
        if self.is_frozen:
            left_s = self._frozen_until - self.clock.now
            self.clock.after(left_s + 1e-6, lambda: self.turn(action))
        else:
            action()

    def when_readable(self, fd: int, action: Action) -> None:
        self.readers[fd] = action
        self.soon(self.wakers[fd])

    def stop_reading(self, fd: int) -> None:
        self.readers.pop(fd, None)

    def stop_writing(self, fd: int) -> None:
        pass

    def after(self, seconds: float, action: Action) -> None:
        self.clock.after(seconds, lambda: self.turn(action))

    def soon(self, action: Action) -> None:
        self.after(0.0, action)

    def call(self, action: Action) -> None:
        action()

    def every(self, seconds: float, action: Callable[[float], object]) -> None:
        def again() -> None:
            action(self.clock.now)
            self.after(seconds, again)

        self.after(seconds * self.clock.random.random(), again)
