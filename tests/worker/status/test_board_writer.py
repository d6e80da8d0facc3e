"""What a rank writes on the status board."""

import mmap
import time

import hypothesis
import pytest
from hypothesis import strategies as st

from monarch_nb.core.wire import board as boards
from monarch_nb.core.wire.board import SLOT_BYTES, BoardSlot
from monarch_nb.process.process import Proc
from monarch_nb.worker.groups.process_groups import Place, ProcessGroups
from monarch_nb.worker.status import board_writer
from monarch_nb.worker.status.board_writer import BoardWriter


@pytest.fixture
def clock(monkeypatch):
    """Nanoseconds, moved by hand."""
    now = [1000]
    monkeypatch.setattr(board_writer, "monotonic_ns", lambda: now[0])
    yield now
    monkeypatch.undo()


@pytest.fixture
def board(tmp_path):
    """A writer, and what is read of it."""
    path = tmp_path / "board"
    path.write_bytes(bytes(mmap.PAGESIZE - mmap.PAGESIZE % SLOT_BYTES))
    queues: list = []
    writer = BoardWriter([str(path), 0], queues)
    writer.queues = queues

    def read():
        return BoardSlot(path.read_bytes(), 0).read()

    yield writer, read
    writer._slot._buffer.close()


def said(status):
    return status.state_name, status.what


def busy_until(status, now):
    """As whoever shows it computes it."""
    runs = status.state in (boards.BUSY, boards.COLLECTIVE)
    return status.busy_ns + (now - status.since_ns if runs else 0)


def test_a_call_within_a_cell_leaves_the_rank_busy_with_the_cell(board):
    writer, read = board
    writer.turn("cell")
    began = read()
    writer.busy("step")
    assert said(read()) == ("busy", "step")
    writer.idle()
    assert said(read()) == said(began) == ("busy", "cell")
    assert read().since_ns == began.since_ns
    writer.turned(False)
    assert said(read()) == ("idle", "")


def test_busy_time_is_exact_at_every_moment(board, clock):
    writer, read = board
    deeds = [
        (10, writer.ready, 0),
        (5, lambda: writer.busy("a"), 0),
        (100, writer.idle, 100),
        (50, lambda: writer.turn("cell"), 100),
        (20, lambda: writer.busy("within"), 120),
        (7, writer.idle, 127),
        (3, lambda: writer.turned(True), 130),
        (1000, lambda: writer.busy("b"), 130),
        (4, lambda: writer.collective("all_reduce"), 134),
    ]
    for passed, deed, busy in deeds:
        clock[0] += passed
        deed()
        assert busy_until(read(), clock[0]) == busy
    assert busy_until(read(), clock[0] + 40) == 174
    assert said(read()) == ("collective", "all_reduce")


deeds_of_a_rank = st.sampled_from(["busy", "idle", "turn", "turned", "wait", "resume"])


@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(st.lists(st.tuples(deeds_of_a_rank, st.integers(0, 10**9))))
def test_busy_time_never_runs_faster_than_the_clock_nor_backwards(board, clock, deeds):
    writer, read = board
    writer.turned(False)
    waits = []
    does = {
        "busy": lambda: writer.busy("f"),
        "idle": writer.idle,
        "turn": lambda: writer.turn("cell"),
        "turned": lambda: writer.turned(False),
        "wait": lambda: waits.append(writer.collective("barrier")),
        "resume": lambda: writer.resume(waits.pop() if waits else None),
    }
    before = busy_until(read(), clock[0])
    started = clock[0]
    first = before
    for deed, passed in deeds:
        runs = writer.since_ns > 0
        clock[0] += passed
        does[deed]()
        now = busy_until(read(), clock[0])
        assert now - before == (passed if runs else 0) or waits or deed == "resume"
        before = now
    writer.turned(False)
    assert 0 <= busy_until(read(), clock[0]) - first <= clock[0] - started


def test_calls_and_failures_are_counted_when_they_end(board):
    writer, read = board
    writer.busy("f")
    assert (read().calls, read().failed) == (0, 0)
    writer.idle()
    writer.busy("f")
    writer.idle(failed=True)
    writer.turn("cell")
    writer.turned(failed=True)
    assert (read().calls, read().failed) == (3, 2)


def test_what_waits_is_told_while_something_runs_and_costs_nothing_else(board):
    writer, read = board
    first, second = [0], [0]
    writer.queues += [lambda: first[0], lambda: second[0]]
    writer.ready()
    beat = read().beat
    assert writer.since_ns == 0  # what comes now is taken at once: nobody is asked to write
    writer.busy("f")
    assert writer.since_ns > 0
    first[0], second[0] = 2, 3
    writer.arrived(3)
    assert (read().queue, read().beat) == (5, beat + 1)
    first[0] = second[0] = 0
    writer.idle()
    assert read().queue == 0
    first[0] = 4
    writer.busy("f")
    assert read().queue == 4


def test_a_long_queue_is_told_in_steps(board):
    writer, read = board
    waiting = [0]
    writer.queues.append(lambda: waiting[0])
    writer.busy("f")
    told = []
    for waiting[0] in range(1, 101):
        writer.arrived(waiting[0])
        told.append(read().queue)
    assert told == [*range(1, 33), *[32] * 31, *[64] * 32, *[96] * 5]
    writer.idle()
    assert read().queue == 100


def test_a_wait_for_others_hides_what_runs_until_it_ends(board):
    writer, read = board
    writer.busy("train")
    began = read()
    outer = writer.collective("all_gather_object")
    assert writer.collective("all_gather") is None
    assert said(read()) == ("collective", "all_gather_object")
    writer.resume(None)
    assert said(read()) == ("collective", "all_gather_object")
    writer.resume(outer)
    assert read()._replace(beat=0) == began._replace(beat=0)


def test_news_that_came_during_a_wait_stays(board):
    writer, read = board
    writer.busy("train")
    waited = writer.collective("barrier")
    writer.idle()
    writer.resume(waited)
    assert said(read()) == ("idle", "")


def test_a_rank_that_was_starting_is_so_again(board, monkeypatch):
    writer, read = board
    groups = ProcessGroups(Place("", 0, 1), writer, Proc.__new__(Proc), owner=0)
    with groups.waiting("init_process_group"):
        assert said(read()) == ("collective", "init_process_group")
    assert said(read()) == ("starting", "")


@pytest.mark.alone
def test_writing_takes_about_a_microsecond(board, record_property):
    writer, _ = board
    times = []
    for _ in range(50):
        start = time.perf_counter()
        for _ in range(200):
            writer.busy("step")
            writer.idle()
        times.append((time.perf_counter() - start) / 400)
    record_property("write_s", min(times))
    assert min(times) < 10e-6  # ten times what it takes on an idle machine


def test_a_paused_rank_says_so_whatever_its_other_threads_do(board, clock):
    writer, read = board
    writer.busy("step")
    clock[0] = 3000
    writer.pause("main", "train.py:41 step()")
    assert said(read()) == ("paused", "train.py:41 step()")
    assert busy_until(read(), 9000) == 2000  # it does not work meanwhile
    writer.busy("an async actor's call")
    assert said(read()) == ("paused", "train.py:41 step()")
    writer.unpause("main")
    assert said(read()) == ("busy", "an async actor's call")


def test_a_pause_ends_with_what_was_there(board, clock):
    writer, read = board
    writer.turn("cell")
    began = read()
    clock[0] = 3000
    writer.pause(1, "a.py:1 f()")
    writer.pause(2, "b.py:2 g()")
    assert said(read()) == ("paused", "b.py:2 g()")
    writer.unpause(2)
    assert said(read()) == ("paused", "a.py:1 f()")
    assert read().since_ns == 3000
    writer.unpause(1)
    writer.unpause(1)
    assert read() == began._replace(beat=read().beat)


def test_a_collective_around_a_pause_ends(board):
    writer, read = board
    writer.busy("step")
    waited = writer.collective("all_reduce")
    writer.pause("another thread", "a.py:1 f()")
    writer.unpause("another thread")
    assert said(read()) == ("collective", "all_reduce")
    writer.resume(waited)
    assert said(read()) == ("busy", "step")


def test_a_collective_within_a_pause_ends(board):
    writer, read = board
    writer.busy("step")
    writer.pause("another thread", "a.py:1 f()")
    waited = writer.collective("all_reduce")
    writer.unpause("another thread")
    assert said(read()) == ("collective", "all_reduce")
    writer.resume(waited)
    assert said(read()) == ("busy", "step")
