"""An hour of 64 ranks that change ten times a second, as fast as it goes: nothing grows."""

import gc
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from monarch_nb.control.status.mesh_view import MeshView
from monarch_nb.control.status.sampling import StatusService
from monarch_nb.control.status.snapshots import Snapshot
from monarch_nb.core.shape.extent import Extent
from monarch_nb.core.wire.frames import HOST_SHIFT
from monarch_nb.core.wire.messages.agents import Board
from monarch_nb.notebook.view.feed.feed import Feed
from monarch_nb.notebook.view.feed.inputs import FeedInputs, View

RANKS = 64
UPDATES = 36_000
AGENT = 1 << HOST_SHIFT | 1
ALL = View(frozenset({"strips", "curves", "failures", "actors"}), None)


def told(update: int) -> Board:
    """What an agent tells: all ranks have changed."""
    now_ns = (1000 + update) * 10**8
    state, what = ("busy", f"step {update}") if update % 2 else ("idle", "")
    ranks = [
        [AGENT + 1 + rank, state, now_ns - rank, what, update * 10**7, 0, update, 0, update]
        for rank in range(RANKS)
    ]
    usage = [[row[0], update % 100, update << 20, None, None] for row in ranks]
    return Board(now_ns, ranks, [] if update % 10 else usage)


def growth(update: Callable[[int], object]) -> tuple[int, int]:
    """Bytes and blocks that are there at the end and were not there after a twelfth of the time."""
    process, before = psutil.Process(), (0, 0)
    for number in range(UPDATES):
        update(number)
        if number in (UPDATES // 12, UPDATES - 1):
            gc.collect()
            now = process.memory_info().rss, sys.getallocatedblocks()
            grown, before = (now[0] - before[0], now[1] - before[1]), now
    return grown


def ready() -> Future[None]:
    done: Future[None] = Future()
    done.set_result(None)
    return done


@pytest.mark.slow
def test_while_a_page_looks():
    desk = StatusService(*fake_client())
    sources = desk._sources
    state: Any = SimpleNamespace(
        name="m", number=1, version=0, ended=None, initialized=ready(), actors=[], pids={},
        agents=[AGENT], restarting={},
        processes=[AGENT + 1 + rank for rank in range(RANKS)],
        shape=SimpleNamespace(extent=Extent.from_dict({"gpus": RANKS})),
    )  # fmt: skip
    view, feed, bases = MeshView(state, sources, 0), Feed(100.0), [1]

    def update(number: int) -> None:
        now = 100 + number / 10
        sources.boards.tell(AGENT, told(number), now)
        status = view.status(sources.boards.take_changed())
        if number % 10 == 0:
            view.timeline.feed(number // 10, now, view.samples())
        feed.update(FeedInputs(Snapshot((status,)), timelines={"m": view.timeline}), now)
        delta = feed.delta(bases[-1], ALL)
        assert delta
        bases[-1] = delta["n"]

    rss, blocks = growth(update)
    assert rss < 1 << 20
    assert blocks < 5000


@pytest.mark.slow
def test_while_nobody_looks():
    """Before the first look, as after the last: what agents may still tell is not even kept."""
    desk = StatusService(*fake_client())
    threads = threading.active_count()
    message: Any = SimpleNamespace(source=AGENT)
    rss, blocks = growth(lambda number: desk.on_board(told(number), message))
    assert rss < 1 << 20
    assert blocks < 500
    assert not desk._boards.rows
    assert threading.active_count() == threads


def fake_client() -> tuple[Any, Any]:
    proc = SimpleNamespace(agent=AGENT, dead={}, closed=False)
    return proc, SimpleNamespace(silent={}, states={}, on_exit=[])
