"""What ranks tell when they are asked: actors, what runs, stacks. Nobody waits for a stopped one"""

import os
import signal
import time

import pytest

from monarch_nb import ActorError
from monarch_nb.control.hangs.stacks import look
from monarch_nb.control.status import details
from monarch_nb.core.errors.folding import fold_outputs
from monarch_nb.core.wire.messages.status import RankDetails
from tests import inside
from tests.control.conftest import WITHIN_S, Mesh
from tests.faults.actors import AsyncWorker, Worker
from tests.support import eventually, stop


def ask(made: Mesh, timeout_s: float = WITHIN_S) -> list[RankDetails | None]:
    """By rank."""
    found = details.ask(made.client.proc, dict.fromkeys(made.processes, 0), timeout_s)
    return [found.get(process) for process in made.processes]


def test_actors_with_their_counts(mesh):
    made = mesh(2, Worker)
    for _ in range(3):
        made.workers.add.call().get(WITHIN_S)
    with pytest.raises(ActorError):
        made.workers.do.call("1 / 0").get(WITHIN_S)

    def counts() -> list[list[dict]]:
        return [details.actors_of(told) for told in ask(made)]

    wanted = {"name": "workers", "cls": "Worker", "calls": 4, "failed": 1, "queue": 0,
              "current": None}  # fmt: skip
    eventually(lambda: counts() == [[wanted], [wanted]], what=lambda: str(counts()))


def test_a_busy_rank_answers_with_what_runs_and_what_waits(mesh):
    made = mesh(1, Worker)
    naps = made.procs.spawn("naps", AsyncWorker)
    calls = [made.workers.sleep.call(60) for _ in range(3)]
    nap = naps.nap.call(60)

    def current() -> dict[str, tuple[str | None, int]]:
        [told] = ask(made)
        return {each["name"]: (each["current"], each["queue"]) for each in details.actors_of(told)}

    eventually(lambda: current() == {"workers": ("sleep", 2), "naps": ("nap", 0)})
    made.client.interrupt()
    for each in [*calls, nap]:
        assert each.exception(timeout=WITHIN_S)
    eventually(lambda: current() == {"workers": (None, 0), "naps": (None, 0)})


def test_a_cell_and_its_error(mesh):
    made = mesh(1)
    run = made.start("import time; time.sleep(60)")
    eventually(lambda: ask(made)[0].cell == "cell")
    run.interrupt()
    assert run.wait(WITHIN_S)
    made.cell("1 / 0", tag=7)
    [told] = ask(made)
    assert told.cell is None
    [error] = told.errors
    assert (error.number, error.what, error.tag) == (1, "cell", 7)
    assert error.record["ename"] == "ZeroDivisionError"


def test_totals_of_actor_meshes(mesh):
    made = mesh(2, Worker)
    made.procs.slice(gpus=1).spawn("one", AsyncWorker).add.call().get(WITHIN_S)
    made.workers.add.call().get(WITHIN_S)
    found = details.ask(made.client.proc, dict.fromkeys(made.processes, 0), WITHIN_S)
    assert details.actor_totals(inside.state(made.procs), found) == [
        {"name": "workers", "cls": "Worker", "size": 2, "calls": 2, "failed": 0, "queue": 0,
         "ended": None},
        {"name": "one", "cls": "AsyncWorker", "size": 1, "calls": 1, "failed": 0, "queue": 0,
         "ended": None},
    ]  # fmt: skip


@pytest.mark.fault
def test_a_stopped_rank_is_missing_and_not_asked_twice(mesh):
    made = mesh(2, Worker)
    pid = made.workers.slice(gpus=0).pid.call_one().get(WITHIN_S)
    stop(pid)
    try:
        start = time.monotonic()
        assert [told is None for told in ask(made, 0.2)] == [True, False]
        ports = len(made.client.proc.waiting)
        for _ in range(5):
            assert [told is None for told in ask(made, WITHIN_S)] == [True, False]
        assert time.monotonic() - start < WITHIN_S / 2
        assert len(made.client.proc.waiting) == ports
    finally:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: None not in ask(made, 1.0))
    assert not [each for each in made.client.proc.waiters() if type(each).__name__ == "_Question"]


@pytest.mark.fault
def test_a_dead_rank_is_missing_at_once(mesh):
    made = mesh(2)
    made.cell("import os; os._exit(1)", gpus=0)
    assert [told is None for told in ask(made)] == [True, False]


# stacks


def stacks(made: Mesh) -> list[tuple[tuple[int, ...], str]]:
    found = look(made.client.proc, inside.state(made.procs), range(len(made.processes)))
    texts = {
        rank: "\n".join(
            f"{stack.thread}{frame.file}:{frame.line} {frame.function}"
            for stack in of_rank
            for frame in stack.frames
        )
        for rank, of_rank in found.items()
    }
    return [(group.ranks, texts[group.ranks[0]] or "idle") for group in fold_outputs(texts)]


def test_stacks_are_of_the_user_and_equal_ones_are_one(mesh):
    made = mesh(3)
    code = """
import threading, time
def work():
    time.sleep(60)
def beside():
    while not over: time.sleep(0.01)
over = False
if rank < 2:
    if rank == 1:
        threading.Thread(target=beside, name="side ", daemon=True).start()
    work()
"""
    run = made.start(code)
    wanted = {
        (0,): "<cell>:11 <module>\n<cell>:4 work",
        (1,): "<cell>:11 <module>\n<cell>:4 work\nside <cell>:6 beside",
        (2,): "idle",
    }
    eventually(lambda: dict(stacks(made)) == wanted, what=lambda: str(stacks(made)))
    run.interrupt()
    assert run.wait(WITHIN_S)
    made.cell("over = True")
    eventually(lambda: stacks(made) == [((0, 1, 2), "idle")])


@pytest.mark.slow
def test_stacks_of_actors_and_of_c_code(mesh):
    made = mesh(1, Worker)
    made.procs.spawn("naps", AsyncWorker).sleep.call(1)
    call = made.workers.do.call("import re; re.match(r'(a+)+$', 'a' * 26 + 'b')")
    eventually(lambda: " do\n" in dict(stacks(made)).get((0,), ""))
    call.exception(timeout=WITHIN_S)


def test_the_thread_of_an_actor_has_its_name(mesh):
    made = mesh(2, Worker)
    second = made.procs.spawn("second", Worker)
    call = second.do.call("import time; time.sleep(30)")
    eventually(
        lambda: "actor second" in dict(stacks(made)).get((0, 1), ""), what=lambda: str(stacks(made))
    )
    call.cancel()
    call.exception(timeout=WITHIN_S)


def test_calls_deeper_than_are_written_are_a_stack_too(mesh):
    made = mesh(1)
    run = made.start("import time\ndef f(n): f(n - 1) if n else time.sleep(60)\nf(200)")
    eventually(lambda: dict(stacks(made)).get((0,), "").endswith("<cell>:2 f"))
    run.interrupt()
    assert run.wait(WITHIN_S)


@pytest.mark.fault
def test_a_stopped_rank_has_no_stack_and_holds_nobody_up(mesh):
    made = mesh(2, Worker)
    pid = made.workers.slice(gpus=0).pid.call_one().get(WITHIN_S)
    stop(pid)
    try:
        start = time.monotonic()
        assert stacks(made) == [((1,), "idle")]
        assert time.monotonic() - start < 5
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
def test_ranks_live_on_however_often_their_threads_are_looked_at(mesh):
    made = mesh(2)
    code = """
import threading
def deep(n):
    return n and deep(n - 1)
def recurse():
    while not over:
        deep(600)
def start():
    while not over:
        beside = threading.Thread(target=deep, args=(50,))
        beside.start()
        beside.join()
over = False
for target in (recurse, recurse, start):
    threading.Thread(target=target, daemon=True).start()
"""
    assert made.cell(code) == {0: "ok", 1: "ok"}
    for _ in range(300):
        look(made.client.proc, inside.state(made.procs), range(2))
    assert made.cell("over = True") == {0: "ok", 1: "ok"}
