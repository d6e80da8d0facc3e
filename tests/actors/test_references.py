"""Part A, what travels in messages: meshes, slices, points, values; and actors that own others."""

import os
import threading

import pytest

from monarch_nb import (
    Actor,
    ActorError,
    Extent,
    Point,
    SupervisionError,
    ValueMesh,
    concurrent_endpoint,
    context,
    endpoint,
    this_host,
)
from tests import support
from tests.actors.cast import Counter


class User(Actor):
    """Uses what it is sent."""

    def __init__(self, given=None):
        self.given = given

    @endpoint
    def echo(self, value):
        return value

    @endpoint
    def describe(self, mesh):
        return type(mesh).__name__, mesh.sizes, mesh.name

    @endpoint
    def add_everywhere(self, counters, amount):
        return counters.add.call(amount).get().values()

    @endpoint
    def use_given(self):
        mine = self.given.slice(**context().actor_instance.rank)
        return mine.pid.call_one().get() == os.getpid()

    @endpoint
    def spawn_on(self, procs, start):
        return procs.spawn("spawned", Counter, start)

    @endpoint
    def spawn_procs(self, count):
        self.procs = this_host().spawn_procs({"gpus": count})
        self.counters = self.procs.spawn("inner", Counter, 7)
        return self.counters

    @endpoint
    def stop_procs(self):
        self.procs.stop().get()

    @endpoint
    def stop_mesh(self, mesh):
        mesh.stop().get()

    @endpoint
    def wait_initialized(self, mesh):
        return mesh.initialized.get(timeout=10)


class AsyncUser(Actor):
    """Passes things on."""

    @endpoint
    async def add_everywhere(self, counters, amount):
        return [value async for value in _each(counters.add.stream(amount))]

    @concurrent_endpoint
    async def relay(self, others, value):
        """Along the line of `others`, and back."""
        if not others:
            return [value]
        return [value, *await others[0].relay.call_one(others[1:], value + 1)]


async def _each(futures):
    for future in futures:
        yield await future


class SlowStart(Actor):
    """Is long in coming."""

    def __init__(self, path):
        support.until_exists(path)

    @endpoint
    def ready(self):
        return "ready"


@pytest.fixture(scope="module")
def users(procs):
    return procs.spawn("users", User)


@pytest.fixture(scope="module")
def user(users):
    return users.slice(gpus=0)


# ------------------------------------------------------------------------------------- what travels


def test_values_points_and_extents(user):
    extent = Extent(["a", "b"], [2, 3])
    mesh = ValueMesh(extent.region.as_shape(), range(6))
    for value in (extent, Point(4, extent), extent.region, extent.region.as_shape()):
        assert user.echo.call_one(value).get() == value
    back = user.echo.call_one(mesh.slice(b=slice(0, 3, 2))).get()
    assert isinstance(back, ValueMesh)
    assert (back.sizes, back.values()) == ({"a": 2, "b": 2}, [0, 2, 3, 5])


def test_a_value_mesh_of_answers_travels_on(users, user):
    pids = users.echo.call(5).get()
    assert user.echo.call_one(pids).get().values() == [5] * 4


def test_meshes_of_actors(procs, users):
    counters = procs.spawn("counters", Counter, 10)
    one = users.slice(gpus=3)
    assert one.describe.call_one(counters).get() == ("ActorMesh", {"gpus": 4}, "counters")
    assert one.add_everywhere.call_one(counters, 1).get() == [11] * 4
    part = counters.slice(gpus=slice(1, 3)).rename(gpus="x")
    assert one.describe.call_one(part).get() == ("ActorMesh", {"x": 2}, "counters")
    assert one.add_everywhere.call_one(part, 1).get() == [12, 12]
    assert counters.get.call().get().values() == [11, 12, 12, 11]
    back = one.echo.call_one(part).get()
    assert back.sizes == {"x": 2}
    assert back.add.call(0).get().values() == [12, 12]
    counters.stop().get()


def test_async_actors_use_meshes(procs):
    counters = procs.spawn("counters", Counter)
    one = procs.slice(gpus=1).spawn("async", AsyncUser)
    assert one.add_everywhere.call_one(counters, 2).get() == [2] * 4


def test_a_chain_of_references(procs):
    actors = procs.spawn("relay", AsyncUser)
    line = [actors.slice(gpus=i) for i in (1, 2, 3, 0, 1)]
    found = actors.slice(gpus=0).relay.call_one(line, 0).get(timeout=10)
    assert found == [0, 1, 2, 3, 4, 5]


def test_references_in_constructors(procs):
    counters = procs.spawn("counters", Counter)
    users = procs.spawn("with", User, counters)
    assert users.use_given.call().get().values() == [True] * 4


def test_meshes_of_processes(procs, users):
    one = users.slice(gpus=2)
    part = procs.slice(gpus=slice(1, 3))
    assert one.describe.call_one(part).get() == ("ProcMesh", {"gpus": 2}, "four")
    spawned = one.spawn_on.call_one(part, 3).get()
    assert spawned.add.call(1).get().values() == [4, 4]
    assert (
        spawned.pid.call().get().values()
        == procs.spawn("c", Counter).pid.call().get().values()[1:3]
    )


def test_hosts(users, user):
    host = user.echo.call_one(this_host()).get()
    assert host == this_host()
    with pytest.raises(RuntimeError, match="slice or a copy"):
        host.shutdown()


def test_only_who_spawned_a_mesh_stops_it(procs, user):
    counters = procs.spawn("counters", Counter)
    for mesh in (counters, procs):
        with pytest.raises(ActorError, match="only the process that spawned"):
            user.stop_mesh.call_one(mesh).get()
    with pytest.raises(RuntimeError, match="not a slice"):
        counters.slice(gpus=0).stop()
    with pytest.raises(RuntimeError, match="a slice of a ProcMesh"):
        procs.slice(gpus=0).stop()
    assert counters.get.call().get().values() == [0] * 4


# ---------------------------------------------------------------------------------- still starting


def test_a_mesh_that_is_still_starting_may_be_sent(procs, user, tmp_path):
    gate = tmp_path / "gate"
    slow = procs.slice(gpus=slice(1, 3)).spawn("slow", SlowStart, str(gate))
    waiting = user.wait_initialized.call_one(slow)
    queued = slow.ready.call()
    with pytest.raises(TimeoutError):
        waiting.get(timeout=0.1)
    assert not slow.initialized.done()
    gate.touch()
    assert waiting.get(timeout=10) is None
    assert slow.initialized.get() is None
    assert queued.get().values() == ["ready"] * 2


def test_processes_that_are_still_starting_may_be_sent(user):
    fresh = this_host().spawn_procs({"gpus": 2}, bootstrap=_slow_bootstrap)
    assert user.wait_initialized.call_one(fresh).get(timeout=20) is True
    counters = user.spawn_on.call_one(fresh, 1).get()
    assert counters.get.call().get(timeout=20).values() == [1, 1]
    fresh.stop().get()


def _slow_bootstrap():
    threading.Event().wait(0.2)


def fail_to_start():
    raise OSError("no licence")


def test_initialized_of_a_reference_raises(procs, user, failures):
    class Broken(Actor):
        def __init__(self):
            raise ValueError("no")

        @endpoint
        def one(self):
            return 1

    broken = procs.slice(gpus=1).spawn("broken", Broken)
    with pytest.raises(ActorError, match="SupervisionError"):
        user.wait_initialized.call_one(broken).get()
    support.eventually(lambda: failures)
    unbooted = this_host().spawn_procs(bootstrap=fail_to_start)
    with pytest.raises(ActorError, match=r"setup\.setup failed"):
        user.wait_initialized.call_one(unbooted).get()
    unbooted.stop().get()


# --------------------------------------------------------------------------- actors that own others


def test_an_actor_s_processes_end_with_it(procs):
    owner = procs.slice(gpus=1).spawn("owner", User)
    inner = owner.spawn_procs.call_one(2).get()
    pids = inner.pid.call().get().values()
    assert inner.add.call(1).get().values() == [8, 8]
    assert all(support.is_running(pid) for pid in pids)
    owner.stop().get()
    support.eventually(lambda: not any(support.is_running(pid) for pid in pids))
    with pytest.raises(SupervisionError):
        inner.get.call().get()


def test_an_actor_stops_its_own_processes(procs):
    owner = procs.slice(gpus=1).spawn("owner", User)
    inner = owner.spawn_procs.call_one(2).get()
    pids = inner.pid.call().get().values()
    owner.stop_procs.call_one().get()
    assert not any(support.is_running(pid) for pid in pids)
    assert owner.echo.call_one("alive").get() == "alive"


def test_an_actor_s_actors_end_with_it(procs):
    owner = procs.slice(gpus=2).spawn("owner", User)
    spawned = owner.spawn_on.call_one(procs, 0).get()
    assert spawned.add.call(1).get().values() == [1] * 4
    owner.stop().get()
    with pytest.raises(SupervisionError, match="has status stopped"):
        spawned.get.call().get()


def test_processes_of_processes_of_processes(procs):
    outer = procs.slice(gpus=3).spawn("outer", User)
    middle = outer.spawn_procs.call_one(1).get()  # a mesh of counters, whose process spawns more
    nested = middle.slice(gpus=0).call_back.call_one(_spawn_here).get()
    assert nested.get.call_one().get() == 42
    outer.stop().get()
    with pytest.raises(SupervisionError):
        support.eventually(lambda: nested.get.call_one().get() is None)


def _spawn_here():
    _spawn_here.procs = this_host().spawn_procs()
    return _spawn_here.procs.spawn("deep", Counter, 42)
