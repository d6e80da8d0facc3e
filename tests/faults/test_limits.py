"""Rows 25 and 29: what the operating system refuses, and clocks that jump."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_nb import this_host
from monarch_nb.control.client import client
from tests.faults.test_hosts import process_of
from tests.support import eventually

HOUR_S = 3600.0


@contextlib.contextmanager
def limited(pids: list[int], most: int) -> Iterator[None]:
    """Let these processes, and those they start, be no more than `most`."""
    root = Path("/sys/fs/cgroup/pids")
    group = root / f"mnb-{os.getpid()}"
    group.mkdir()
    (group / "pids.max").write_text(str(most))
    try:
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (root / "cgroup.procs").write_text(pid)
        eventually(lambda: not (group / "cgroup.procs").read_text(), what="the group is empty")
        group.rmdir()


@pytest.mark.fault
def test_a_spawn_beyond_the_limit_of_processes_says_so(mesh, goal, failures, needs):
    needs("pids_cgroup", "root")
    made = mesh(1)
    with limited([process_of("zygote", made.pids)], 3):
        at = time.monotonic()
        more = this_host().spawn_procs(per_host={"gpus": 8})
        error = more.initialized.exception(timeout=20)
        goal("no more processes: told", time.monotonic() - at, 1.0)
        assert "Resource temporarily unavailable" in str(error)
        assert made.workers.add.call_one().get(timeout=5) == 1
    more.stop().get(timeout=20)
    again = mesh(2)
    assert list(again.workers.add.call().get(timeout=10).values()) == [1, 1]


@pytest.mark.fault
@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S], ids=["forward", "back"])
def test_a_jump_of_the_wall_clock_is_not_noticed(mesh, failures, monkeypatch, jump_s):
    """Here and on the ranks. What an agent measures is read with another clock altogether."""
    made = mesh(2)
    jump = f"import time\nreal = time.time\ntime.time = lambda: real() + {jump_s}"
    running = made.workers.sleep.call(2.5)
    assert len(made.workers.add.call().get(timeout=10)) == 2
    made.workers.do.call(jump).get(timeout=10)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump_s)
    assert list(running.get(timeout=10).values()) == [2.5, 2.5]
    assert list(made.workers.add.call().get(timeout=10).values()) == [2, 2]
    assert not client().supervision.silent
    assert failures == []
