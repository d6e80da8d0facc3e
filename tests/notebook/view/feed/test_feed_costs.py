"""What updates cost: bytes, time of the kernel, memory.

Measured on two cores: 64 ranks that all change ten times a second are 6.4 KB/s, an update with its
delta takes 0.11 ms (budget: 20 KiB/s, 0.4 ms); 1 024 ranks 89 KB/s.
"""

import json
import statistics
import time
import tracemalloc
from dataclasses import replace

import pytest

from tests.notebook.view.fake_browser import PARTS
from tests.notebook.view.fake_source import FakeCurve, FakeTimeline, FakeUsage
from tests.notebook.view.feed.test_feed import ALL, World


def busy_second(world, ranks, tick):
    """All ranks change, half of them to something else than the others."""
    now = world.now
    for half, state in ((range(0, ranks, 2), "busy"), (range(1, ranks, 2), "collective")):
        shown = state if tick % 2 else "idle"
        what = f"Trainer.step {tick}" if tick % 2 else ""
        world.source.change("mesh0", *half, state=shown, what=what)
    mesh = world.source.meshes["mesh0"]
    moved = tuple(
        replace(each, since=now + each.rank / 1000, beat=each.beat + 3, calls=each.calls + 7,
                usage=FakeUsage(80 + (each.rank + tick) % 20, (900 + tick) << 20, 95, 8 << 30))
        for each in mesh.ranks
    )  # fmt: skip
    world.source.meshes["mesh0"] = replace(mesh, ranks=moved)


def bytes_per_second(ranks, seconds=5):
    world = World()
    world.source.mesh("mesh0", hosts=ranks // 8, gpus=8)
    line = world.source.timelines["mesh0"] = FakeTimeline(["9" * ranks])
    world.look()
    total, base = 0, world.feed.n
    for tick in range(seconds * 10):
        busy_second(world, ranks, tick)
        if tick % 10 == 0:
            line.ended.append("9c" * (ranks // 2))
        world.look()
        delta = world.delta(base)
        base = delta["n"]
        total += len(json.dumps(delta, ensure_ascii=False, separators=(",", ":")).encode())
    return total / seconds


def test_64_ranks_that_change_all_the_time_are_20_kib_a_second():
    assert bytes_per_second(64) < 20 << 10


@pytest.mark.slow
def test_1024_ranks_are_sent_by_less_than_they_are_more():
    assert bytes_per_second(1024) < 16 * bytes_per_second(64)


def test_1024_idle_ranks_cost_next_to_nothing():
    world = World()
    world.source.mesh("mesh0", hosts=128, gpus=8)
    world.look()
    base = world.feed.n
    world.source.change("mesh0", 5, state="busy")
    world.look()
    assert len(json.dumps(world.delta(base))) < 200


@pytest.mark.alone
@pytest.mark.slow
def test_it_costs_little(record_property):
    """The median of an update and a delta of 64 changed ranks."""
    world = World()
    world.source.mesh("mesh0", hosts=8, gpus=8)
    world.look()
    took = []
    for tick in range(300):
        busy_second(world, 64, tick)
        world.now += 0.1
        look, base = world.source.read(0.1, PARTS), world.feed.n
        began = time.thread_time()
        world.feed.update(look, world.now)
        world.feed.delta(base, ALL)
        took.append(time.thread_time() - began)
    median_ms = statistics.median(took) * 1000
    record_property("median_ms", median_ms)
    print(f"update and delta of 64 ranks: {median_ms:.3f} ms")
    assert median_ms < 0.4


@pytest.mark.slow
def test_an_hour_of_updates_grows_nothing():
    world = World()
    world.source.mesh("mesh0", gpus=4)
    line = world.source.timelines["mesh0"] = FakeTimeline(["0000"])
    curve = FakeCurve()
    world.source.of_curves["mesh0"] = {"loss": curve}
    tracemalloc.start()
    try:
        grown = []
        for second in range(3600):
            line.ended.append("9999")
            if len(line.ended) > 300:
                line.ended.pop(0)
                line.forgotten += 1
            curve.points, curve.version = [(second, 1.0, 1.0, 1.0, 1)], second
            world.source.change("mesh0", second % 4, state="busy", what=f"step {second}")
            world.look(1.0)
            world.feed.delta(world.feed.n - 1, ALL)
            if second in (600, 3599):
                grown.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert grown[1] - grown[0] < 1 << 20
