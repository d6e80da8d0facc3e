"""Part G, what happens when something fails: who is told, in which words, and what goes on living.

One failure is told once: to the owner's `__supervise__`, else up the chain, else to the hook. Rows that need a client to end
are in `test_programs.py`; kills under load, hangs and lost hosts in `tests/faults`.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading

import pytest

from monarch_nb import (
    Actor,
    ActorError,
    Channel,
    DeviceMeshError,
    MeshFailure,
    RankExited,
    SupervisionError,
    concurrent_endpoint,
    endpoint,
    this_host,
    this_proc,
)
from tests import support
from tests.actors.cast import Counter


class Oddity(BaseException):
    """No Exception."""


class Fragile(Actor):
    """Fails in every way."""

    def __init__(self, fails=False):
        if fails:
            raise ValueError("cannot be made")

    @endpoint
    def error(self):
        raise ValueError("just an error")

    @endpoint
    def base(self):
        raise Oddity("not an Exception")

    @endpoint
    def generator_exit(self):
        raise GeneratorExit

    @endpoint
    def exit(self, code):
        sys.exit(code)

    @endpoint
    def interrupt(self):
        raise KeyboardInterrupt

    @endpoint(explicit_response_port=True)
    def ported(self, port):
        raise ValueError("escaped")

    @endpoint
    def die(self, how):
        how()

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def hold(self, started, go_on):
        """Be busy until told."""
        started.send("busy")
        while not os.path.exists(go_on):
            threading.Event().wait(0.01)


class AsyncFragile(Actor):
    @endpoint
    async def base(self):
        raise Oddity("not an Exception")

    @endpoint
    async def exit(self, code):
        sys.exit(code)

    @endpoint
    async def cancelled(self):
        raise asyncio.CancelledError

    @concurrent_endpoint
    async def error(self):
        raise ValueError("just an error")

    @concurrent_endpoint
    async def concurrent_base(self):
        raise Oddity("not an Exception")

    @concurrent_endpoint(explicit_response_port=True)
    async def ported(self, port):
        raise ValueError("escaped")

    @endpoint
    async def pid(self):
        return os.getpid()


class Owner(Actor):
    """Owns a fragile actor; `verdict` is what it says to failures."""

    def __init__(self, verdict):
        self.verdict = verdict
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
        while not os.path.exists(go_on):
            threading.Event().wait(0.01)

    def __supervise__(self, failure):
        self.order.append((failure.mesh_name, failure.mesh.sizes, failure.crashed_ranks))
        if self.verdict == "raise":
            raise KeyError("the supervisor itself")
        return self.verdict


class AsyncOwner(Actor):
    def __init__(self):
        self.seen = []
        self.inside = 0
        self.inner = [this_proc().spawn(f"inner{i}", Fragile) for i in range(3)]

    @endpoint
    async def break_all_and_wait(self):
        """A failure is handled while this endpoint awaits."""
        for each in self.inner:
            each.error.broadcast()
        while len(self.seen) < 3:
            await asyncio.sleep(0.001)
        return self.seen

    async def __supervise__(self, failure):
        self.inside += 1
        await asyncio.sleep(0.01)
        self.seen.append((failure.mesh_name, self.inside))
        self.inside -= 1
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


@pytest.fixture
def mesh(mesh_runtime):
    """Processes that may die."""
    made = this_host().spawn_procs({"gpus": 2}, name="mortals")
    yield made
    made.stop().get()


def only(failures):
    """The one failure that was told; a moment later there is still one."""
    support.eventually(lambda: failures)
    assert len(failures) == 1, failures
    return failures[0]


# ------------------------------------------------------------------------------ an endpoint that raises


@pytest.mark.parametrize("adverb", ["call", "call_one", "choose", "stream"])
def test_an_exception_goes_to_the_caller_and_the_actor_lives(procs, adverb):
    one = procs.slice(gpus=0).spawn("fragile", Fragile)
    asked = getattr(one.error, adverb)()
    with pytest.raises(ActorError, match="Actor call fragile.error failed") as caught:
        (next(asked) if adverb == "stream" else asked).get()
    assert isinstance(caught.value.exception, ValueError)
    assert one.pid.call_one().get()


def test_an_exception_in_a_broadcast_ends_the_actor_and_is_told_once(procs, failures):
    fragile = procs.spawn("fragile", Fragile)
    fragile.slice(gpus=1).error.broadcast()
    failure = only(failures)
    assert isinstance(failure, MeshFailure)
    assert (failure.mesh_name, failure.crashed_ranks) == ("fragile", [1])
    assert failure.mesh.sizes == {"gpus": 4}
    assert str(failure).startswith("MeshFailure(mesh_name='fragile', crashed_ranks=[1], event=")
    assert "ValueError: just an error" in failure.report()
    assert "rank 1 {'gpus': 1/4}" in failure.report()
    with pytest.raises(SupervisionError, match="failure on mesh.*fragile.*with event"):
        fragile.pid.call().get()
    assert len(fragile.slice(gpus=slice(2, 4)).pid.call().get()) == 2
    assert fragile.slice(gpus=0).pid.call_one().get()


@pytest.mark.parametrize(
    "cls, method",
    [
        (Fragile, "base"),
        (Fragile, "generator_exit"),
        (Fragile, "ported"),
        (AsyncFragile, "base"),
        (AsyncFragile, "concurrent_base"),
        (AsyncFragile, "ported"),
    ],
)
def test_what_is_no_exception_or_escapes_a_port_ends_the_actor(procs, failures, cls, method):
    one = procs.slice(gpus=0).spawn("fragile", cls)
    words = (
        rf"Endpoint call fragile\.{method}\(\) failed, The actor <root>\..*fragile.*"
        r"and all its descendants have failed"
    )
    with pytest.raises(SupervisionError, match=words) as caught:
        getattr(one, method).call_one().get(timeout=5)
    assert caught.value.endpoint == f"fragile.{method}()"
    assert only(failures).mesh_name == "fragile"
    with pytest.raises(RuntimeError, match=r"The actor .* and all its descendants have failed"):
        one.pid.call_one().get(timeout=5)


@pytest.mark.parametrize("cls", [Fragile, AsyncFragile])
@pytest.mark.parametrize("code", [3, 0, None, "text"])
def test_sys_exit_goes_to_the_caller_and_rank_and_actor_live(procs, cls, code):
    """Here we differ from Monarch, whose actor dies."""
    one = procs.slice(gpus=1).spawn("fragile", cls)
    before = one.pid.call_one().get()
    with pytest.raises(ActorError) as caught:
        one.exit.call_one(code).get()
    assert f"the endpoint called sys.exit({code!r})" in str(caught.value)
    assert one.pid.call_one().get() == before


def test_a_keyboard_interrupt_goes_to_the_caller_and_the_actor_lives(procs):
    """Here we differ too: on our ranks it is what a stop button raises."""
    one = procs.slice(gpus=1).spawn("fragile", Fragile)
    with pytest.raises(ActorError, match="KeyboardInterrupt"):
        one.interrupt.call_one().get()
    assert one.pid.call_one().get()


def test_a_cancelled_error_of_the_user_s_goes_to_the_caller(procs):
    one = procs.slice(gpus=1).spawn("fragile", AsyncFragile)
    with pytest.raises(ActorError, match="CancelledError"):
        one.cancelled.call_one().get()
    assert one.pid.call_one().get()


def test_an_exception_in_a_concurrent_endpoint(procs):
    one = procs.slice(gpus=1).spawn("fragile", AsyncFragile)
    with pytest.raises(ActorError, match=r"Actor call fragile\.error failed"):
        one.error.call_one().get()
    assert one.pid.call_one().get()


class Unreadable:
    def __reduce__(self):
        return explode, ()


def explode():
    raise ValueError("cannot be read")


def test_a_broadcast_that_cannot_be_read_is_not_lost_silently(procs, failures):
    one = procs.slice(gpus=0).spawn("reader", Counter)
    one.echo.broadcast(Unreadable())
    assert "cannot be read" in only(failures).report()


# ------------------------------------------------------------------------------------- constructors


def test_a_constructor_that_raises(procs, failures):
    fragile = procs.spawn("fragile", Fragile, fails=True)
    early = fragile.pid.call()
    with pytest.raises(ActorError, match="cannot be made"):
        fragile.initialized.get(timeout=5)
    with pytest.raises(SupervisionError, match="cannot be made"):
        early.get(timeout=5)
    failure = only(failures)  # once, and not once per rank
    assert failure.crashed_ranks == [0, 1, 2, 3]
    assert "the constructor of Fragile raised ValueError: cannot be made" in failure.report()
    with pytest.raises(SupervisionError, match="cannot be made"):
        fragile.slice(gpus=2).pid.call_one().get(timeout=5)


class FailsOnOne(Actor):
    def __init__(self, rank):
        from monarch_nb import current_rank

        if current_rank()["gpus"] == rank:
            raise ValueError("not here")

    @endpoint
    def one(self):
        return 1


def test_a_constructor_that_raises_on_one_rank_takes_the_others_down(procs, failures):
    mesh = procs.spawn("partly", FailsOnOne, 2)
    with pytest.raises(ActorError, match="rank 2 of 4") as caught:
        mesh.initialized.get(timeout=5)
    assert caught.value.rank == 2
    assert only(failures).crashed_ranks == [2]
    with pytest.raises(SupervisionError):
        mesh.one.call().get(timeout=5)
    support.eventually(
        lambda: isinstance(mesh.slice(gpus=0).one.call_one().exception(5), SupervisionError)
    )


def test_processes_take_new_actors_after_others_have_failed(procs, failures):
    procs.spawn("fragile", Fragile, fails=True)
    dying = procs.spawn("dying", Fragile)
    dying.error.broadcast()
    support.eventually(lambda: len(failures) >= 2)
    assert procs.spawn("counter", Counter).add.call(1).get(timeout=5).values() == [1] * 4


# ------------------------------------------------------------------------------------------ processes


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


# ---------------------------------------------------------------------------------------- the stopped


def test_a_stopped_mesh_refuses_calls_and_nobody_else_hears_of_it(procs, failures):
    fragile = procs.spawn("fragile", Fragile)
    fragile.stop("enough of it").get(timeout=5)
    with pytest.raises(SupervisionError, match="has status stopped: enough of it"):
        fragile.pid.call().get()
    with pytest.raises(SupervisionError, match="has status stopped"):
        fragile.pid.broadcast()
    assert procs.spawn("next", Counter).get.call().get(timeout=5).values() == [0] * 4
    assert failures == []


class BadCleanup(Actor):
    @endpoint
    def one(self):
        return 1

    def __cleanup__(self, exc):
        raise ValueError("in the clean-up")


def test_a_cleanup_that_raises_is_silent_and_harms_nobody(procs, failures):
    actor = procs.spawn("cleaner", BadCleanup)
    assert actor.one.call().get().values() == [1] * 4
    actor.stop().get(timeout=5)
    assert procs.spawn("next", Counter).get.call().get(timeout=5).values() == [0] * 4
    assert failures == []


# ------------------------------------------------------------------------------------- the supervisor


def test_a_supervisor_that_handles_ends_the_matter(procs, failures):
    owner = procs.slice(gpus=0).spawn("owner", Owner, True)
    owner.break_inner.call_one().get()
    seen = support.eventually(lambda: (found := owner.report.call_one().get())[0] != "report" and found)
    assert seen[0] == ("inner", {}, [0])
    error = owner.call_inner.call_one().exception(5)
    assert isinstance(error, ActorError)  # the owner lives; what it called is dead
    assert "SupervisionError" in str(error)
    assert failures == []


@pytest.mark.parametrize("verdict", [False, None, 0])
def test_a_supervisor_that_does_not_handle_fails_too(procs, failures, verdict):
    owner = procs.slice(gpus=0).spawn("owner", Owner, verdict)
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
        from monarch_nb.actors import runtime_access

        runtime = runtime_access.runtime()
        owner = next(d for d in runtime.hosting.drivers.values() if d.spec.name == name)
        inner = owner._actor.inner
        inner.error.broadcast()
        support.eventually(lambda: inner._state.lost)


def test_an_async_supervisor_runs_beside_the_endpoint_one_failure_at_a_time(procs, failures):
    owner = procs.slice(gpus=0).spawn("owner", AsyncOwner)
    seen = owner.break_all_and_wait.call_one().get(timeout=5)
    assert sorted(seen) == [("inner0", 1), ("inner1", 1), ("inner2", 1)]
    assert failures == []


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


class Spawner(Actor):
    """Owns processes; a reference to its actors outlives it."""

    @endpoint
    def spawn(self):
        self.procs = this_host().spawn_procs({"gpus": 1})
        return self.procs.spawn("held", Counter)

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
