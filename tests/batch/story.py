"""Runs on hosts of an engine, as each engine has to do them: one fails, one is stopped, one is
killed. Its meshes are on the hosts meanwhile, and nothing of it is there afterwards."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from monarch_nb.control.batch.run_record import RunRecord
from tests.batch.terminal import notebook, shown, start, tagged, typed, until_shown
from tests.support import descendants, eventually, is_running

GONE_S = 60  # a host whose kernel was killed waits for it for `outage_s`
LAST = "print('in')\nassert then != 'fail'\nif then == 'wait': __import__('time').sleep(600)"


def notebook_on_hosts(folder: Path) -> Path:
    """A notebook whose ranks compute; its last cell does what the parameter `then` says."""
    return notebook(
        folder / "far.ipynb",
        tagged("then = 'pass'", "parameters"),
        "%mesh up gpus=1 --device cpu",
        "%%mesh\nrank * 10",
        LAST,
    )


def tell_of_runs(
    folder: Path,
    on: Sequence[object],
    is_idle: Callable[[], bool],
    is_idle_after_a_kill: Callable[[], bool] | None = None,
) -> None:
    """`on`: the options that ask for two hosts; `is_idle`: they are given back."""
    path = notebook_on_hosts(folder)
    code, out, err = typed("run", path, "-p", "then=fail", *on)
    assert (code, err) == (1, ""), out
    assert "cell 5 of 5 (print('in') ...) failed: AssertionError" in out.splitlines()[-1]
    assert "mesh0 is up: 2 ranks (hosts=2 gpus=1)" in shown(folder / "far.run-1.ipynb", 2)
    assert shown(folder / "far.run-1.ipynb", 3) == "[0] 0\n[1] 10\n"
    eventually(is_idle)

    run, there = _at_work(path, on)
    assert not is_idle()
    assert typed("stop") == (0, f"{run.name} has ended (stopped): {run.output}\n", "")
    eventually(lambda: is_idle() and not any(map(is_running, there)))

    run, there = _at_work(path, on)
    os.kill(run.pid, signal.SIGKILL)
    eventually(is_idle_after_a_kill or is_idle, GONE_S)
    eventually(lambda: not any(map(is_running, there)))
    assert typed("runs")[1].startswith(f"{run.name}  killed  ")


def _at_work(path: Path, on: Sequence[object]) -> tuple[RunRecord, set[int]]:
    # once its last cell runs, with all its processes here
    run = start(path, "-p", "then=wait", *on)
    until_shown(run.output, 4, "in")
    run = run.now()
    return run, {run.pid, *descendants(run.pid)}
