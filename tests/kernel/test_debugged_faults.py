"""Ranks and kernels that end while the visual debugger has stopped them."""

import os
import signal
import time

import pytest

from tests.kernel.client import KernelClient
from tests.kernel.front_end import FrontEnd, took_s

CELL = """%%mesh
def work(x):
    y = x + rank
    return y

print('y', work(20))
"""


@pytest.fixture
def kernel():
    with KernelClient("monarch") as client:
        client.ok("%mesh up --gpus 2")
        yield client


def pids(kernel: KernelClient) -> list[int]:
    cell = kernel.ok("%%mesh\nimport os; print(os.getpid())")
    return [int(line.split()[1]) for line in cell.text().splitlines() if line.startswith("[")]


@pytest.mark.fault
def test_a_rank_that_dies_while_it_is_stopped(kernel):
    doomed = pids(kernel)[1]
    kernel.ok("%mesh debugger 1")
    page = FrontEnd(kernel)
    page.on()
    cell, stopped = page.stop_at(CELL, 4)
    os.kill(doomed, signal.SIGKILL)
    assert page.event("continued")["threadId"] == stopped["threadId"]
    page.event("terminated")
    assert kernel.finish(cell).status == "error"
    assert "rank 1" in cell.error
    assert not page.ok("debugInfo")["isStarted"]
    assert not page.ask("stackTrace", threadId=stopped["threadId"])["success"]
    refused = page.ask("initialize")
    assert not refused["success"]
    page.off()
    kernel.ok("%mesh heal")
    page.on()
    cell, _ = page.stop_at(CELL, 4)
    page.resume()
    assert kernel.finish(cell).status == "ok"
    page.off()


@pytest.mark.fault
def test_one_of_all_ranks_dies(kernel):
    doomed = pids(kernel)[1]
    kernel.ok("%mesh debugger all")
    page = FrontEnd(kernel)
    page.on()
    cell, _ = page.stop_at(CELL, 4)
    kernel.until(lambda: len(page.ok("debugInfo")["stoppedThreads"]) == 2)
    os.kill(doomed, signal.SIGKILL)
    kernel.until(lambda: len(page.ok("debugInfo")["stoppedThreads"]) == 1)
    assert page.ok("debugInfo")["isStarted"]
    page.resume()
    assert kernel.finish(cell).status == "error"
    kernel.ok("%mesh heal")
    cell = page.run(CELL)  # the rank that is back has the breakpoints too
    kernel.until(lambda: len(page.ok("debugInfo")["stoppedThreads"]) == 2)
    page.resume()
    assert kernel.finish(cell).status == "ok"
    page.off()


@pytest.mark.slow
def test_the_kernel_restarts_while_ranks_are_stopped():
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh up --gpus 2")
        kernel.ok("%mesh debugger all")
        page = FrontEnd(kernel)
        page.on()
        page.stop_at(CELL, 4)
        started = time.monotonic()
        kernel.client.stop_channels()
        kernel.manager.restart_kernel(now=False)
        kernel.connect()
        assert took_s(started) < 20.0
        assert "No mesh is up" in kernel.ok("%mesh").shown
