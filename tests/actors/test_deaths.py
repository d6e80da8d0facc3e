"""Part G, processes that die: in which words callers are told, what is left, what to do next."""

import ctypes
import os
import signal

import pytest

from monarch_nb import (
    Actor,
    Channel,
    DeviceMeshError,
    MeshFailure,
    RankExited,
    SupervisionError,
    endpoint,
    this_host,
)
from tests import support
from tests.actors.cast import Counter
from tests.actors.fragile import Fragile, only


@pytest.fixture
def mesh(mesh_runtime):
    """Processes that may die."""
    made = this_host().spawn_procs({"gpus": 2}, name="mortals")
    yield made
    made.stop().get()


def exit_with_3():
    os._exit(3)


def exit_with_0():
    os._exit(0)


def kill_myself():
    os.kill(os.getpid(), signal.SIGKILL)


def segfault():
    ctypes.string_at(0)


DEATHS = [
    (exit_with_3, r"the process this actor was running on exited with non-zero code 3", 3, None),
    (exit_with_0, r"the process this actor was running on exited with code 0", 0, None),
    (kill_myself, r"failed: Killed\(sig=9", None, signal.SIGKILL),
    (segfault, r"failed: Killed\(sig=11", None, signal.SIGSEGV),
]


@pytest.mark.fault
@pytest.mark.parametrize("how, words, code, number", DEATHS)
def test_a_process_that_dies(mesh, failures, how, words, code, number):
    fragile = mesh.spawn("fragile", Fragile)
    idle = mesh.spawn("idle", Counter)
    assert len(fragile.pid.call().get()) == 2
    with pytest.raises(SupervisionError, match=words) as caught:
        fragile.slice(gpus=1).die.call_one(how).get(timeout=5)
    error = caught.value
    assert isinstance(error, RankExited)
    assert isinstance(error, DeviceMeshError)
    assert (error.exitcode, error.signal, error.ranks) == (code, number, (1,))
    assert isinstance(error.failure, MeshFailure)
    assert only(failures).crashed_ranks == [1]  # once, though two meshes of ours lived there
    for actors in (fragile, idle):
        with pytest.raises(SupervisionError, match="failure on mesh.*with event"):
            actors.pid.call().get(timeout=5)
        assert actors.slice(gpus=0).pid.call_one().get(timeout=5)


@pytest.mark.fault
def test_after_a_process_has_died(mesh, failures):
    fragile = mesh.spawn("fragile", Fragile)
    fragile.slice(gpus=0).die.broadcast(kill_myself)
    only(failures)
    with pytest.raises(SupervisionError, match="error spawning actor mesh.*heal") as caught:
        mesh.spawn("late", Counter)
    assert caught.value.ranks == (0,)
    living = mesh.slice(gpus=1).spawn("late", Counter)
    assert living.add.call_one(1).get(timeout=5) == 1
    fresh = this_host().spawn_procs({"gpus": 1})
    assert fresh.spawn("counter", Counter).add.call(1).get(timeout=5).values() == [1]
    fresh.stop().get()
    mesh.stop().get(timeout=5)


@pytest.mark.fault
def test_values_of_the_healthy_ranks_are_kept(mesh, failures):
    counters = mesh.spawn("counters", Counter, 5)
    port, started = Channel.open()
    call = counters.answer_or_hold.call(1, port)
    victim = started.recv().get(5)
    support.eventually(lambda: call._answers[0] is not None)
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(RankExited) as caught:
        call.get(timeout=5)
    assert dict(caught.value.values) == {0: 0}
    only(failures)


class Telling(Actor):
    """Tells when it ends."""

    def __init__(self, told):
        self.told = told

    @endpoint
    def pid(self):
        return os.getpid()

    def __cleanup__(self, error):
        self.told.send("ended")


class Spawner(Actor):
    """Owns processes, and actors on others; a reference to its actors outlives it."""

    @endpoint
    def spawn(self):
        self.procs = this_host().spawn_procs({"gpus": 1})
        return self.procs.spawn("held", Counter)

    @endpoint
    def spawn_on(self, procs, told):
        self.owned = procs.spawn("owned", Telling, told)
        return self.owned.pid.call_one().get(5)

    @endpoint
    def die(self):
        os._exit(1)


@pytest.mark.fault
def test_a_reference_to_what_a_dead_process_owned(mesh, failures):
    spawner = mesh.slice(gpus=0).spawn("spawner", Spawner)
    held = spawner.spawn.call_one().get()
    assert held.add.call_one(1).get() == 1
    spawner.die.broadcast()
    only(failures)

    def refused():
        try:
            held.get.call_one().get(timeout=5)
        except SupervisionError:
            return True

    support.eventually(refused)


@pytest.mark.fault
def test_actors_elsewhere_end_with_the_process_of_their_owner(mesh, failures):
    port, told = Channel.open()
    spawner = mesh.slice(gpus=0).spawn("spawner", Spawner)
    spawner.spawn_on.call_one(mesh.slice(gpus=1), port).get(10)
    spawner.die.broadcast()
    only(failures)
    assert told.recv().get(5) == "ended"
