"""Part A, `get_or_spawn_controller`: one actor per name in the client, for the whole job."""

import os

import pytest

from monarch_nb import (
    Actor,
    ActorError,
    SupervisionError,
    endpoint,
    get_or_spawn_controller,
    this_proc,
)
from tests import support
from tests.actors.cast import AsyncCounter


@pytest.fixture(scope="module")
def mesh_runtime(own_client: None) -> None:
    """Controllers live as long as the client."""


class Store(Actor):
    def __init__(self, start=0):
        self.start = start
        self.items = {}

    @endpoint
    def put(self, key, value):
        self.items[key] = value
        return len(self.items)

    @endpoint
    def about(self):
        return self.start, os.getpid(), id(self)


class OtherStore(Store):
    pass


class Failing(Actor):
    def __init__(self):
        raise ValueError("cannot start")

    @endpoint
    def one(self):
        return 1


class UsesStore(Actor):
    @endpoint
    def put(self, name, key):
        store = get_or_spawn_controller(name, Store, 99).get()
        return store.put.call_one(key, 1).get()

    @endpoint
    def about(self, name):
        return get_or_spawn_controller(name, Store, 1).get().about.call_one().get()


class AsyncUsesStore(Actor):
    @endpoint
    async def about(self, name):
        store = await get_or_spawn_controller(name, Store, 5)
        return await store.about.call_one()


def test_one_controller_per_name(procs):
    store = get_or_spawn_controller("store", Store, 3).get()
    assert store.about.call_one().get()[:2] == (3, os.getpid())
    assert get_or_spawn_controller("store", OtherStore, 4).get().about.call_one().get()[0] == 3
    users = procs.spawn("users", UsesStore)
    assert sorted(users.put.call("store", "same").get().values()) == [1] * 4
    assert users.about.call("store").get().values() == [store.about.call_one().get()] * 4
    assert get_or_spawn_controller("another", Store, 4).get().about.call_one().get()[0] == 4


def test_concurrent_requests_make_one(procs):
    users = procs.spawn("users", UsesStore)
    asks = [
        users.about.call("fresh"),
        *[get_or_spawn_controller("fresh", Store, 1) for _ in range(5)],
    ]
    abouts = set(asks[0].get().values())
    abouts |= {each.get().about.call_one().get() for each in asks[1:]}
    assert len(abouts) == 1


def test_a_rank_may_be_the_first_to_ask(procs):
    actor = procs.slice(gpus=1).spawn("async", AsyncUsesStore)
    start, pid, _ = actor.about.call_one("of a rank").get()
    assert (start, pid) == (5, os.getpid())
    assert get_or_spawn_controller("of a rank", Store).get().about.call_one().get()[0] == 5


def test_a_controller_that_cannot_start_takes_nobody_with_it(procs):
    for _ in range(2):
        with pytest.raises(ActorError, match=r"Failure on failing(.*\n)*.*cannot start"):
            get_or_spawn_controller("failing", Failing).get()
    assert get_or_spawn_controller("failing", Store, 8).get().about.call_one().get()[0] == 8
    assert get_or_spawn_controller("beside", Store).get().put.call_one("x", 1).get()


def test_what_cannot_be_a_controller_is_refused_at_once(mesh_runtime):
    with pytest.raises(ValueError, match="must subclass"):
        get_or_spawn_controller("no", dict)
    with pytest.raises(TypeError, match="too many positional"):
        get_or_spawn_controller("no", Store, 1, 2)


def test_a_controller_that_dies_is_made_again(mesh_runtime):
    class Mortal(Actor):
        @endpoint
        def die(self):
            raise ValueError("dying")

        @endpoint
        def one(self):
            return 1

    first = get_or_spawn_controller("mortal", Mortal).get()
    first.die.broadcast()
    with pytest.raises(SupervisionError, match="dying"):
        support.eventually(lambda: first.one.call_one().get() is None)

    def is_new() -> bool:
        try:
            return get_or_spawn_controller("mortal", Mortal).get().one.call_one().get() == 1
        except SupervisionError:
            return False

    support.eventually(is_new)


def test_controllers_keep_what_they_own(procs):
    class Owner(Actor):
        def __init__(self):
            self.inner = this_proc().spawn("inner", AsyncCounter)

        @endpoint
        async def add(self):
            return await self.inner.add.call_one(1)

    assert get_or_spawn_controller("owner", Owner).get().add.call_one().get() == 1
    assert get_or_spawn_controller("owner", Owner).get().add.call_one().get() == 2
