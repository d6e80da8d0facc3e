"""Healing: what a mesh has lost comes back at the same coordinates; or the survivors go on."""

import os
import signal
import threading
import time

import pytest

from monarch_nb import (
    ActorError,
    DeviceMeshError,
    RankExited,
    SupervisionError,
    heal_mesh,
)
from tests.faults.actors import Boss, Fragile, Grouped, Holder, Leader, Worker
from tests.support import eventually, is_running


def kill(made, *ranks: int) -> None:
    for rank in ranks:
        os.kill(made.pids[rank], signal.SIGKILL)
    eventually(lambda: f"lost ranks {sorted(ranks)}" in repr(made.procs), 10.0)


def values(workers) -> list[int]:
    return list(workers.add.call(1).get(timeout=20).values())


@pytest.mark.fault
@pytest.mark.parametrize("lost", [(1,), (0, 2), (0, 1, 2, 3)])
def test_actors_are_made_again_and_survivors_keep_their_state(mesh, goal, lost, failures):
    made = mesh(4)
    further = made.procs.spawn("further", Worker, 100)
    part = made.procs.slice(gpus=slice(1, 3)).spawn("part", Worker, start=1000)
    old_slice, old_one = made.workers.slice(gpus=slice(0, 2)), made.one(2)
    assert values(made.workers) == [1] * 4
    assert values(further) == [101] * 4
    assert values(part) == [1001] * 2
    kill(made, *lost)
    at = time.perf_counter()
    assert made.procs.heal() is made.procs
    goal(f"heal of {len(lost)} of 4", time.perf_counter() - at, 1.0)
    assert "ready" in repr(made.procs)
    assert "ready" in repr(made.workers)
    expected = [1 if rank in lost else 2 for rank in range(4)]
    assert values(made.workers) == expected
    assert values(further) == [100 + n for n in expected]
    assert values(part) == [1000 + n for n in expected[1:3]]
    assert values(old_slice) == [n + 1 for n in expected[:2]]
    assert old_one.add.call_one(1).get(timeout=5) == expected[2] + 1
    pids = list(made.workers.pid.call().get(timeout=5).values())
    assert [pid == old for pid, old in zip(pids, made.pids, strict=True)] == [
        rank not in lost for rank in range(4)
    ]
    assert values(made.procs.spawn("new", Worker)) == [1] * 4


@pytest.mark.fault
def test_the_loop_of_an_elastic_training_run(mesh, failures):
    """Seed 002: `except DeviceMeshError: mesh = heal_mesh(mesh)`."""
    made = mesh(4)
    workers, procs = made.workers, made.procs
    victims = {2: [1], 4: [0, 3], 5: [2]}
    done = 0
    repairs = 0
    while done < 8:
        for rank in victims.pop(done, []):
            pid = workers.slice(gpus=rank).pid.call_one().get(timeout=10)
            os.kill(pid, signal.SIGKILL)
        try:
            workers.sleep.call(0.02).get(timeout=20)
            done += 1
        except DeviceMeshError:
            repairs += 1
            procs = heal_mesh(procs)
    assert 3 <= repairs <= 6
    assert len(procs.spawn("again", Worker).add.call().get(timeout=10)) == 4


@pytest.mark.fault
def test_a_heal_through_the_actors_and_twice(mesh):
    made = mesh(2)
    kill(made, 1)
    assert heal_mesh(made.workers) is made.workers
    assert values(made.workers) == [1, 1]
    made.workers.heal()
    made.procs.heal()
    assert values(made.workers) == [2, 2]


def test_an_actor_that_died_by_itself_is_made_again(mesh, failures):
    made = mesh(2)
    made.one(1).do.broadcast("raise ValueError('nobody waits')")
    with pytest.raises(SupervisionError):
        while True:
            made.one(1).add.call_one().get(timeout=10)
    pid = made.procs.slice(gpus=1).spawn("probe", Worker).pid.call_one().get(timeout=10)
    made.workers.heal()
    assert made.one(1).add.call_one(1).get(timeout=10) == 1
    assert made.one(1).pid.call_one().get(timeout=10) == pid == made.pids[1]


@pytest.mark.fault
def test_large_constructor_arguments_are_there_again(mesh):
    import numpy as np

    made = mesh(2)
    big = np.arange(500_000, dtype=np.float64)
    holders = made.procs.spawn("holders", Holder, big)
    assert list(holders.total.call().get(timeout=10).values()) == [big.sum()] * 2
    kill(made, 0)
    made.procs.heal()
    assert list(holders.total.call().get(timeout=10).values()) == [big.sum()] * 2


@pytest.mark.fault
def test_handles_that_actors_hold_follow_the_heal(mesh):
    """Actors that were given a mesh can call it after it was healed: survivors and new ones."""
    made = mesh(3)
    bosses = made.procs.spawn("bosses", Boss, made.workers)
    assert len(bosses.ask.call().get(timeout=10)) == 3
    kill(made, 1)
    made.procs.heal()
    totals = list(bosses.ask.call().get(timeout=20).values())
    assert len(totals) == 3
    assert all(isinstance(total, int) for total in totals)
    assert list(bosses.spawn_deep.call().get(timeout=20).values()) == [3, 3, 3]


@pytest.mark.fault
def test_a_rank_that_dies_while_it_is_healed_is_told_and_a_later_heal_works(mesh, tmp_path):
    switch = tmp_path / "bad"
    made = mesh(3)
    fragile = made.procs.spawn("fragile", Fragile, str(switch))
    assert values(fragile) == [1] * 3
    switch.write_text("exit")
    kill(made, 1)
    with pytest.raises(RankExited) as caught:
        made.procs.heal()
    assert caught.value.ranks == (1,)
    assert caught.value.exitcode == 7
    assert "lost ranks [1]" in repr(made.procs)
    switch.write_text("raise")
    with pytest.raises(ActorError, match="still broken"):
        made.procs.heal()
    assert values(made.workers) == [1, 1, 1]
    with pytest.raises(SupervisionError, match="still broken"):
        fragile.add.call()
    assert values(fragile.slice(gpus=slice(2, 3))) == [2]
    switch.unlink()
    made.procs.heal()
    assert values(fragile) == [2, 1, 3]
    assert values(made.workers) == [2, 2, 2]


@pytest.mark.fault
def test_a_boot_that_fails_while_healing_is_told_and_a_later_heal_works(mesh, tmp_path):
    switch = tmp_path / "bad"

    def bootstrap(path=str(switch)):
        import os

        if os.path.exists(path):
            os._exit(9)

    made = mesh(3, bootstrap=bootstrap)
    switch.touch()
    kill(made, 0, 2)
    with pytest.raises(RankExited) as caught:
        made.procs.heal()
    assert caught.value.exitcode == 9
    eventually(lambda: "lost ranks [0, 2]" in repr(made.procs), 10.0)
    switch.unlink()
    made.procs.heal()
    assert values(made.workers) == [1, 1, 1]


@pytest.mark.fault
def test_heals_of_several_threads_at_once(mesh):
    made = mesh(4)
    kill(made, 1, 3)
    errors: list[BaseException] = []

    def heal() -> None:
        try:
            made.procs.heal()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=heal) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert errors == []
    assert values(made.workers) == [1] * 4
    pids = list(made.workers.pid.call().get(timeout=5).values())
    assert all(map(is_running, pids))


@pytest.mark.fault
@pytest.mark.parametrize("lost", [(1,), (0, 3)])
def test_shrink_keeps_the_survivors(mesh, lost):
    made = mesh(4)
    assert values(made.workers) == [1] * 4
    kill(made, *lost)
    workers = made.workers.heal(shrink=True)
    smaller = made.procs.heal(shrink=True)
    left = 4 - len(lost)
    assert smaller.sizes == {"gpus": left}
    assert workers.sizes == {"gpus": left}
    assert values(workers) == [2] * left
    assert values(smaller.spawn("new", Worker)) == [1] * left
    with pytest.raises(SupervisionError, match="shrunk"):
        made.workers.add.call()
    os.kill(workers.slice(gpus=0).pid.call_one().get(timeout=5), signal.SIGKILL)
    eventually(lambda: "lost" in repr(smaller), 10.0)
    again = heal_mesh(smaller, shrink=True)
    assert again.sizes == {"gpus": left - 1}
    with pytest.raises(RuntimeError, match="shrunk"):
        again.heal()
    again.stop().get(timeout=10)


@pytest.mark.fault
def test_a_slice_shrinks_its_mesh_and_no_rank_is_forgotten(mesh):
    made = mesh(4)
    kill(made, 1)
    smaller = made.procs.slice(gpus=slice(2, 4)).heal(shrink=True)
    assert smaller.sizes == {"gpus": 3}
    pids = list(smaller.spawn("new", Worker).pid.call().get(timeout=5).values())
    smaller.stop().get(timeout=10)
    eventually(lambda: not any(map(is_running, pids)), 10.0)


@pytest.mark.fault
def test_process_groups_are_made_again_on_all_ranks(mesh, goal):
    made = mesh(4)
    grouped = made.procs.spawn("grouped", Grouped)
    assert set(grouped.reduce.call().get(timeout=60).values()) == {0 + 1 + 2 + 3}
    kill(made, 2)
    made.procs.heal()
    at = time.perf_counter()
    assert set(grouped.reduce.call().get(timeout=60).values()) == {6}
    goal("heal: the process group of 4 made again", time.perf_counter() - at, 2.0)
    kill_all = list(grouped.pid.call().get(timeout=10).values())
    for pid in kill_all[:2]:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: "lost ranks [0, 1]" in repr(made.procs), 10.0)
    made.procs.heal()
    assert set(grouped.reduce.call().get(timeout=60).values()) == {6}


@pytest.mark.fault
def test_the_mesh_of_an_actor_heals_in_its_hands(mesh):
    made = mesh(1)
    leaders = made.procs.spawn("leaders", Leader)
    pids = leaders.up.call_one(3).get(timeout=30)
    assert leaders.total.call_one().get(timeout=10) == 3
    os.kill(pids[1], signal.SIGKILL)
    lost = eventually(lambda: leaders.lost.call_one().get(timeout=10), 10.0)
    assert lost == [1]
    assert leaders.heal_and_total.call_one().get(timeout=30) == 2 + 1 + 2
    pids = leaders.pids.call_one().get(timeout=10)
    os.kill(made.pids[0], signal.SIGKILL)
    eventually(lambda: not any(map(is_running, pids)), 10.0, "the leader's ranks end with it")
    made.procs.heal()
    leaders.up.call_one(2).get(timeout=30)
    assert leaders.total.call_one().get(timeout=10) == 2


def test_who_may_not_heal_is_told(mesh):
    made = mesh(2)
    bosses = made.procs.spawn("bosses", Boss, made.workers)
    error = bosses.slice(gpus=0).heal_them.call_one().exception(timeout=10)
    assert "only the process that spawned a mesh can heal it" in str(error)
    made.procs.stop().get(timeout=10)
    with pytest.raises(RuntimeError, match="stopped"):
        made.procs.heal()
