"""The small parts of the host, each alone."""

import mmap
import os
import socket
import subprocess
import sys

import hypothesis
import pytest
from hypothesis import strategies as st

from monarch_nb.core.wire import board as boards
from monarch_nb.core.wire.messages.agents import Spawn
from monarch_nb.host import guard
from monarch_nb.host.agent import requests
from monarch_nb.host.launch import AgentBoot
from monarch_nb.host.local import LocalLauncher
from monarch_nb.host.output import Output
from monarch_nb.host.status.board import SLOTS, Board, Sampler, Viewers
from monarch_nb.host.status.gpus import Gpus
from monarch_nb.host.status.memory import KillCounter, MemoryGroup
from monarch_nb.host.zygote import threads
from monarch_nb.host.zygote.channel import Channel, _pack
from tests.support import eventually

# ---------------------------------------------------------------------------------------- channel


@pytest.fixture
def ends():
    pair = socket.socketpair()
    channels = [Channel(end) for end in pair]
    yield channels
    for channel in channels:
        channel.close()


def test_messages_and_their_files_stay_together(ends):
    near, far = ends
    for number in range(20):
        reader, writer = os.pipe()
        os.write(writer, str(number).encode())
        near.send({"number": number}, (reader, writer) if number % 3 == 0 else ())
        os.close(reader)
        os.close(writer)
    received = far.receive()
    assert [record["number"] for record, _ in received] == list(range(20))
    for record, fds in received:
        assert len(fds) == (2 if record["number"] % 3 == 0 else 0)
        if fds:
            assert os.read(fds[0], 10) == str(record["number"]).encode()
            assert not os.get_inheritable(fds[0])
        for fd in fds:
            os.close(fd)


@hypothesis.given(st.lists(st.dictionaries(st.text(), st.text()), min_size=1), st.integers(1, 40))
def test_messages_survive_any_cutting(records, size):
    near, far = socket.socketpair()
    channel = Channel(far)
    data = b"".join(map(_pack, records))
    received = []
    for start in range(0, len(data), size):
        near.sendall(data[start : start + size])
        received += [record for record, _ in channel.receive()]
    near.close()
    channel.close()
    assert received == records


def test_a_post_that_does_not_fit_is_flushed_later(ends):
    near, far = ends
    text = "x" * (8 << 20)
    assert near.post({"text": text})
    received = []
    while near.flush() or not received:
        received += far.receive()
    assert received == [({"text": text}, [])]


def test_the_end_of_the_other_side(ends):
    near, far = ends
    near.send({"last": "word"})
    near.close()
    assert far.receive() == [({"last": "word"}, [])]
    assert far.closed
    assert not far.post({"to": "nobody"})
    with pytest.raises(OSError):
        far.send({"to": "nobody"})


# ---------------------------------------------------------------------------------------- streams


@pytest.fixture
def streams():
    pipes = [os.pipe(), os.pipe()]
    yield Output(7, (pipes[0][0], pipes[1][0])), [writer for _, writer in pipes]
    for fd in [fd for pair in pipes for fd in pair]:
        os.close(fd)


def test_text_is_whole_even_if_bytes_are_cut(streams):
    output, (out, err) = streams
    os.write(out, "grü".encode()[:-1])
    output.read(output.pipes[0])
    os.write(out, "grü".encode()[-1:])
    os.write(err, b"\xff!")
    first = [output.pipes[0].take()]
    output.finish()
    assert [tuple(piece) for piece in [*first, *output.rest()]] == [
        (7, "stdout", "gr", 3), (7, "stdout", "ü", 1), (7, "stderr", "\ufffd!", 2),
    ]  # fmt: skip


def test_what_is_dropped_is_counted_where_it_is_missing_and_the_end_is_kept(streams):
    output, (out, _) = streams
    [pipe, _] = output.pipes
    for _ in range(4):
        os.write(out, b"x" * (1 << 15))
        output.read(pipe, drops=True)
    first = pipe.take(100)
    os.write(out, b"the end")
    output.finish()
    text = "".join(piece.text for piece in [first, *output.rest()])
    kept, note, end = text.partition(f"\n[monarch_nb: {1 << 16} bytes skipped")
    assert kept == "x" * (1 << 16)
    assert note
    assert end.endswith("]\nthe end")
    assert output.tail().endswith("xxthe end")
    assert len(output.tail()) <= 1 << 13


def test_a_flood_is_cut_between_lines(streams):
    output, (out, _) = streams
    [pipe, _] = output.pipes
    os.write(out, b"12345\n" * 3 + b"1")
    output.read(pipe)
    assert [pipe.take(8).text, pipe.take(8).text, pipe.take(8).text] == [
        "12345\n",
        "12345\n",
        "12345\n1",
    ]
    os.write(out, b"x" * 20)
    output.read(pipe)
    assert pipe.take(8).text == "x" * 8


# -------------------------------------------------------------------------------------------- oom


def test_each_kill_of_the_kernels_is_credited_once():
    ledger = KillCounter(5)
    assert not ledger.claim(5, 0)
    assert [ledger.claim(7, 1) for _ in range(3)] == [True, True, False]


def test_a_kill_that_hit_somebody_else_is_forgotten():
    ledger = KillCounter(0)
    assert ledger.claim(2, 0)
    assert not ledger.claim(2, 10)


def test_this_machine_has_a_counter_or_none():
    group = MemoryGroup()
    assert group.kills() >= 0
    assert group.reason().startswith("out of memory (limit ")


def test_more_ranks_than_there_is_memory_for_are_refused():
    group = MemoryGroup()
    group.check_room(1, 1)
    with pytest.raises(ValueError, match=r"1000000 ranks need about 15625.0 GiB of memory"):
        group.check_room(1_000_000, 0)
    with pytest.raises(ValueError, match=r"4096 ranks need about 800.0 GiB .* GiB are free"):
        group.check_room(0, 4_096)


def test_what_a_group_may_still_take_is_its_limit_less_what_it_cannot_give_back(
    tmp_path, monkeypatch
):
    for name, text in {
        "memory.events": "oom_kill 0\n",
        "memory.max": f"{1 << 30}\n",
        "memory.current": f"{900 << 20}\n",
        "memory.stat": f"anon 1\ninactive_file {100 << 20}\n",
    }.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("monarch_nb.host.status.memory._ROOTS", ((tmp_path, ""),))
    assert MemoryGroup().free() == 224 << 20


# ------------------------------------------------------------------------------------------ board


@pytest.fixture
def watched():
    """A board, what samples it, and the rank's hand on slot 7's record."""
    board = Board()
    index = board.take()
    with open(board.path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    yield board.slot(index), boards.BoardSlot(memory, index)
    memory.close()
    board.give_back(index)
    assert board.room == SLOTS
    board.close()


def test_the_sampler_says_what_changed_and_no_more(watched):
    slot, rank = watched
    sampler = Sampler()
    sampler.add(7, os.getpid(), slot)
    ranks, usage = sampler.changes(100.0)
    assert ranks == [[7, "starting", 0, "", 0, 0, 0, 0, 0]]
    assert usage[0][0] == 7
    assert usage[0][2] > 1 << 20
    assert usage[0][3:] == [None, None]
    assert sampler.changes(100.1) == ([], [])
    rank.write(boards.BUSY, 99_000_000_000, "f()", 3, calls=4, failed=2, queue=6)
    busy = [7, "busy", 99_000_000_000, "f()", 3, 6, 4, 2, 1]
    assert sampler.changes(100.2) == ([busy], [])
    assert sampler.changes(100.3) == ([], [])
    rank.write_queue(9)
    busy[5] = 9
    assert sampler.changes(100.4) == ([busy], [])
    assert sampler.all().ranks == [busy]
    sampler.remove(7)
    assert sampler.changes(102) == sampler.all() == ([], [])


def test_who_has_just_come_is_measured_at_the_next_look(watched):
    sampler = Sampler()
    sampler.changes(100.0)
    sampler.add(7, os.getpid(), watched[0])
    [(proc, cpu_percent, rss_bytes, *_)] = sampler.changes(100.1).usage
    assert (proc, cpu_percent) == (7, 0)
    assert rss_bytes > 1 << 20
    assert sampler.changes(100.2).usage == []


def test_usage_is_read_once_a_second_however_often_the_board_is(watched):
    asked = []
    sampler = Sampler(lambda pid: (asked.append(pid), (50 + len(asked), 1 << 30))[1])
    sampler.add(7, os.getpid(), watched[0])
    told = [sampler.changes(100 + tenth / 10).usage for tenth in range(25)]
    assert asked == [os.getpid()] * 3
    assert [usage[0][3:] for usage in told if usage] == [
        [51, 1 << 30],
        [52, 1 << 30],
        [53, 1 << 30],
    ]


@pytest.fixture
def viewed():
    """Viewers, and the slot of a rank that is process 7."""
    viewers, board = Viewers(Gpus(lambda: None)), Board()
    rank = board.slot(board.take())
    viewers.sampler.add(7, os.getpid(), rank)
    yield viewers, rank
    board.close()


def test_viewers_are_told_at_the_pace_of_the_fastest(viewed):
    viewers, rank = viewed
    assert viewers.due() is None
    assert viewers.begin(1, 1.0, 100.0).ranks[0][:2] == [7, "starting"]
    viewers.begin(2, 0.001, 100.0)
    found = []
    for tenth in range(1, 25):
        rank.write(boards.BUSY, tenth, "f()")
        now = 100.0 + tenth / 10 + 0.01
        found.append(viewers.news(now))
        if tenth == 10:
            viewers.end(2)
    assert [sorted(each[0]) for each in found[:10]] == [[1, 2]] * 10
    later = [each for each in found[10:] if each]
    assert [each[0] for each in later] == [[1], [1]]
    assert later[-1][1].now_ns / 1e9 - later[0][1].now_ns / 1e9 == pytest.approx(1.0)
    viewers.end(1)
    assert viewers.due() is None
    assert viewers.news(200.0) is None


def test_who_asks_is_told_what_is_now_and_others_hear_of_it_too(viewed):
    viewers, rank = viewed
    viewers.begin(1, 0.1, 100.0)
    rank.write(boards.BUSY, 1, "f()")
    assert viewers.begin(2, 0.1, 100.05).ranks[0][:2] == [7, "busy"]
    whom, told = viewers.news(100.11)
    assert (whom, told.ranks[0][:2]) == ([1, 2], [7, "busy"])


def test_what_a_rank_wrote_while_others_were_read_is_not_in_the_future(viewed):
    viewers, rank = viewed
    viewers.begin(1, 0.1, 100.0)
    rank.write(boards.BUSY, 101_000_000_500, "f()")
    assert viewers.news(101.0)[1].now_ns == 101_000_000_500


# ------------------------------------------------------------------------------------------ guard


def child(code, **options):
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, **options)


def test_a_tag_survives_exec_and_an_empty_environment():
    code = """
import subprocess
from monarch_nb.host import guard
guard.tag((3 << 48) + 77)
done = subprocess.Popen(["sleep", "100"], env={}, start_new_session=True)
print(guard.tag_of(done.pid))
done.kill()
"""
    with child(code) as process:
        assert int(process.stdout.read()) == (3 << 48) + 77


def test_a_process_without_a_mark_has_no_tag():
    assert guard.tag_of(1) is None
    assert guard.tag_of(2**22 + 1) is None


def test_the_variable_tells_where_there_is_no_tag():
    with child("input()", env={guard.PROC_VARIABLE: "12"}, stdin=subprocess.PIPE) as process:
        eventually(lambda: guard.tag_of(process.pid) == 12)
        process.communicate(b"\n")


def test_the_rope_alone_ends_a_process():
    code = """
import sys, threading
from monarch_nb.host import guard
lifeline = guard.die_with_pipe(int(sys.argv[1]))
print("tied", flush=True)
threading.Event().wait()
"""
    reader, writer = os.pipe()
    command = [sys.executable, "-c", code, str(reader)]
    with subprocess.Popen(command, pass_fds=[reader], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"tied\n"
            os.close(reader)
            assert process.poll() is None
            os.close(writer)
            assert process.wait(10) == -9
        finally:
            process.kill()


def test_both_ways_of_finding_children_agree():
    with child("input()", stdin=subprocess.PIPE) as process:
        assert process.pid in guard.children()
        assert guard.children() == guard._children_by_search()
        process.communicate(b"\n")


# ------------------------------------------------------------------------------- threads, orders


def test_libraries_load_with_one_thread_and_the_variable_is_put_back(monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "5")
    with threads.single():
        assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
    assert os.environ["OPENBLAS_NUM_THREADS"] == "5"
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    with threads.single():
        pass
    assert "OPENBLAS_NUM_THREADS" not in os.environ


@pytest.mark.parametrize("given, host_size, expected", [(None, 10_000, 1), ("3,2", 1, 3)])
def test_the_share_of_a_rank(monkeypatch, given, host_size, expected):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    if given is None:
        monkeypatch.setenv("OMP_NUM_THREADS", "")  # so that it is put back
        monkeypatch.delenv("OMP_NUM_THREADS")
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    told = []
    threads.share(host_size, [told.append])
    assert os.environ["OMP_NUM_THREADS"].startswith(str(expected))
    assert told == ([expected] if expected > 1 else [])


def test_ranks_of_a_later_host_keep_their_rank_in_the_mesh():
    boot = AgentBoot(run_dir="/run", agent=1, controller=2, config={"detect_s": 1})
    spawn = Spawn([10, 11], owner=2, ranks=[4, 5], sizes=[3, 2])
    request = requests.fork_request(spawn, [], boot, [("board", 0), ("board", 1)])
    assert request["common"]["world_size"] == 6
    assert request["common"]["config"] == {"detect_s": 1}
    assert [(rank["rank"], rank["local_rank"]) for rank in request["ranks"]] == [(4, 0), (5, 1)]


def test_a_boot_record_travels_as_a_line():
    boot = AgentBoot(run_dir="/run", agent=1, controller=2, owner_pid=3, preload=("numpy",))
    assert AgentBoot.from_line(boot.to_line()) == boot


def test_an_agent_that_cannot_start_leaves_its_last_words(tmp_path):
    tmp_path.chmod(0o755)  # sockets in a dir that others can enter
    launcher = LocalLauncher()
    launcher.launch(AgentBoot(str(tmp_path), 1, 2, os.getpid()))
    assert eventually(launcher.poll) == 1
    assert "must be a directory of mode 0700" in launcher.last_words()
    launcher.close()
