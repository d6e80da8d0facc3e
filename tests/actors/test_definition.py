"""Part A, defining actors: what a class may be, what is refused, on which thread it lives."""

import asyncio
import functools
import logging
import multiprocessing
import os
import subprocess
import sys
import threading

import pytest

from monarch_nb import (
    Actor,
    ActorError,
    ActorMesh,
    Channel,
    as_endpoint,
    concurrent_endpoint,
    endpoint,
    this_proc,
)
from monarch_nb.actors.definition import RESERVED
from tests.actors.cast import AsyncCounter, AsyncWitness, Counter, Witness
from tests.actors.fragile import only

# ----------------------------------------------------------------------------------- the decorators


pytestmark = pytest.mark.usefixtures("mesh_runtime")


def test_an_endpoint_read_on_the_class_is_itself_on_an_instance_the_method():
    assert Counter.add is Counter.__dict__["add"]
    assert Counter.add.__name__ == "add"
    assert Counter.add.__doc__ == "Count."
    assert Counter(2).add(3) == 5


def test_what_the_decorator_was_told_is_kept():
    def rule(*_):
        return None

    class Some(Actor):
        @endpoint(propagate=rule, instrument=False)
        def one(self):
            return 1

        @endpoint(propagate="cached", explicit_response_port=True)
        def two(self, port):
            return 2

    assert (Some.one.propagate, Some.one.instrument) == (rule, False)
    assert not Some.one.explicit_response_port
    assert (Some.two.propagate, Some.two.explicit_response_port) == ("cached", True)


def test_concurrent_endpoints_are_async():
    with pytest.raises(ValueError, match="can only wrap async endpoints"):

        @concurrent_endpoint
        def plain(self):
            return None


def test_concurrent_endpoint_does_not_go_on_top_of_endpoint():
    with pytest.raises(ValueError, match="does not wrap @endpoint"):

        @concurrent_endpoint
        @endpoint
        async def twice(self):
            return None


def test_the_logger_is_made_once_and_named_after_the_class():
    counter = Counter()
    assert isinstance(counter.logger, logging.Logger)
    assert counter.logger is counter.logger
    assert counter.logger.name.endswith("cast.Counter")


# ----------------------------------------------------------------------- checked when it is spawned


class Mixed(Actor):
    @endpoint
    def one(self):
        return 1

    @endpoint
    async def two(self):
        return 2


class SyncWithAsyncCleanup(Actor):
    @endpoint
    def one(self):
        return 1

    async def __cleanup__(self, exc):
        return None


class SyncWithAsyncSupervise(Actor):
    @endpoint
    def one(self):
        return 1

    async def __supervise__(self, failure):
        return True


class SyncWithAsyncUndeliverable(Actor):
    @endpoint
    def one(self):
        return 1

    async def _handle_undeliverable_message(self, envelope):
        return True


class AsyncWithSyncCleanup(Actor):
    @endpoint
    async def one(self):
        return 1

    def __cleanup__(self, exc):
        return None


class EmptyWithSyncCleanup(Actor):
    def __cleanup__(self, exc):
        return None


class NoActor:
    @endpoint
    def one(self):
        return 1


REFUSED = [
    (Mixed, "mixes both async and sync endpoints"),
    (SyncWithAsyncCleanup, "async __cleanup__"),
    (SyncWithAsyncSupervise, "async __supervise__"),
    (SyncWithAsyncUndeliverable, "async _handle_undeliverable_message"),
    (AsyncWithSyncCleanup, "async endpoints and a synchronous __cleanup__"),
    (EmptyWithSyncCleanup, "no endpoints, which makes it async, and a synchronous __cleanup__"),
    (NoActor, "must subclass monarch.service.Actor"),
    (3, "must subclass monarch.service.Actor"),
]


@pytest.mark.parametrize("cls, message", REFUSED)
def test_classes_that_cannot_be_spawned(procs, cls, message):
    with pytest.raises(ValueError, match=message):
        procs.spawn("refused", cls)


@pytest.mark.parametrize(
    "name",
    ["slice", "split", "flatten", "rename", "size", "sizes", "extent", "stop", "initialized"],
)
def test_endpoints_named_like_a_part_of_a_mesh(procs, name):
    cls = type("Colliding", (Actor,), {name: endpoint(lambda self: 1)})
    with pytest.raises(ValueError, match="ActorMesh has an attribute that collides"):
        procs.spawn("refused", cls)


def test_every_public_part_of_a_mesh_is_taken():
    assert {name for name in dir(ActorMesh) if not name.startswith("_")} <= RESERVED


class Harmless(Actor):
    """Its endpoints are named like parts of other meshes, or start with an underscore."""

    @endpoint
    def shape(self):
        return "shape"

    @endpoint
    def _hidden(self):
        return "hidden"


def test_other_names_are_free(procs):
    one = procs.slice(gpus=0).spawn("harmless", Harmless)
    assert one.shape.call_one().get() == "shape"
    assert one._hidden.call_one().get() == "hidden"


class Quiet(Actor):
    """An async actor may have a plain __supervise__."""

    @endpoint
    async def one(self):
        return 1

    def __supervise__(self, failure):
        return True


class Base(Actor):
    @endpoint
    async def first(self):
        return "first"

    @endpoint
    async def redefined(self):
        return "base"


class Mixin(Base):
    @concurrent_endpoint
    async def second(self):
        return "second"

    @endpoint
    async def redefined(self):
        return "mixin"


class Empty(Actor):
    """No endpoint: an async actor, good for nothing but its constructor."""


def test_hierarchies_and_hooks_that_are_fine(procs):
    one = procs.slice(gpus=0)
    assert one.spawn("quiet", Quiet).one.call_one().get() == 1
    mixed = one.spawn("mixin", Mixin)
    answers = [mixed.first, mixed.second, mixed.redefined]
    assert [each.call_one().get() for each in answers] == ["first", "second", "mixin"]
    one.spawn("empty", Empty).initialized.get()


@pytest.mark.parametrize(
    "args, kwargs, message",
    [
        ((1, 2), {}, r"^Counter\(start\): too many positional arguments"),
        ((), {"begin": 1}, "unexpected keyword argument 'begin'"),
    ],
)
def test_arguments_of_the_constructor_are_checked_at_once(procs, args, kwargs, message):
    with pytest.raises(TypeError, match=message):
        procs.spawn("refused", Counter, *args, **kwargs)


def test_no_constructor_takes_no_arguments(procs):
    with pytest.raises(TypeError, match="takes no arguments"):
        procs.spawn("refused", AsyncWitness, 1)


# ------------------------------------------------------------------------------- as it is on a mesh


def test_an_endpoint_is_not_callable_directly(procs):
    counter = procs.spawn("counter", Counter)
    with pytest.raises(TypeError, match="not callable"):
        counter.add(1)


def test_a_plain_method_says_how_to_call_it(procs):
    counter = procs.spawn("counter", Counter)
    with pytest.raises(RuntimeError, match=r"Actor <class .*Counter'> \.plain is not annotated"):
        counter.plain(1)
    with pytest.raises(RuntimeError, match="is not annotated as an endpoint"):
        counter.plain.call(1)


def test_unknown_attributes(procs):
    counter = procs.spawn("counter", Counter)
    with pytest.raises(AttributeError, match="no endpoint 'ad'.*add"):
        counter.ad
    with pytest.raises(AttributeError):
        counter._nothing
    assert not hasattr(counter, "value")


def test_as_endpoint_calls_plain_methods(procs):
    one = procs.slice(gpus=0)
    sync, on_loop = one.spawn("counter", Counter, 5), one.spawn("async", AsyncCounter, 6)
    assert as_endpoint(sync.plain).call_one(1).get() == 6
    assert as_endpoint(on_loop.plain_async).call_one(1).get() == 7
    ported = as_endpoint(sync.plain_port, explicit_response_port=True)
    assert ported.call_one(2).get() == 7


def test_as_endpoint_checks_arguments_and_kinds(procs):
    one = procs.slice(gpus=0).spawn("counter", Counter)
    with pytest.raises(TypeError, match="missing a required argument: 'n'"):
        as_endpoint(one.plain).call_one()
    with pytest.raises(ActorError, match="is an async def method"):
        as_endpoint(one.plain_async).call_one().get()


@pytest.mark.parametrize("what", [len, Counter.add, Counter().plain, 3])
def test_as_endpoint_wants_a_method_of_a_spawned_actor(what):
    with pytest.raises(ValueError, match="expected an method of a spawned actor"):
        as_endpoint(what)


# --------------------------------------------------------------------------------------- its thread


def test_a_sync_actor_has_one_thread_without_a_loop(procs):
    one = procs.slice(gpus=1)
    first, second = one.spawn("first", Witness), one.spawn("second", Witness)
    for witness in (first, second):
        for _ in range(3):
            assert witness.look.call_one().get() == ("monarch-actor-driver", False, True)
    assert first.ident.call_one().get() != second.ident.call_one().get()


def test_an_async_actor_has_a_thread_with_a_loop(procs):
    one = procs.slice(gpus=1)
    first, second = one.spawn("first", AsyncWitness), one.spawn("second", AsyncWitness)
    assert first.look.call_one().get() == ("monarch-actor-event-loop", True)
    assert first.in_a_task.call_one().get() == "first"
    assert second.in_a_task.call_one().get() == "second"


def test_actors_in_the_client_have_threads_of_their_own(mesh_runtime):
    witness = this_proc().spawn("here", Witness)
    assert witness.look.call_one().get() == ("monarch-actor-driver", False, True)
    assert witness.ident.call_one().get() != threading.get_ident()
    witness.stop().get()
    assert "monarch-actor-driver" not in {thread.name for thread in threading.enumerate()}


# ----------------------------------------------------------------------------- processes of its own


def fork_and_wait() -> int:
    pid = os.fork()
    if not pid:
        os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def square(n: int) -> int:
    return n * n


def squares(method: str) -> list[int]:
    with multiprocessing.get_context(method).Pool(2) as pool:
        return pool.map(square, range(3))


@pytest.mark.parametrize("cls", [Counter, pytest.param(None, id="two actors")])
def test_endpoints_may_start_processes(procs, cls):
    one = procs.slice(gpus=2)
    if cls is None:  # one that is not on the rank's main thread
        one.spawn("first", Counter).get.call_one().get()
    counter = one.spawn("counter", Counter)
    call = counter.call_back.call_one
    assert call(fork_and_wait).get() == 7
    echo = functools.partial(subprocess.check_output, text=True)
    assert call(echo, ["echo", "hello"]).get() == "hello\n"
    assert call(squares, "fork").get() == [0, 1, 4]
    assert call(squares, "spawn").get() == [0, 1, 4]
    assert counter.add.call_one().get() == 1


def asyncio_run() -> str:
    async def answer() -> str:
        return "loop"

    return asyncio.run(answer())


def test_a_sync_actor_may_run_a_loop_of_its_own(procs):
    counter = procs.slice(gpus=3).spawn("counter", Counter)
    assert counter.call_back.call_one(asyncio_run).get() == "loop"


def test_the_rank_runs_this_python(procs):
    counter = procs.slice(gpus=3).spawn("counter", Counter)
    assert counter.call_back.call_one(eval, "__import__('sys').executable").get() == sys.executable


# --------------------------------------------------------------------- hooks that ask those above


class Careful(Actor):
    """Its hooks call those of the base class, as in any hierarchy."""

    def __init__(self, port):
        self.port = port
        self.inner = this_proc().spawn("inner", Breaks)

    @endpoint
    def break_inner(self):
        self.inner.fail.broadcast()

    @endpoint
    def one(self):
        return 1

    def __supervise__(self, failure):
        self.port.send("supervise")
        return super().__supervise__(failure) or True

    def __cleanup__(self, exc):
        super().__cleanup__(exc)
        self.port.send("cleanup")


class AsyncCareful(Actor):
    def __init__(self, port):
        self.port = port
        self.inner = this_proc().spawn("inner", Breaks)

    @endpoint
    async def break_inner(self):
        self.inner.fail.broadcast()

    @endpoint
    async def one(self):
        return 1

    async def __supervise__(self, failure):
        self.port.send("supervise")
        return await super().__supervise__(failure) or True

    async def __cleanup__(self, exc):
        await super().__cleanup__(exc)
        self.port.send("cleanup")


class Breaks(Actor):
    @endpoint
    def fail(self):
        raise ValueError("on purpose")


class Proud(Actor):
    """Hands a failure on by what the base class says."""

    def __init__(self):
        self.inner = this_proc().spawn("inner", Breaks)

    @endpoint
    def break_inner(self):
        self.inner.fail.broadcast()

    def __supervise__(self, failure):
        return super().__supervise__(failure)


@pytest.mark.parametrize("cls", [Careful, AsyncCareful])
def test_hooks_may_call_those_of_the_base_class(procs, cls, failures):
    port, told = Channel.open()
    careful = procs.slice(gpus=0).spawn("careful", cls, port)
    careful.break_inner.call_one().get(5)
    assert told.recv().get(5) == "supervise"
    assert careful.one.call_one().get(5) == 1  # the failure was handled, and it lives
    careful.stop().get(5)
    assert told.recv().get(5) == "cleanup"
    assert failures == []


def test_the_base_class_handles_no_failure(procs, failures):
    proud = procs.slice(gpus=0).spawn("proud", Proud)
    proud.break_inner.broadcast()
    failure = only(failures)
    assert failure.mesh_name == "proud"
    assert "AttributeError" not in failure.report()
