"""Part A, ends: stop, context managers, garbage, clean-up; and the output options of a mesh."""

import asyncio
import gc
import os
import threading
import time

import pytest

from monarch_nb import (
    Actor,
    Channel,
    SupervisionError,
    concurrent_endpoint,
    endpoint,
    this_host,
    this_proc,
)
from tests import support
from tests.actors.cast import Counter

pytestmark = pytest.mark.usefixtures("mesh_runtime")


class Diary(Actor):
    """Writes down how it ends. It may own another that does."""

    def __init__(self, path, name="diary", owned=None):
        self.path, self.name = path, name
        self.thread = threading.get_ident()
        if owned:
            self.owned = this_proc().spawn(owned, Diary, path, owned)

    def write(self, text):
        with open(self.path, "a") as file:
            file.write(f"{self.name}: {text}\n")

    @endpoint
    def one(self):
        return 1

    @endpoint
    def fail(self):
        raise ValueError("bad day")

    @endpoint
    def hold(self, started, seconds):
        started.send("busy")
        time.sleep(seconds)
        self.write("held")
        return "done"

    def __cleanup__(self, exc):
        same = "on its thread" if threading.get_ident() == self.thread else "elsewhere"
        self.write(f"cleanup({exc!r}) {same}")

    def __del__(self):
        self.write("deleted")


class AsyncDiary(Actor):
    def __init__(self, path):
        self.path = path

    def write(self, text):
        with open(self.path, "a") as file:
            file.write(f"{text}\n")

    @endpoint
    async def one(self):
        return 1

    @concurrent_endpoint
    async def wait(self, started):
        started.send("waiting")
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            self.write("task ended")

    async def __cleanup__(self, exc):
        await asyncio.sleep(0)
        self.write(f"cleanup({exc!r})")


class Pids(Actor):
    @endpoint
    def pid(self):
        return os.getpid()


def pids_of(mesh):
    return mesh.spawn("pids", Pids).pid.call().get().values()


def gone(pids):
    return not any(support.is_running(pid) for pid in pids)


@pytest.fixture
def diary(tmp_path):
    path = tmp_path / "diary"
    path.touch()
    return path


# ------------------------------------------------------------------------------ the end of an actor


def test_stop_finishes_what_runs_and_drops_what_is_queued(procs, diary):
    actor = procs.slice(gpus=0).spawn("diary", Diary, str(diary))
    port, started = Channel.open()
    running = actor.hold.call_one(port, 0.1)
    started.recv().get(5)
    queued = actor.one.call_one()
    stopping = actor.stop()
    assert stopping.get(timeout=5) is None
    assert running.get(timeout=5) == "done"
    with pytest.raises(SupervisionError, match="has status stopped: stopped by client"):
        queued.get(timeout=5)
    assert diary.read_text().splitlines() == [
        "diary: held",
        "diary: cleanup(None) on its thread",
        "diary: deleted",
    ]


def test_stopping_twice_is_fine_and_waits_for_the_same_end(procs, diary):
    actor = procs.slice(gpus=0).spawn("diary", Diary, str(diary))
    port, started = Channel.open()
    actor.hold.broadcast(port, 0.1)
    started.recv().get(5)
    first, second = actor.stop(), actor.stop("again")
    second.get(timeout=5)
    assert "cleanup" in diary.read_text()
    first.get(timeout=5)
    assert diary.read_text().count("cleanup") == 1


def test_what_it_owns_ends_before_its_own_cleanup(procs, diary):
    actor = procs.slice(gpus=1).spawn("outer", Diary, str(diary), "outer", "inner")
    actor.one.call_one().get()
    actor.stop().get(timeout=5)
    order = [line for line in diary.read_text().splitlines() if "cleanup" in line]
    assert order == ["inner: cleanup(None) on its thread", "outer: cleanup(None) on its thread"]


def test_cleanup_is_told_of_the_failure(procs, diary, failures):
    actor = procs.slice(gpus=0).spawn("diary", Diary, str(diary))
    actor.fail.broadcast()
    text = support.eventually(lambda: (found := diary.read_text()) and "deleted" in found and found)
    assert text.splitlines()[0] == "diary: cleanup(ValueError('bad day')) on its thread"
    support.eventually(lambda: len(failures) == 1)


def test_concurrent_tasks_are_cancelled_and_awaited_before_the_cleanup(procs, diary):
    actor = procs.slice(gpus=0).spawn("diary", AsyncDiary, str(diary))
    port, started = Channel.open()
    waiting = actor.wait.call_one(port)
    started.recv().get(5)
    actor.stop().get(timeout=5)
    assert diary.read_text().splitlines() == ["task ended", "cleanup(None)"]
    with pytest.raises(SupervisionError, match="has status stopped"):
        waiting.get(timeout=5)


def test_an_async_failure_cleans_up_too(procs, diary, failures):
    class Failing(AsyncDiary):
        @concurrent_endpoint
        async def fail(self):
            raise ValueError("bad day")

    actor = procs.slice(gpus=0).spawn("diary", Failing, str(diary))
    actor.one.call_one().get()
    actor.fail.broadcast()
    support.eventually(lambda: diary.read_text() == "cleanup(ValueError('bad day'))\n")
    support.eventually(lambda: failures)


def test_a_stop_that_comes_before_a_constructor_has_failed(procs, tmp_path):
    class Slow(Actor):
        def __init__(self, started, path):
            started.send("constructing")
            support.until_exists(path)
            raise ValueError("no")

        @endpoint
        def one(self):
            return 1

    port, started = Channel.open()
    gate = tmp_path / "gate"
    actor = procs.slice(gpus=0).spawn("slow", Slow, port, str(gate))
    started.recv().get(5)
    stopping = actor.stop()
    gate.touch()
    stopping.get(timeout=5)
    with pytest.raises(SupervisionError, match="has status stopped"):
        actor.one.call_one()  # it is stopped; nobody hears of a failure


def test_handles_of_stopped_actors_say_so(procs):
    actor = procs.spawn("counter", Counter)
    part = actor.slice(gpus=1)
    actor.stop("tidying").get()
    for mesh in (actor, part):
        with pytest.raises(
            SupervisionError, match="actor mesh 'counter' has status stopped: tidying"
        ):
            mesh.get.call()


# ----------------------------------------------------------------------------- the end of processes


def test_stop_of_processes_cleans_up_their_actors(diary):
    mesh = this_host().spawn_procs({"gpus": 2})
    mesh.spawn("diary", Diary, str(diary)).one.call().get()
    pids = pids_of(mesh)
    mesh.stop().get(timeout=5)
    assert gone(pids)
    assert sorted(diary.read_text().splitlines()) == sorted(
        ["diary: cleanup(None) on its thread", "diary: deleted"] * 2
    )


def test_stop_is_lazy(procs):
    mesh = this_host().spawn_procs({"gpus": 1})
    stopping = mesh.stop()
    assert mesh.spawn("counter", Counter).add.call_one(1).get() == 1
    assert not stopping.done()
    stopping.get(timeout=5)
    with pytest.raises(RuntimeError, match="`ProcMesh` has already been stopped"):
        mesh.spawn("late", Counter)
    mesh.stop().get(timeout=5)
    stopping.get(timeout=5)


def test_stop_survives_the_cancellation_of_who_waits():
    mesh = this_host().spawn_procs({"gpus": 1})
    pids = pids_of(mesh)

    async def main():
        stopping = mesh.stop()
        waiter = asyncio.ensure_future(asyncio.wait_for(_wait(stopping), 5))
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter

    asyncio.run(main())
    support.eventually(lambda: gone(pids))


async def _wait(future):
    return await future


def test_stop_of_processes_that_are_still_starting():
    mesh = this_host().spawn_procs({"gpus": 2})
    actors = mesh.spawn("counter", Counter)
    mesh.stop().get(timeout=10)
    with pytest.raises(SupervisionError, match="has status stopped"):
        actors.get.call().get()


def test_calls_in_flight_end_when_their_processes_are_stopped():
    mesh = this_host().spawn_procs({"gpus": 1})
    counter = mesh.spawn("counter", Counter)
    port, started = Channel.open()
    held = counter.announced_nap.call_one(port, 60)
    started.recv().get(5)
    stopping = mesh.stop()
    stopping.get(timeout=10)
    with pytest.raises(SupervisionError, match="stopped"):
        held.get(timeout=5)


def test_context_managers():
    async def main():
        async with this_host().spawn_procs({"gpus": 1}) as mesh:
            return await mesh.spawn("pids", Pids).pid.call()

    assert gone(asyncio.run(main()).values())
    with this_host().spawn_procs({"gpus": 1}) as mesh:
        pids = pids_of(mesh)
        assert not gone(pids)
    assert gone(pids)


# --------------------------------------------------------------------------------------- garbage


def test_a_mesh_that_nobody_refers_to_ends():
    mesh = this_host().spawn_procs({"gpus": 1})
    pids = pids_of(mesh)
    part = mesh.slice(gpus=0)
    del mesh
    gc.collect()
    assert not gone(pids)
    del part
    support.eventually(lambda: gc.collect() is not None and gone(pids))


def test_a_handle_of_an_actor_keeps_its_processes():
    counter = this_host().spawn_procs({"gpus": 1}).spawn("counter", Counter)
    gc.collect()
    assert counter.add.call_one(1).get() == 1
    pid = counter.pid.call_one().get()
    bound = counter.slice(gpus=0).pid
    del counter
    gc.collect()
    assert bound.call_one().get() == pid
    answer = bound.call_one()
    del bound
    gc.collect()
    assert answer.get() == pid
    del answer
    support.eventually(lambda: gc.collect() is not None and gone([pid]))


def test_a_mesh_that_was_sent_away_lives_as_long_as_its_owner(procs):
    class Keeper(Actor):
        @endpoint
        def keep(self, mesh):
            self.mesh = mesh

        @endpoint
        def use(self):
            return self.mesh.pid.call_one().get()

    keeper = procs.slice(gpus=0).spawn("keeper", Keeper)
    sent = this_host().spawn_procs().spawn("pids", Pids)
    keeper.keep.call_one(sent).get()
    del sent
    gc.collect()
    assert support.is_running(keeper.use.call_one().get())


def test_a_slice_dropped_in_the_middle_of_calls_harms_nobody(procs):
    counter = procs.spawn("counter", Counter)
    for _ in range(50):
        counter.slice(gpus=1).add.broadcast(1)
    gc.collect()
    assert counter.slice(gpus=1).get.call_one().get() == 50
