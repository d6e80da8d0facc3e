"""Part G, what happens when something fails: who is told, in which words, and what goes on living.

One failure is told once: to the owner, else up the chain (`test_supervisors.py`), else to the hook
(`test_programs.py`). Processes that die are in `test_deaths.py` and `tests/faults`.
"""

import pytest

from monarch_nb import (
    Actor,
    ActorError,
    MeshFailure,
    SupervisionError,
    endpoint,
)
from tests import support
from tests.actors.cast import Counter
from tests.actors.fragile import AsyncFragile, Fragile, only

# -------------------------------------------------------------------------- an endpoint that raises


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


@pytest.mark.parametrize("cls", [Fragile, AsyncFragile])
def test_sys_exit_where_nobody_waits_ends_the_actor(procs, failures, cls):
    one = procs.slice(gpus=1).spawn("fragile", cls)
    one.exit.broadcast(3)
    assert "SystemExit" in only(failures).report()


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


class FailsInTime(Fragile):
    """Its constructor fails when the test says so, which is after a call was made."""

    def __init__(self, go_on):
        support.until_exists(go_on)
        super().__init__(fails=True)


def test_a_constructor_that_raises(procs, failures, tmp_path):
    go_on = tmp_path / "go_on"
    fragile = procs.spawn("fragile", FailsInTime, str(go_on))
    early = fragile.pid.call()
    go_on.touch()
    words = r"constructor raised on ranks \[0, 1, 2, 3\]\.\n(.*\n)*.*cannot be made"
    with pytest.raises(ActorError, match=words):
        fragile.initialized.get(timeout=5)
    with pytest.raises(SupervisionError, match="cannot be made"):
        early.get(timeout=5)
    failure = only(failures)  # once, and not once per rank
    assert failure.crashed_ranks == [0, 1, 2, 3]
    assert "the constructor of FailsInTime raised ValueError: cannot be made" in failure.report()
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
    support.eventually(lambda: len(failures) == 5)  # one spawn that failed, four ranks that died
    assert procs.spawn("counter", Counter).add.call(1).get(timeout=5).values() == [1] * 4


# -------------------------------------------------------------------------------------- the stopped


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
