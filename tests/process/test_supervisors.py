"""Part G 2.2, `__supervise__`: handled, passed up, raising; and failures below failures."""

import asyncio
import contextlib
import time

import pytest

from monarch_nb import (
    Actor,
    ActorError,
    Channel,
    SupervisionError,
    concurrent_endpoint,
    endpoint,
    this_host,
    this_proc,
)
from tests import support
from tests.actors.fragile import Fragile, only


class Owner(Actor):
    """Owns a fragile actor; `state` is what it says to failures."""

    def __init__(self, state):
        self.state = state
        self.order = []
        self.inner = this_proc().spawn("inner", Fragile)

    @endpoint
    def break_inner(self):
        self.inner.error.broadcast()

    @endpoint
    def call_inner(self):
        return self.inner.pid.call_one().get()

    @endpoint
    def report(self):
        self.order.append("report")
        return self.order

    @endpoint
    def hold(self, started, go_on):
        self.order.append("hold")
        started.send("busy")
        support.until_exists(go_on)

    def __supervise__(self, failure):
        self.order.append((failure.mesh_name, failure.mesh.sizes, failure.crashed_ranks))
        if self.state == "raise":
            raise KeyError("the supervisor itself")
        return self.state


class AsyncOwner(Actor):
    def __init__(self):
        self.seen = []
        self.all_seen = asyncio.Event()
        self.inside = 0
        self.inner = [this_proc().spawn(f"inner{i}", Fragile) for i in range(3)]

    @endpoint
    async def break_all_and_wait(self):
        """A failure is handled while this endpoint awaits."""
        for each in self.inner:
            each.error.broadcast()
        await self.all_seen.wait()
        return self.seen

    async def __supervise__(self, failure):
        self.inside += 1
        await asyncio.sleep(0.01)
        self.seen.append((failure.mesh_name, self.inside))
        self.inside -= 1
        if len(self.seen) == 3:
            self.all_seen.set()
        return True


class Silent(Actor):
    """Owns one and does not care."""

    def __init__(self):
        self.inner = this_proc().spawn("inner", Fragile)

    @endpoint
    def break_inner(self):
        self.inner.error.broadcast()

    @endpoint
    def one(self):
        return 1


def test_a_supervisor_that_handles_ends_the_matter(procs, failures):
    owner = procs.slice(gpus=0).spawn("owner", Owner, True)
    owner.break_inner.call_one().get()
    seen = ("inner", {}, [0])
    support.eventually(lambda: seen in owner.report.call_one().get())
    error = owner.call_inner.call_one().exception(5)
    assert isinstance(error, ActorError)  # the owner lives; what it called is dead
    assert "SupervisionError" in str(error)
    assert failures == []


@pytest.mark.parametrize("state", [False, None, 0])
def test_a_supervisor_that_does_not_handle_fails_too(procs, failures, state):
    owner = procs.slice(gpus=0).spawn("owner", Owner, state)
    owner.break_inner.broadcast()
    failure = only(failures)
    assert failure.mesh_name == "owner"
    report = failure.report()
    assert "just an error" in report
    assert "inner" in report
    with pytest.raises(SupervisionError, match="all its descendants have failed"):
        owner.report.call_one().get(timeout=5)


def test_a_supervisor_that_raises_fails_with_both_errors(procs, failures):
    owner = procs.slice(gpus=0).spawn("owner", Owner, "raise")
    owner.break_inner.broadcast()
    report = only(failures).report()
    assert "just an error" in report
    assert "the supervisor itself" in report


def test_without_a_supervisor_the_owner_fails_too(procs, failures):
    owner = procs.slice(gpus=0).spawn("silent", Silent)
    owner.break_inner.broadcast()
    assert only(failures).mesh_name == "silent"
    with pytest.raises(SupervisionError):
        owner.one.call_one().get(timeout=5)


def test_a_sync_supervisor_runs_before_what_is_queued(procs, tmp_path):
    owner = procs.slice(gpus=0).spawn("owner", Owner, True)
    inner_broken = owner.break_inner.call_one()
    port, started = Channel.open()
    inner_broken.get()
    owner.report.call_one().get()
    support.eventually(lambda: len(owner.report.call_one().get()) > 2)
    other = procs.slice(gpus=0).spawn("other", Owner, True)
    go_on = tmp_path / "go on"
    holding = other.hold.call_one(port, str(go_on))
    started.recv().get(5)
    queued = [other.report.call_one() for _ in range(3)]
    assert not holding.done()
    procs.slice(gpus=0).spawn("breaker", Breaker).break_inner_of.call_one("other").get()
    go_on.touch()
    assert queued[-1].get(5) == ["hold", ("inner", {}, [0]), "report", "report", "report"]


class Breaker(Actor):
    """Reaches into its process: fails the actor that another owns, while the owner is busy."""

    @endpoint
    def break_inner_of(self, name):
        from monarch_nb.process import current

        runtime = current.runtime()
        owner = next(d for d in runtime.hosting.drivers.values() if d.spec.name == name)
        owner._actor.inner.error.broadcast()
        support.eventually(lambda: owner._urgent)  # it is told, and still busy


def test_an_async_supervisor_runs_beside_the_endpoint_one_failure_at_a_time(procs, failures):
    owner = procs.slice(gpus=0).spawn("owner", AsyncOwner)
    seen = owner.break_all_and_wait.call_one().get(timeout=5)
    assert sorted(seen) == [("inner0", 1), ("inner1", 1), ("inner2", 1)]
    assert failures == []


# --------------------------------------------------------------------------------- while it is busy


class Busy(Actor):
    """Owns one; its endpoints are running when that fails. `state` is what it says to failures."""

    def __init__(self, state):
        self.state = state
        self.seen = 0
        self.inner = this_proc().spawn("inner", Fragile)

    @endpoint
    async def break_inner_and_wait(self, go_on):
        await asyncio.to_thread(support.eventually, go_on.exists)
        self.inner.error.broadcast()
        await asyncio.sleep(30)

    @endpoint
    async def break_inner_and_go_on(self, go_on):
        """Take no notice of being cancelled."""
        await asyncio.to_thread(support.eventually, go_on.exists)
        self.inner.error.broadcast()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(30)
        return "done"

    @concurrent_endpoint
    async def wait(self):
        await asyncio.sleep(30)

    @endpoint
    async def break_inner(self):
        self.inner.error.broadcast()

    @endpoint
    async def work(self, begun):
        """A piece of work that never yields."""
        begun.send(self.seen)
        until = time.monotonic() + 0.001
        while time.monotonic() < until:
            pass
        return self.seen

    async def __supervise__(self, failure):
        if self.state == "raise":
            raise KeyError("the supervisor itself")
        await asyncio.sleep(0)
        self.seen += 1
        return self.state


@pytest.mark.parametrize("call", ["break_inner_and_wait", "break_inner_and_go_on"])
@pytest.mark.parametrize("state", [False, "raise"])
def test_a_call_in_flight_is_told_when_the_supervisor_does_not_handle(
    procs, failures, call, state, tmp_path
):
    go_on = tmp_path / "go_on"
    busy = procs.slice(gpus=0).spawn("busy", Busy, state)
    beside = busy.wait.call_one()
    call = getattr(busy, call).call_one(go_on)
    queued = busy.break_inner.call_one()
    go_on.touch()
    for each in (call, beside, queued):
        with pytest.raises(SupervisionError, match="all its descendants have failed") as caught:
            each.get(timeout=10)
        assert "just an error" in str(caught.value)
        assert ("the supervisor itself" in str(caught.value)) == (state == "raise")
    assert only(failures).mesh_name == "busy"


def test_a_backlog_that_never_yields_lets_the_supervisor_run(procs, failures):
    busy = procs.slice(gpus=0).spawn("busy", Busy, True)
    port, _receiver = Channel.open()
    busy.break_inner.broadcast()
    backlog = [busy.work.call_one(port) for _ in range(2_000)]
    seen = [each.get(timeout=20) for each in backlog]
    assert seen[-1] == 1
    assert failures == []


class Tenant(Actor):
    """Owns an actor on processes of somebody else."""

    def __init__(self, procs, state=True):
        self.state = state
        self.seen = []
        self.inner = procs.spawn("inner", Fragile)

    @endpoint
    def call_inner(self):
        return self.inner.pid.call_one().get()

    @endpoint
    def tell_inner(self):
        self.inner.pid.broadcast()

    @endpoint
    def report(self):
        return self.seen

    def __supervise__(self, failure):
        self.seen.append((failure.mesh_name, failure.crashed_ranks))
        return self.state


@pytest.mark.parametrize("send", ["call_inner", "tell_inner"])
def test_a_send_to_what_others_have_stopped_is_told_to_its_owner_once(procs, failures, send):
    rented = this_host().spawn_procs()
    tenant = procs.slice(gpus=0).spawn("tenant", Tenant, rented)
    tenant.call_inner.call_one().get(timeout=10)
    rented.stop().get(timeout=10)

    def fails():
        return isinstance(getattr(tenant, send).call_one().exception(10), ActorError)

    support.eventually(fails)  # its process may hear of the end a moment later
    fails()
    assert tenant.report.call_one().get(timeout=10) == [("inner", [0])]
    assert failures == []


def test_a_send_to_what_others_have_stopped_ends_an_owner_that_does_not_handle(procs, failures):
    rented = this_host().spawn_procs()
    tenant = procs.slice(gpus=0).spawn("tenant", Tenant, rented, state=False)
    tenant.call_inner.call_one().get(timeout=10)
    rented.stop().get(timeout=10)
    assert failures == []

    def is_told():
        with contextlib.suppress(SupervisionError):  # it has failed
            tenant.call_inner.call_one().exception(10)
        return failures

    support.eventually(is_told)  # its process may hear of the end a moment later
    assert only(failures).mesh_name == "tenant"


# ------------------------------------------------------------------------------------------- nested


class Middle(Actor):
    """Calls one that dies, and does not catch it."""

    def __init__(self):
        self.inner = this_proc().spawn("inner", Fragile)

    @endpoint
    def call_inner(self):
        self.inner.base.call_one().get()

    def __supervise__(self, failure):
        return True


def test_a_nested_failure_names_both_actors(procs, failures):
    middle = procs.slice(gpus=2).spawn("middle", Middle)
    with pytest.raises(ActorError) as caught:
        middle.call_inner.call_one().get(timeout=5)
    text = str(caught.value)
    assert "middle.call_inner" in text
    assert "Endpoint call inner.base() failed" in text
    assert isinstance(caught.value.exception, SupervisionError)
    assert failures == []
