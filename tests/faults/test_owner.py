"""Rows 6 and 7: the program that drives the mesh ends, in every way a program can."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from monarch_nb.testing.processes import all_pids, read
from tests.source import ROOT
from tests.support import eventually, is_running

START = """
import atexit, json, os, signal, sys, threading, time
import monarch_nb
from monarch_nb import Actor, endpoint, this_host

if {light}:  # without torch in the zygote: two seconds less
    from functools import partial
    from monarch_nb.control.hosts import agents
    agents.AgentBoot = partial(agents.AgentBoot, preload=("cloudpickle",))

class Tidy(Actor):
    def __init__(self, ledger): self.ledger = ledger
    @endpoint
    def pid(self): return os.getpid()
    @endpoint
    def sleep(self, s): time.sleep(s)
    @endpoint
    def hold(self, s): import ctypes; ctypes.PyDLL(None).sleep(s)
    def __cleanup__(self, error):
        with open(self.ledger, "a") as file: file.write(f"{{os.getpid()}}\\n")

if __name__ == "__main__":
    procs = this_host().spawn_procs(per_host={{"gpus": 2}})
    actors = procs.spawn("tidy", Tidy, sys.argv[1])
    print(json.dumps(list(actors.pid.call().get().values())), flush=True)
    {then}
"""


class Program:
    """A client of two ranks in a process of its own."""

    def __init__(self, folder: Path, then: str, *, light: bool = True) -> None:
        self.ledger = folder / "ledger"
        self.ledger.touch()
        path = folder / "program.py"
        path.write_text(START.format(then=then, light=light))
        self.mark = f"MNB_TEST_PROGRAM={folder}"
        name, _, value = self.mark.partition("=")
        self.process = subprocess.Popen(
            [sys.executable, str(path), str(self.ledger)],
            env={**os.environ, "PYTHONPATH": str(ROOT), name: value},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.ranks: list[int] = json.loads(self.process.stdout.readline() or self.fail())

    def fail(self) -> str:
        raise AssertionError(self.process.communicate()[1])

    def alive(self) -> set[int]:
        """All its processes, wherever they went."""
        mark = self.mark.encode()
        return {p for p in all_pids() if is_running(p) and mark in read(p, "environ").split(b"\0")}

    def end(self, within_s: float = 30.0) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=within_s)
        return self.process.returncode, errors

    def cleaned(self) -> list[int]:
        return sorted(int(line) for line in self.ledger.read_text().splitlines())


def assert_all_gone(program: Program, goal, what: str, at: float, goal_s: float) -> None:
    eventually(lambda: not program.alive(), 10 * goal_s, lambda: f"gone: {program.alive()}")
    goal(what, time.monotonic() - at, goal_s)
    left = [name for name in os.listdir(os.environ["TMPDIR"]) if name.startswith("mnb-")]
    eventually(lambda: not left or not still(left), 5.0, lambda: f"run dirs removed: {still(left)}")
    shared = [name for name in os.listdir("/dev/shm") if name.startswith(("mnb-", "monarch"))]
    eventually(lambda: not [n for n in shared if Path(f"/dev/shm/{n}").exists()], 5.0, str(shared))


def still(names: list[str]) -> list[str]:
    return [name for name in names if Path(os.environ["TMPDIR"], name).exists()]


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_sigkill_leaves_nothing(tmp_path, goal, busy):
    then = "actors.sleep.call(1000).get()" if busy else "threading.Event().wait()"
    program = Program(tmp_path, then, light=not busy)
    assert len(program.alive()) == 5  # the program, agent, zygote, two ranks
    at = time.monotonic()
    program.process.kill()
    program.end()
    assert_all_gone(program, goal, f"SIGKILL of the client, {then}: nothing left", at, 1.0)


@pytest.mark.fault
def test_stopped_and_then_killed_leaves_nothing(tmp_path, goal):
    program = Program(tmp_path, "threading.Event().wait()")
    program.process.send_signal(signal.SIGSTOP)
    at = time.monotonic()
    program.process.kill()
    program.end()
    assert_all_gone(program, goal, "SIGSTOP, then SIGKILL of the client: nothing left", at, 1.0)


@pytest.mark.slow
@pytest.mark.fault
def test_a_client_that_takes_long_to_die_leaves_nothing(tmp_path, goal):
    """The system closes its files first, which the agent sees; on a busy machine the rest takes."""
    lets_go = "from monarch_nb.control.client import client; client()._agent.let_go()"
    program = Program(tmp_path, f"{lets_go}; time.sleep(1); os.kill(os.getpid(), 9)")
    program.end()
    at = time.monotonic()
    assert_all_gone(program, goal, "SIGKILL of the client, slowly: nothing left", at, 1.0)


ENDS = {
    "normal end": ("pass", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "an exception": ("raise ValueError('out')", 1),
    "SIGTERM": ("threading.Event().wait()", -signal.SIGTERM),
    "SIGTERM in a call": ("actors.sleep.call(1000).get()", -signal.SIGTERM),
    "an exception in atexit": ("atexit.register(lambda: 1 / 0)", 0),
    "stopped before": ("procs.stop().get()", 0),
    "os._exit": ("os._exit(0)", 0),
}


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("how", ENDS)
def test_an_orderly_end_cleans_up(tmp_path, goal, how):
    then, code = ENDS[how]
    program = Program(tmp_path, then)
    at = time.monotonic()
    if code == -signal.SIGTERM:
        program.process.terminate()
    found, errors = program.end()
    goal(f"{how}: the client's end", time.monotonic() - at, 5.0)
    assert_all_gone(program, goal, f"{how}: nothing left", at, 5.0)
    assert found in (code, 128 - code if code < 0 else code), errors
    assert program.cleaned() == ([] if how == "os._exit" else sorted(program.ranks))
    expected = {"an exception": "ValueError: out", "an exception in atexit": "ZeroDivisionError"}
    if how in expected:
        assert expected[how] in errors
    else:
        assert errors == ""


@pytest.mark.slow
def test_a_rank_that_will_not_end_does_not_hold_up_the_end(tmp_path, goal):
    then = "actors.slice(gpus=0).sleep.call_one(1000); time.sleep(.3)"
    program = Program(tmp_path, then)
    at = time.monotonic()
    code, errors = program.end()
    goal("normal end with a rank in a long call: nothing left", time.monotonic() - at, 5.0)
    assert_all_gone(program, goal, "the same, seen from outside", at, 5.0)
    assert (code, errors) == (0, "")
    assert program.cleaned() == sorted(program.ranks)


DEAF = {
    "stopped": "os.kill(ranks[0], signal.SIGSTOP)",
    "in a long C call": (
        "actors.slice(gpus=0).hold.call_one(1000); "
        "actors.slice(gpus=1).pid.call_one().get(); time.sleep(.2)"
    ),
}


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("how", DEAF)
def test_a_deaf_rank_is_killed_in_time(tmp_path, goal, how):
    program = Program(tmp_path, f"ranks = list(actors.pid.call().get().values()); {DEAF[how]}")
    at = time.monotonic()
    code, errors = program.end()
    goal(f"normal end with a rank {how}: nothing left", time.monotonic() - at, 5.0)
    assert_all_gone(program, goal, f"the same, a rank {how}, seen from outside", at, 5.0)
    assert (code, errors) == (0, "")
    assert program.cleaned() == [program.ranks[1]]


@pytest.mark.fault
def test_a_failure_nobody_handles_ends_a_script_with_its_report(tmp_path, goal):
    program = Program(tmp_path, "threading.Event().wait()")
    at = time.monotonic()
    os.kill(program.ranks[1], signal.SIGKILL)
    code, errors = program.end()
    goal("SIGKILL of a rank of a script that waits: the script's end", time.monotonic() - at, 5.0)
    assert code in (130, -signal.SIGINT), errors
    assert "Unhandled monarch error on the root actor" in errors
    assert "SIGKILL" in errors
    assert not program.alive()


def cpu_s(pid: int) -> float:
    """Processor time of the main thread of a process that still is there. Raises `OSError`."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


@pytest.mark.slow
@pytest.mark.fault
def test_an_agent_whose_owner_was_killed_does_only_what_it_must(tmp_path, goal):
    """It is the last to end: an orderly end of its interpreter takes longer than all ranks' ends.

    In processor time, which other programs on this machine do not change much.
    """
    program = Program(tmp_path, "time.sleep(60)")
    [agent] = [pid for pid in program.alive() if b"monarch_nb.host.agent\0" in read(pid, "cmdline")]
    spent = [cpu_s(agent)]

    def has_ended() -> bool:
        with contextlib.suppress(OSError):
            spent.append(cpu_s(agent))
        return not is_running(agent)

    program.process.kill()
    eventually(has_ended, 10.0)
    program.end()
    goal("SIGKILL of the owner: the agent's own work", spent[-1] - spent[0], 0.002)
    assert_all_gone(program, goal, "SIGKILL of the owner, at rest", time.monotonic(), 1.0)
