"""What it costs that ranks tell what they do, and that somebody looks. Only of monarch_nb.

The board is taken away from a rank and given back in turns, in one run of the same process: so a
machine that slows down slows both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psutil

from benchmarks.measures import Figures, Scale
from benchmarks.timing import cpu_s, median, now
from monarch_nb import Actor, endpoint, this_host
from monarch_nb.control.client import client
from monarch_nb.process import current

BLOCK = 100  # calls
LOOK_S = 0.1
RANKS = 64
UPDATES = 60
SETTLED_S = 1.0  # 64 ranks have begun by then


class Teller(Actor):
    """May do without its rank's board."""

    def __init__(self) -> None:
        self._hosting = current.runtime().hosting
        self._board = self._hosting.board

    @endpoint
    def tell(self, on: bool) -> None:
        self._hosting.board = self._board if on else None

    @endpoint
    def echo(self, value: int) -> int:
        return value

    @endpoint
    def agent(self) -> int:
        return psutil.Process().parents()[1].pid

    @endpoint
    def flicker(self, seconds: float) -> None:
        """Something new on the board at each look."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._board.busy("flicker")
            time.sleep(LOOK_S / 2)


def cost(scale: Scale) -> Figures:
    """Round trips with the board, and with somebody who looks, times those without."""
    procs = this_host().spawn_procs(per_host={"gpus": 1})
    teller = procs.spawn("teller", Teller)
    teller.echo.call_one(0).get()
    rounds = max(4, scale.calls // 10)
    told = _times(teller, rounds, lambda on: teller.tell.call_one(on).get())
    teller.tell.call_one(True).get()
    looks: list[Any] = []

    def look(on: bool) -> None:
        if on:
            looks.append(client().status.watch(LOOK_S))
        else:
            while looks:
                looks.pop().close()

    seen = _times(teller, rounds, look)
    look(False)
    procs.stop().get()
    return {"told": told, "seen": seen}


def _times(teller: Any, rounds: int, switch: Callable[[bool], None]) -> float:
    """The median of a call when it is on, times that when it is off: the median of many rounds.

    A round is off, on, on, off within a few hundredths of a second, so that whatever else the
    machine does meets both; a round that it met in part says something extreme, and counts once.
    """
    return median([_ratio(teller, switch) for _ in range(rounds)])


def _ratio(teller: Any, switch: Callable[[bool], None]) -> float:
    medians: dict[bool, float] = {True: 0.0, False: 0.0}
    for on in (False, True, True, False):
        switch(on)
        medians[on] += median([_round_trip(teller.echo) for _ in range(BLOCK)])
    return medians[True] / medians[False]


def _round_trip(echo: Any) -> float:
    start = now()
    echo.call_one(0).get()
    return now() - start


def look(_scale: Scale) -> Figures:
    """Processor time of one update of 64 ranks of which all have news, ten times a second.

    What the same processes use while nobody looks is taken off.
    """
    procs = this_host().spawn_procs(per_host={"gpus": RANKS})
    teller = procs.spawn("teller", Teller)
    agent = teller.slice(gpus=0).agent.call_one().get()
    running = teller.flicker.call(2 * UPDATES * LOOK_S + SETTLED_S + 2)
    time.sleep(SETTLED_S)
    unseen = _used(agent, lambda: 0)
    watch = client().status.watch(LOOK_S)
    news = News()
    seen = _used(agent, news.look)
    watch.close()
    running.get()
    procs.stop().get()
    if news.count < 0.8 * UPDATES * RANKS:
        return {"agent": f"only {news.count} of {UPDATES * RANKS} ranks had news"}
    agent_s, own_s = (
        (with_us - without) / UPDATES for with_us, without in zip(seen, unseen, strict=True)
    )
    return {"agent": agent_s, "own": own_s}


class News:
    """Counts ranks that are not as they were at the last look."""

    def __init__(self) -> None:
        self.count = 0
        self._last = client().status.snapshot().meshes[0].ranks

    def look(self) -> None:
        ranks = client().status.snapshot().meshes[0].ranks
        self.count += sum(one is not two for one, two in zip(ranks, self._last, strict=True))
        self._last = ranks


def _used(agent: int, update: Callable[[], object]) -> tuple[float, float]:
    """Seconds of processor time of the agent and of this process, in so many updates."""
    began, agent_s, own_s = now(), cpu_s(agent), time.process_time()
    for number in range(UPDATES):
        time.sleep(max(0.0, began + (number + 1) * LOOK_S - now()))
        update()
    return cpu_s(agent) - agent_s, time.process_time() - own_s
