"""Row 5: the zygote or the agent is killed, or the agent is stopped."""

import os
import signal
import threading
import time

import pytest

from monarch_nb import RankExited, RankUnreachable, this_host
from monarch_nb.control.client import client
from monarch_nb.elastic import restart
from monarch_nb.testing.processes import read
from tests import inside
from tests.faults.actors import Worker
from tests.support import descendants, eventually, is_running


def process_of(module: str, ranks: list[int]) -> int:
    """The agent or the zygote of this process."""
    found = [
        pid
        for pid in descendants(os.getpid())
        if f"monarch_nb.host.{module}".encode() in read(pid, "cmdline")
        and pid not in ranks
        and is_running(pid)
    ]
    assert len(found) == 1, found
    return found[0]


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize(
    "victim, number, kind, goal_s",
    [
        ("zygote", signal.SIGKILL, RankExited, 0.5),
        ("agent", signal.SIGKILL, RankExited, 0.5),
        ("agent", signal.SIGSTOP, RankUnreachable, 2.5),
    ],
)
def test_all_ranks_of_the_host_end_and_are_told_as_one(
    mesh, failures, goal, victim, number, kind, goal_s, responsive
):
    made = mesh(4)
    family = descendants(process_of("agent", made.pids)) | {process_of("agent", made.pids)}
    together = made.workers.sleep.call(60.0)
    single = [made.one(rank).sleep.call_one(60.0) for rank in range(4)]
    pid = process_of(victim, made.pids)
    at = time.monotonic()
    os.kill(pid, number)
    errors = [future.exception(timeout=30) for future in [together, *single]]
    what = f"{number.name} of the {victim}"
    goal(f"{what}: all calls ended", time.monotonic() - at, goal_s)
    assert all(type(error) is kind for error in errors)
    assert [error.ranks for error in errors] == [(0, 1, 2, 3), (0,), (1,), (2,), (3,)]
    assert all(victim in str(error) for error in errors)
    assert "usable" not in str(errors[0])
    eventually(lambda: not any(map(is_running, made.pids)), 10.0)
    goal(f"{what}: all ranks gone", time.monotonic() - at, goal_s)
    if victim == "agent":
        eventually(lambda: not any(map(is_running, family)), 10.0)
    eventually(lambda: failures, 5.0)
    assert [failure.crashed_ranks for failure in failures] == [[0, 1, 2, 3]]  # one message
    assert "lost ranks [0, 1, 2, 3]" in repr(made.procs)
    [status] = [each for each in client().snapshot().meshes if each.name == made.procs.name]
    expected = "unreachable" if kind is RankUnreachable else "exited"
    assert [rank.state for rank in status.ranks] == [expected] * 4


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("victim", ["zygote", "agent"])
def test_the_mesh_heals_and_handles_of_the_host_go_on(mesh, victim):
    host = this_host()
    made = mesh(2)
    sleeping = made.workers.sleep.call(60.0)
    os.kill(process_of(victim, made.pids), signal.SIGKILL)
    assert isinstance(sleeping.exception(timeout=20), RankExited)
    made.procs.heal()
    assert list(made.workers.add.call().get(timeout=30).values()) == [1, 1]
    assert made.one(1).add.call_one().get(timeout=5) == 2
    again = host.spawn_procs(per_host={"gpus": 1})
    assert again.spawn("w", Worker).add.call_one().get(timeout=30) == 1
    again.stop().get(timeout=10)


@pytest.mark.slow
@pytest.mark.fault
def test_a_heal_sees_all_that_was_lost_together(mesh, monkeypatch):
    made = mesh(2)
    proc = client().proc
    mark_dead = proc.mark_dead

    def slowly(ended):
        mark_dead(ended)
        threading.Event().wait(0.3)

    monkeypatch.setattr(proc, "mark_dead", slowly)
    first, second = inside.processes(made.procs)
    os.kill(process_of("agent", made.pids), signal.SIGKILL)
    eventually(lambda: first in proc.dead or second in proc.dead, 10.0)
    assert not {first, second} <= proc.dead.keys()
    made.procs.heal()
    assert list(made.workers.add.call().get(timeout=30).values()) == [1, 1]


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("victim", ["zygote", "agent"])
def test_actors_that_restart_come_back_with_their_host(mesh, victim, failures):
    made = mesh(2)
    again = made.procs.spawn("again", Worker, supervise=restart())
    sleeping = again.sleep.call(60.0)
    os.kill(process_of(victim, made.pids), signal.SIGKILL)
    assert "is not run again" in str(sleeping.exception(timeout=20))
    assert list(again.add.call().get(timeout=30).values()) == [1, 1]
    assert {failure.mesh_name for failure in failures} <= {made.workers.name}
