"""What has failed on ranks, whoever called, each error once."""

import os
import re
import signal
import threading
import time

import pytest

from monarch_nb import Actor, ActorError, endpoint
from monarch_nb.core.errors.records import ErrorRecord
from monarch_nb.core.wire.messages import codec
from monarch_nb.core.wire.messages.status import KeptError, RankDetails
from monarch_nb.elastic import restart
from monarch_nb.errors import RemoteProtocolError
from tests import inside
from tests.control.conftest import WITHIN_S, Mesh
from tests.faults.actors import AsyncWorker, Worker
from tests.support import eventually, stop


def told(made: Mesh) -> list[tuple[tuple[int, ...], str, str, int]]:
    return [
        (failure.ranks, failure.record.headline, failure.what, failure.count)
        for failure in made.client.failures.of(made.name)
    ]


def nothing_is_asked(made: Mesh) -> bool:
    return not made.client.failures._asked


def refreshed(made: Mesh) -> list[tuple[tuple[int, ...], str, str, int]]:
    """After every rank has been asked."""
    made.client.failures.refresh(made.processes)
    eventually(lambda: nothing_is_asked(made))
    return told(made)


def fail(made: Mesh, code: str) -> None:
    with pytest.raises(ActorError):
        made.workers.do.call(code).get(timeout=WITHIN_S)


class Middle(Actor):
    """Calls others and hides what they raise."""

    @endpoint
    def poke(self, workers, code: str) -> str:
        try:
            workers.do.call(code).get(timeout=10)
        except ActorError:
            return "hidden"
        return "fine"


class Broken(Actor):
    def __init__(self) -> None:
        raise TypeError("broken")


class AsyncBad(AsyncWorker):
    @endpoint
    async def bad(self) -> None:
        raise ValueError("async bad")


def test_equal_errors_of_a_cell_are_one_and_come_once(mesh):
    made = mesh(4)
    assert set(made.cell("if rank != 2: raise ValueError(f'bad {rank}')").values()) == {
        "ok",
        "error",
    }
    [(ranks, headline, what, count)] = told(made)
    assert (ranks, what, count) == ((0, 1, 3), "cell", 3)
    assert headline.startswith("ValueError: bad ")
    before = made.client.failures.of(made.name)
    assert refreshed(made) == told(made)  # the ranks tell of the same errors again
    assert made.client.failures.of(made.name) is before


def test_a_new_error_is_the_first_and_the_count_grows(mesh):
    made = mesh(2)
    for code in ("1 / 0", "x = y_that_is_not", "1 / 0"):
        made.cell(code)
    assert [(headline, count) for _, headline, _, count in told(made)] == [
        ("ZeroDivisionError: division by zero", 4),
        ("NameError: name 'y_that_is_not' is not defined", 2),
    ]
    [newer, older] = made.client.failures.of(made.name)
    assert newer.at > older.at
    assert newer.id < older.id


def test_calls_that_failed_are_told_when_ranks_are_asked(mesh):
    made = mesh(2, Worker)
    fail(made, "raise KeyError('k')")
    assert told(made) == []
    eventually(lambda: refreshed(made) == [((0, 1), "KeyError: 'k'", "workers.do", 2)])
    fail(made, "raise KeyError('k')")
    eventually(lambda: refreshed(made) == [((0, 1), "KeyError: 'k'", "workers.do", 4)])


def test_so_are_those_whose_caller_hides_them(mesh):
    made = mesh(2, Worker)
    middle = made.procs.slice(gpus=0).spawn("middle", Middle)
    target = made.workers.slice(gpus=1)
    assert middle.poke.call_one(target, "raise KeyError('k')").get(WITHIN_S) == "hidden"
    assert refreshed(made) == [((1,), "KeyError: 'k'", "workers.do", 1)]


def test_so_are_those_of_async_actors_and_constructors(mesh):
    made = mesh(1)
    bad = made.procs.spawn("bad", AsyncBad)
    with pytest.raises(ActorError):
        bad.bad.call().get(timeout=WITHIN_S)
    broken = made.procs.spawn("broken", Broken)
    with pytest.raises(ActorError):
        broken.initialized.get(timeout=WITHIN_S)
    found = {what: headline.partition(":")[0] for _, headline, what, _ in refreshed(made)}
    assert found == {"bad.bad": "ValueError", "broken.__init__": "TypeError"}


def test_who_refreshes_is_told_of_news_only(mesh):
    made, news = mesh(1, Worker), threading.Semaphore(0)
    fail(made, "raise KeyError('k')")
    made.client.failures.refresh(made.processes, news.release)
    assert news.acquire(timeout=WITHIN_S)
    made.client.failures.refresh(made.processes, news.release)
    eventually(lambda: nothing_is_asked(made))
    assert not news.acquire(blocking=False)


def test_an_interrupt_is_no_failure(mesh):
    made = mesh(2, Worker)
    run = made.start("print('on')\nimport time\ntime.sleep(60)")
    eventually(lambda: len(made.client.tail.last(10, made.name)) == 2)
    run.interrupt()
    assert run.wait(WITHIN_S)
    sleeping = made.workers.sleep.call(60)
    made.client.interrupt()
    assert sleeping.exception(timeout=WITHIN_S)
    fail(made, "raise KeyboardInterrupt")
    assert refreshed(made) == []


@pytest.mark.fault
def test_deaths_are_failures_with_their_reason_told_once(mesh):
    made = mesh(4)
    made.cell("import os\nif rank in (1, 2): os._exit(7)")
    [(ranks, headline, _, count)] = told(made)
    assert (ranks, count) == ((1, 2), 2)
    assert "exited with code 7" in headline
    [failure] = made.client.failures.of(made.name)
    assert failure.record.died
    pid = inside.pids(made.procs)[3]
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: len(told(made)) == 2)
    assert "killed by signal 9" in told(made)[0][1]
    assert told(made)[0][0] == (3,)


@pytest.mark.fault
def test_what_failed_before_a_heal_is_of_the_past_until_it_is_dismissed(mesh):
    made = mesh(4)
    made.cell("if rank == 1: raise ValueError('before')")
    made.cell("if rank == 0: raise KeyError('stays')")
    began = time.time()
    made.cell("import os, time\nif rank: print('last words of', rank)\ntime.sleep(.2)\n"
              "if rank: os._exit(8 if rank == 3 else 7)")  # fmt: skip
    assert sorted(ranks for ranks, *_ in told(made)) == [(0,), (1,), (1, 2), (3,)]
    made.procs.heal()
    assert told(made) == [((0,), "KeyError: 'stays'", "cell", 1)]
    past = made.client.failures.past(made.name)
    assert sorted(each.failure.ranks for each in past) == [(1,), (1, 2), (3,)]
    assert {each.failure.what for each in past} == {"cell"}
    assert made.client.failures.past(made.name) is past
    [died] = [each for each in past if each.failure.ranks == (3,)]
    assert re.fullmatch(r"healed \S+ s later: a new process", died.became)
    assert died.failure.lines == ("last words of 3",)
    [both] = [each.failure for each in past if each.failure.ranks == (1, 2)]
    assert both.lines == (f"last words of {both.writer}",), "of one of them, which is named"
    assert began < died.failure.came_at < time.time()
    [raised] = [each for each in past if not each.failure.record.died]
    assert raised.became.startswith("started again ")
    made.cell("import os\nif rank == 2: os._exit(7)")
    assert [(ranks, count) for ranks, _, _, count in told(made)] == [((2,), 1), ((0,), 1)]
    assert made.client.failures.dismiss(made.name, died.failure.id) == 1
    assert died not in made.client.failures.past(made.name)
    assert made.client.failures.dismiss(made.name, None) == 2
    known = made.client.failures.everything()
    assert [became for mesh, _, became in known if mesh == made.name] == ["", ""]


@pytest.mark.fault
def test_the_death_of_a_rank_that_came_back_by_itself_is_kept(mesh):
    made = mesh(2)
    again = made.procs.spawn("again", Worker, supervise=restart())
    before = again.slice(gpus=1).pid.call_one().get(timeout=WITHIN_S)
    os.kill(before, signal.SIGKILL)
    back = again.slice(gpus=1)
    eventually(lambda: (found := back.pid.call_one()).exception(WITHIN_S) is None and found.get())
    [(ranks, headline, _, count)] = told(made)
    assert (ranks, count) == ((1,), 1)
    assert "killed by signal 9" in headline


def test_a_new_mesh_of_the_same_name_has_nothing_of_the_old_one(mesh):
    old = mesh(2, name="twice")
    old.cell("from monarch_nb import log\nlog(loss=1)\nprint('old')\n1 / 0")
    eventually(lambda: old.client.metrics.curves("twice"))
    eventually(lambda: old.client.tail.last(9, "twice"))
    assert len(told(old)) == 1
    old.procs.stop().get(timeout=WITHIN_S)
    assert len(told(old)) == 1
    new = mesh(2, name="twice")
    assert told(new) == []
    [past] = new.client.failures.past("twice")
    assert (past.failure.ranks, past.became) == ((0, 1), "its mesh was stopped")
    assert dict(new.client.metrics.curves("twice")) == {}
    numbers = [each.number for each in new.client.snapshot().meshes if each.name == "twice"]
    assert new.client.tail.last(9, "twice", number=numbers[-1]) == []
    assert [line.text for line in new.client.tail.last(9, "twice")] == ["old", "old"]
    new.cell("print('new')\nraise KeyError")
    eventually(lambda: new.client.tail.last(9, "twice", number=numbers[-1]))
    lines = new.client.tail.last(9, "twice", number=numbers[-1])
    assert {line.text for line in lines} == {"new"}
    assert [headline for _, headline, _, _ in told(new)] == ["KeyError"]


@pytest.mark.fault
def test_a_crash_tells_its_line(mesh):
    made = mesh(1)
    made.cell("import ctypes\ndef crash():\n    ctypes.string_at(0)\ncrash()")
    [failure] = made.client.failures.of(made.name)
    assert [(frame.filename, frame.lineno) for frame in failure.record.frames][:2] == [
        ("<cell>", 4),
        ("<cell>", 3),
    ]


def test_a_stop_is_no_failure(mesh):
    made = mesh(2)
    failures, name = made.client.failures, made.name
    made.procs.stop().get(timeout=WITHIN_S)
    eventually(lambda: all(each in made.client.proc.dead for each in made.processes))
    assert failures.of(name) == ()


@pytest.mark.fault
def test_a_stopped_rank_blocks_nothing_and_is_asked_once(mesh):
    made = mesh(2, Worker)
    fail(made, "raise KeyError('k')")
    pids = list(made.workers.pid.call().get(WITHIN_S).values())
    stop(pids[0])
    try:
        ports = len(made.client.proc.waiting)
        for _ in range(20):
            made.client.failures.refresh(made.processes)
        eventually(lambda: told(made) == [((1,), "KeyError: 'k'", "workers.do", 1)])
        eventually(lambda: len(made.client.proc.waiting) <= ports + 1)
    finally:
        os.kill(pids[0], signal.SIGCONT)
    eventually(lambda: told(made) == [((0, 1), "KeyError: 'k'", "workers.do", 2)])


def test_many_kinds_are_bounded_and_the_oldest_goes(mesh):
    made = mesh(1)
    code = "\n".join(f"def f{n}(): raise ValueError({n})" for n in range(40))
    made.cell(code)
    for number in range(40):
        made.cell(f"f{number}()")
    found = told(made)
    assert len(found) == 32
    assert found[0][1] == "ValueError: 39"
    assert found[-1][1] == "ValueError: 8"


def test_a_rank_that_says_nonsense_is_not_believed(mesh):
    made = mesh(1)
    failures = made.client.failures
    record = ErrorRecord("E", "x").to_json()
    for error in ({}, {"number": "1"}, {"number": 1, "age_s": 0, "what": 5, "record": record},
                  {"number": 1, "age_s": 0, "what": "w", "tag": 0, "record": 5}):  # fmt: skip
        body = {"pid": 1, "actors": [], "cell": None, "waiting": 0, "errors": [error]}
        with pytest.raises(RemoteProtocolError, match="RankDetails.errors: KeptError"):
            codec.decode(RankDetails, body)
    with pytest.raises(RemoteProtocolError, match="record of an error"):
        failures._take(made.processes[0], [KeptError(1, 0.0, "w", 0, {})])
    assert told(made) == []
