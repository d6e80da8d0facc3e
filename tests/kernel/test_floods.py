"""Rows 10 and 19: ranks that print more than anybody reads, and a kernel that reads nothing."""

import os
import re
import signal
import time

import pytest

from tests.kernel.client import KernelClient
from tests.support import eventually, rss_bytes, stop

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(180)]

FIRST_CELLS = ("%mesh up --gpus 4", "%%mesh\nimport os, time\nkept = 7")
MILLION = "%%mesh\nfor i in range(250_000): print(i)"
LINE_OF_100_MB = "%%mesh 0\nprint('x' * (100 << 20)); print('after')"
STOOD_STILL_S = 10.0
TALKERS = """
import os
from monarch_nb import Actor, endpoint

class Talker(Actor):
    @endpoint
    def say(self, number):
        print("x" * 1000)
        return number

talkers = mesh0.spawn("talkers", Talker)
"""


def messages_of(cell) -> int:
    return len(cell.contents("stream", "display_data", "update_display_data"))


def stand_still(pid: int) -> None:
    """Stop a process for ten seconds; it is left stopped."""
    stop(pid)
    until = time.monotonic() + STOOD_STILL_S
    eventually(lambda: time.monotonic() > until, STOOD_STILL_S + 5)


def test_a_million_lines_are_shown_in_few_messages(kernel, goal):
    """Of four ranks together."""
    at = time.monotonic()
    cell = kernel.ok(MILLION, timeout_s=120)
    took_s = time.monotonic() - at
    goal("10^6 lines: the cell has ended", took_s, 8.0)
    goal("10^6 lines: messages a second", messages_of(cell) / took_s, 500.0)
    assert "249999" in cell.shown
    assert kernel.ok("1 + 1").shown == "2\n"


def test_a_line_of_100_mb_is_cut(kernel, goal):
    at = time.monotonic()
    cell = kernel.ok(LINE_OF_100_MB, timeout_s=60)
    goal("one line of 100 MB: the cell has ended", time.monotonic() - at, 8.0)
    assert len(cell.shown) < 4 << 20
    assert cell.shown.rstrip().endswith("after")


@pytest.mark.parametrize("shown, when", [("flood", "at once"), ("lines hidden", "later")])
def test_a_flood_ends_at_the_stop_button(kernel, goal, shown, when):
    """As it begins, and when far more has come than can be shown."""
    cell = kernel.start("%%mesh\nwhile True: print('flood')")
    kernel.until(lambda: shown in cell.text(), timeout_s=20)
    goal(f"a flood is stopped, {when}: prompt", kernel.stop_s(cell), 0.3)
    at = time.monotonic()
    assert kernel.ok("%%mesh\nkept").shown.strip() == "[0-3] 7"
    goal("a flood is stopped: the next cell", time.monotonic() - at, 1.0)


def test_a_kernel_that_stands_still_gets_every_answer_later(goal):
    """Its ranks print and answer meanwhile, and stay small. (A kernel of its own, since
    jupyter_client gives one that does not answer a new socket for its heartbeat.)"""
    with KernelClient("monarch") as kernel:
        for cell in (*FIRST_CELLS, TALKERS):
            kernel.ok(cell, timeout_s=60)
        shown = kernel.ok("%%mesh\nos.getpid()").shown
        pids = [int(each) for each in re.findall(r"\] (\d+)", shown)]
        before = [rss_bytes(pid) for pid in pids]
        kernel.ok("calls = [talkers.say.call(i) for i in range(20_000)]", timeout_s=60)
        own = kernel.manager.provisioner.pid
        stand_still(own)
        after = map(rss_bytes, pids)
        most = max(now - was for now, was in zip(after, before, strict=True)) >> 20
        os.kill(own, signal.SIGCONT)
        checked = "sum(set(each.get(60).values()) == {i} for i, each in enumerate(calls))"
        assert kernel.ok(checked, timeout_s=120).shown.strip().endswith("20000")
    goal("the kernel stands still for 10 s: MB that a rank has grown by", most, 64.0)


def test_a_flood_can_be_stopped_after_the_kernel_has_stood_still(goal):
    """Little of it has gathered on the way to the kernel, so ranks are free soon."""
    with KernelClient("monarch") as kernel:
        for cell in FIRST_CELLS:
            kernel.ok(cell, timeout_s=60)
        flood = kernel.start("%%mesh\nwhile True: print('flood')")
        kernel.until(lambda: "flood" in flood.text(), timeout_s=20)
        own = kernel.manager.provisioner.pid
        stand_still(own)
        os.kill(own, signal.SIGCONT)
        goal("a flood is stopped after a standstill: prompt", kernel.stop_s(flood), 1.0)
        at = time.monotonic()
        assert kernel.ok("%%mesh\nkept").shown.strip() == "[0-3] 7"
    goal("a flood is stopped after a standstill: the next cell", time.monotonic() - at, 1.0)
