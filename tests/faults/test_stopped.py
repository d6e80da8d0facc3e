"""Row 4: a rank is stopped by SIGSTOP: silent, then heard again or given up."""

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from monarch_nb import RankUnreachable
from monarch_nb.control.client import client
from tests import inside
from tests.support import eventually, is_running, stop

GRACE_S = 2.0


@pytest.fixture(scope="module", autouse=True)
def short_grace() -> Iterator[None]:
    """Before the client of this module starts."""
    os.environ["MONARCH_NB_GRACE_S"] = str(GRACE_S)
    yield
    del os.environ["MONARCH_NB_GRACE_S"]


def send(pid: int, number: int) -> float:
    at = time.monotonic()
    if number == signal.SIGSTOP:
        stop(pid)  # it answers nothing from here on
    else:
        os.kill(pid, number)
    return at


def state(procs, rank: int) -> str:
    [found] = [each for each in client().snapshot().meshes if each.name == procs.name]
    return found.ranks[rank].state


def silent(procs) -> bool:
    return any(process in client().supervision.silent for process in inside.processes(procs))


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("is_in_call", [False, True], ids=["idle", "in call"])
def test_silent_then_heard_and_no_reply_lost_or_doubled(
    mesh, goal, tmp_path, failures, is_in_call, responsive
):
    made = mesh(2)
    ledger = tmp_path / "ledger"
    first = made.one(1).log.call_one(str(ledger), "first", 0.5) if is_in_call else None
    if is_in_call:
        started = time.monotonic()
        eventually(lambda: time.monotonic() - started > 0.2)
    at = send(made.pids[1], signal.SIGSTOP)
    queued = [made.one(1).log.call_one(str(ledger), f"queued {i}") for i in range(50)]
    eventually(lambda: silent(made.procs), 25.0)
    what = "in a call" if is_in_call else "idle"
    goal(f"SIGSTOP {what}: silent", time.monotonic() - at, 2.5)
    assert state(made.procs, 1) == "silent"
    assert "silent ranks [1]" in repr(made.procs)
    assert made.one(0).add.call_one().get(timeout=5) == 1
    at = send(made.pids[1], signal.SIGCONT)
    assert [each.get(timeout=10) for each in queued] == [f"queued {i}" for i in range(50)]
    goal(f"SIGCONT {what}: queued calls answered", time.monotonic() - at, 1.0)
    eventually(lambda: not silent(made.procs), 10.0)
    eventually(lambda: state(made.procs, 1) == "idle", 5.0)
    expected = [f"queued {i}" for i in range(50)]
    if first is not None:
        assert first.get(timeout=5) == "first"
        expected.insert(0, "first")
    assert ledger.read_text().splitlines() == expected  # each executed once, in order
    assert failures == []


@pytest.mark.slow
@pytest.mark.fault
def test_stopped_right_after_its_start(mesh, goal):
    made = mesh(2)
    at = send(made.pids[0], signal.SIGSTOP)
    eventually(lambda: silent(made.procs), 25.0)
    goal("SIGSTOP of a rank just born: silent", time.monotonic() - at, 2.5)
    send(made.pids[0], signal.SIGCONT)
    assert made.one(0).add.call_one().get(timeout=10) == 1


@pytest.mark.slow
@pytest.mark.fault
def test_unreachable_after_the_grace_and_what_it_says_later_is_dropped(
    mesh, goal, tmp_path, failures
):
    made = mesh(3)
    ledger = tmp_path / "ledger"
    pending = made.workers.log.call(str(ledger), "one")
    pending.get(timeout=10)
    at = send(made.pids[1], signal.SIGSTOP)
    pending = [made.workers.sleep_unless.call(1, 0.0), made.one(1).log.call_one(str(ledger), "x")]
    for future in pending:
        error = future.exception(timeout=40)
        assert isinstance(error, RankUnreachable)
        assert error.ranks == (1,)
        assert GRACE_S < error.last_heard_s < GRACE_S + 5
    goal("SIGSTOP: unreachable after 2 s of silence and a grace of 2 s",
         time.monotonic() - at, 4.5)  # fmt: skip
    assert pending[0].exception().values == {0: 0, 2: 2}
    eventually(lambda: not is_running(made.pids[1]), 5.0, "the given-up rank killed")
    eventually(lambda: failures, 5.0)
    assert failures[0].crashed_ranks == [1]
    assert state(made.procs, 1) == "unreachable"
    assert "lost ranks [1]" in repr(made.procs)
    assert list(made.workers.slice(gpus=slice(0, 1)).add.call().get(timeout=5).values()) == [1]
    assert ledger.read_text().splitlines() == ["one"] * 3
    made.procs.heal()
    assert list(made.workers.add.call(10).get(timeout=20).values()) == [11, 10, 10]


@pytest.mark.slow
@pytest.mark.fault
def test_a_message_of_a_rank_that_was_given_up_is_dropped(mesh, monkeypatch):
    """What was on its way when the state fell: replayed here, for no rank can be made to send
    it."""
    made = mesh(2)
    proc = client().proc
    heard = []
    streams = proc.links._streams
    deliver = streams._deliver

    def tap(message):
        heard.append(message)
        deliver(message)

    monkeypatch.setattr(streams, "_deliver", tap)
    from monarch_nb import Channel

    port, receiver = Channel.open()
    waiting = receiver.recv()
    made.one(1).do.call_one("pass").get(timeout=5)
    number, _ = inside.address(port)
    source = inside.processes(made.procs)[1]
    send(made.pids[1], signal.SIGSTOP)
    assert isinstance(made.one(1).add.call_one().exception(timeout=40), RankUnreachable)
    from monarch_nb.core.wire.frames import HEADER, REPLY, Message

    payload = proc.encode("late", (proc.id,)).payload
    late = Message(HEADER.unpack(HEADER.pack(REPLY, 0, 0, 0, 0, number, source, 0)), payload)
    proc.deliver(late)
    other = inside.processes(made.procs)[0]
    good = Message(HEADER.unpack(HEADER.pack(REPLY, 0, 0, 0, 0, number, other, 0)), payload)
    assert not waiting.done()
    proc.deliver(good)
    assert waiting.get(timeout=5) == "late"


@pytest.mark.slow
def test_a_rank_that_holds_the_gil_is_busy_and_not_silent(mesh):
    made = mesh(2)
    code = "import ctypes; ctypes.PyDLL(None).sleep(5)"
    future = made.one(1).do.call_one(code)
    seen: set[str] = set()

    def watch() -> bool:
        seen.add(state(made.procs, 1))
        return future.done()

    eventually(watch, 20.0)
    assert future.get(timeout=1) is None
    assert "busy" in seen
    assert "silent" not in seen


@pytest.mark.slow
@pytest.mark.fault
def test_several_stopped_at_once_are_told_together_in_time(mesh, goal):
    made = mesh(4)
    future = made.workers.sleep.call(60.0)
    at = time.monotonic()
    for pid in made.pids:
        stop(pid)
    error = future.exception(timeout=40)
    assert isinstance(error, RankUnreachable)
    goal("SIGSTOP of all four: unreachable", time.monotonic() - at, 4.5)
    eventually(lambda: not any(map(is_running, made.pids)), 5.0)
    assert threading.active_count() < 100
