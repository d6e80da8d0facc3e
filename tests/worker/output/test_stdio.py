"""The streams of a rank: in order, by tag, soon, bounded, and never in the writer's way."""

import gc
import io
import logging
import os
import re
import subprocess
import sys
import threading
import time
import types

import pytest

from monarch_nb.net.threads import helper_thread
from monarch_nb.worker.output import stdio, window
from monarch_nb.worker.output.stdio import OutputPump, RankStream, install
from monarch_nb.worker.output.window import WINDOW_CHARS, Window
from tests.source import ROOT
from tests.support import eventually


class World:
    """A pump with its streams, and what it has sent."""

    def __init__(self):
        self.tag = threading.local()
        self.sent = []
        self.blocks = []
        self.before_send = lambda: None
        self.is_taken = True  # by the controller
        self.window = Window()
        self.pump = OutputPump(lambda: getattr(self.tag, "value", 0), self.send, self.window)
        self.out, self.err = RankStream(self.pump, "stdout"), RankStream(self.pump, "stderr")

    def send(self, tag, stream, text, *, blocks):
        self.before_send()
        self.sent.append((tag, stream, text))
        if self.is_taken:
            self.window.take(len(text))
        self.blocks += [text[start:end] for start, end in blocks or ()]

    def text(self, stream="stdout"):
        return "".join(text for _, one, text in self.sent if one == stream)


@pytest.fixture
def world():
    world = World()
    yield world
    world.pump.close()


@pytest.fixture
def held(world):
    """The flusher is in the middle of a send that does not end before `held.set()`."""
    release, entered = threading.Event(), threading.Event()

    def hold():
        entered.set()
        release.wait()

    world.before_send = hold
    print("first", file=world.out)
    assert entered.wait(5)
    yield release
    release.set()


def test_text_is_sent_without_a_flush_and_soon(world):
    started = time.monotonic()
    print("hello", 1, file=world.out)
    eventually(lambda: world.sent, 5)
    assert time.monotonic() - started < 10 * stdio.TICK_S
    assert world.sent == [(0, "stdout", "hello 1\n")]


def test_what_is_written_at_once_is_told(world):
    print("before", file=world.out)
    print("a b\n1 2\n3 4", file=world.out)
    print("after", "é", file=world.out)
    world.pump.drain()
    assert world.blocks == ["a b\n1 2\n3 4"]
    print("\ud800 two\nlines", file=world.out)  # its place is not known once it is encoded
    world.pump.drain()
    assert len(world.blocks) == 1


def test_text_without_a_pause_leaves_in_one_message(world):
    until = time.monotonic() + stdio.TICK_S / 2
    while time.monotonic() < until:
        print("x", file=world.out)
    eventually(lambda: world.sent, 5)
    assert len(world.sent) <= 2


def test_drain_sends_all_at_once_in_order_and_by_tag(world):
    for tag in (1, 2):
        world.tag.value = tag
        print("a", tag, file=world.out)
        print("b", tag, file=world.err)
        print("c", tag, file=world.err)
    world.pump.drain()
    assert "".join(f"{tag}{stream[3]}:{text}" for tag, stream, text in world.sent) == (
        "1o:a 1\n1e:b 1\nc 1\n2o:a 2\n2e:b 2\nc 2\n"
    )


def test_drain_waits_for_what_the_flusher_is_sending(world, held):
    print("second", file=world.out)
    thread = threading.Thread(target=world.pump.drain)
    thread.start()
    held.set()
    thread.join(5)
    assert world.text() == "first\nsecond\n"


def test_a_drain_that_finds_nothing_leaves_the_flusher_ready_to_be_woken(world):
    """Its token may have been used up by a drain that took the text of a write before it."""
    world.pump._limit = stdio.MANY
    world.pump.drain()
    print("x", file=world.out)
    eventually(lambda: world.sent, 5)


def test_the_tag_is_that_of_the_thread_that_writes(world):
    def say(tag):
        world.tag.value = tag
        for _ in range(500):
            print(f"from {tag}", file=world.out)

    threads = [threading.Thread(target=say, args=(tag,)) for tag in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    world.pump.drain()
    for tag in range(1, 5):
        text = "".join(text for one, _, text in world.sent if one == tag)
        assert text == f"from {tag}\n" * 500


def test_many_lines_travel_in_few_messages(world):
    for i in range(20_000):
        print("line", i, file=world.out)
    world.pump.drain()
    assert world.text() == "".join(f"line {i}\n" for i in range(20_000))
    assert len(world.sent) < 1000


def test_a_writer_never_waits_for_a_send_and_the_rest_is_counted(world, held):
    world.tag.value = 7
    lines = stdio.MAX_PIECES  # a line has two pieces
    started = time.monotonic()
    for i in range(lines):
        print(f"line {i}", file=world.out)
    assert time.monotonic() - started < 20
    held.set()
    world.pump.drain()
    print("after", file=world.out)
    world.pump.drain()
    text = "".join(text for tag, _, text in world.sent if tag == 7)
    shown = re.findall(r"^line \d+$", text, re.MULTILINE)
    (dropped,) = re.findall(
        r"^\.\.\. (\d+) lines \(\d+ characters\) dropped \.\.\.$", text, re.MULTILINE
    )
    assert abs(len(shown) + int(dropped) - lines) <= 1, "one may have been cut in two"
    assert len(shown) < lines
    assert text.endswith("dropped ...\nafter\n")
    assert len(shown) + 2 == text.count("\n"), "no piece of a line is left over"


def test_a_fast_writer_lends_the_flusher_a_few_turns(world, held, monkeypatch):
    pauses = []
    clock = types.SimpleNamespace(sleep=pauses.append, monotonic=time.monotonic)
    monkeypatch.setattr(stdio, "time", clock)
    for _ in range(stdio.STEP // 2):
        world.out.write("x")
    assert pauses == []
    for _ in range(2 * stdio.MAX_PIECES):
        world.out.write("x")
    assert 1 < len(pauses) <= stdio.MAX_PIECES // stdio.STEP + 1
    assert sum(pauses) < 0.05


def flood(world, start=threading.Thread):
    """Begin to print 100 000 lines in a thread; those that it has printed."""
    printed = []

    def work():
        for i in range(100_000):
            print("line", i, file=world.out)
            printed.append(i)

    made = start(target=work, name="flood")
    made.start()
    return made, printed


def test_a_flood_waits_until_the_controller_has_taken_it(world):
    world.is_taken = False
    writer, printed = flood(world)
    eventually(lambda: world.window.is_full and world.pump._limit > stdio.MANY, 10)
    counts = [0]
    eventually(lambda: counts.append(len(printed)) or counts[-1] == counts[-2] > 0, 10)
    assert len(printed) < 100_000
    assert len(world.text()) < WINDOW_CHARS + 2_000_000
    world.is_taken = True
    world.window.begin_anew()
    writer.join(20)
    world.pump.drain()
    assert world.text() == "".join(f"line {i}\n" for i in range(100_000)), "nothing is lost"


@pytest.mark.parametrize("start", [threading.Thread, helper_thread])
def test_nobody_waits_for_a_controller_that_takes_nothing(world, monkeypatch, start):
    """Nor does a thread of ours for one that takes nothing yet."""
    if start is threading.Thread:
        monkeypatch.setattr(window, "STUCK_S", 0.2)
    world.is_taken = False
    writer, _ = flood(world, start)
    writer.join(4)
    assert not writer.is_alive()
    world.pump.drain()
    assert re.search(
        r"^\.\.\. \d+ lines \(\d+ characters\) dropped \.\.\.$", world.text(), re.MULTILINE
    )


def test_without_a_controller_everything_goes(world):
    """Into the log of a kept mesh."""
    world.is_taken = False
    world.window.leave()
    writer, printed = flood(world)
    writer.join(20)
    eventually(lambda: len(world.text()) == sum(len(f"line {i}\n") for i in printed), 10)


@pytest.fixture
def still(world):
    """A world without a flusher: only `drain` sends."""
    world.pump.close()
    return world


def test_one_endless_line_is_cut(still):
    print("x" * 10**7, file=still.out)
    print("after", file=still.out)
    still.pump.drain()
    head, note, after, end = still.text().split("\n")
    assert head == "x" * stdio.MAX_TORN
    assert note == f"... 1 line ({10**7 - len(head) + 1} characters) dropped ..."
    assert (after, end) == ("after", "")


def test_the_end_of_a_line_that_was_cut_needs_no_note_of_its_own(still):
    still.out.write("x" * 10**7)
    still.pump.drain()
    still.out.write("\n")
    still.out.write("after\n")
    still.pump.drain()
    lines = still.text().splitlines()
    assert lines[1:] == [f"... {10**7 - stdio.MAX_TORN} characters dropped ...", "after"]


def test_each_gap_is_told_where_it_is(still):
    for letter in "xy":
        print(letter * 10**7, file=still.out)
        print("after", letter, file=still.out)
    still.pump.drain()
    lines = [line[:8] for line in still.text().splitlines()]
    assert lines == ["x" * 8, "... 1 li", "after x", "y" * 8, "... 1 li", "after y"]


def test_a_cell_that_ended_in_the_middle_of_a_line_does_not_slow_others(world):
    world.out.write("x" * 10**7)
    world.tag.value = 2
    for _ in range(3):
        world.pump.drain()
        print("x", file=world.out)
    assert not world.pump._is_slow


def test_bytes_are_utf8_in_any_pieces(world):
    for byte in "é€\n".encode():
        assert world.out.buffer.write(bytes([byte])) == 1
    world.out.buffer.write(memoryview(b"\xff\n"))
    world.out.buffer.flush()
    world.pump.drain()
    assert world.text() == "é€\n\ufffd\n"


def test_surrogates_become_readable(world):
    print("\ud800", file=world.out)
    world.pump.drain()
    assert world.text() == "\\ud800\n"


def test_it_looks_like_a_text_file(world):
    out = world.out
    assert isinstance(out, io.TextIOBase)
    assert (out.encoding, out.isatty(), out.writable(), out.readable()) == (
        "utf-8",
        False,
        True,
        False,
    )
    assert (out.fileno(), world.err.fileno(), out.name) == (1, 2, "<stdout>")
    out.reconfigure(line_buffering=True)
    out.close()
    out.flush()
    assert not out.closed
    out.writelines(["a", "b"])
    with pytest.raises(TypeError, match="must be str, not int"):
        out.write(3)
    world.pump.drain()
    assert world.text() == "ab"


def test_writes_nest(world):
    """A `__del__` that prints may run in the middle of any write."""

    class Loud:
        def __del__(self):
            print("gone", file=world.out)

    for _ in range(100):
        loop = [Loud()]
        loop.append(loop)
        del loop
        print("x", file=world.out)
    gc.collect()
    world.pump.drain()
    assert sorted(world.text().split()) == ["gone"] * 100 + ["x"] * 100


def test_the_flusher_sleeps_while_nothing_waits(world):
    print("x", file=world.out)
    eventually(lambda: world.sent, 5)
    [flusher] = [each for each in threading.enumerate() if each.name == "monarch-stdio"]
    clock = time.pthread_getcpuclockid(flusher.ident)
    cpu = time.clock_gettime(clock)
    threading.Event().wait(0.3)
    later = time.clock_gettime(clock)
    assert later - cpu < 0.005


def test_loggers_made_before_write_to_the_cell_too():
    logger = logging.getLogger("early")
    logger.propagate = False
    old = sys.stdout, sys.stderr
    handler = logging.StreamHandler(sys.stderr)
    logger.addHandler(handler)
    sent = []
    try:
        pump = install(lambda: 3, lambda *what, blocks: sent.append(what), Window())
        logger.warning("careful")
        print("said")
        pump.close()
    finally:
        sys.stdout, sys.stderr = old
        logger.removeHandler(handler)
    assert sent == [(3, "stderr", "careful\n"), (3, "stdout", "said\n")]


def run_rank(program):
    """Run `program` in a process whose streams are a pump's; its real stdout is returned."""
    start = "import os, sys\nfrom monarch_nb.worker.output.stdio import install\n"
    start += "from monarch_nb.worker.output.window import Window\n"
    done = subprocess.run(
        [sys.executable, "-c", start + program],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_forked_child_writes_to_the_descriptors():
    said = run_rank("""
import warnings; warnings.simplefilter("ignore")  # of forks beside threads, from Python 3.12 on
sent = []
pump = install(lambda: 1, lambda *what, blocks: sent.append(what), Window())
print("parent's")
if os.fork() == 0:
    print("child's", "é"); sys.stderr.write("x"); sys.stdout.buffer.write(b"bytes\\n")
    pump.drain()
    os._exit(0 if not sent else 1)
_, status = os.wait()
pump.close()
assert sent == [(1, "stdout", "parent's\\n")], sent
sys.exit(status)
""")
    assert said == "child's é\nbytes\n"


def test_text_that_cannot_be_sent_goes_to_the_descriptors():
    assert (
        run_rank("""
def send(*_, **options): raise OSError("link is down")
pump = install(lambda: 1, send, Window())
print("do not lose me")
pump.close()
""")
        == "do not lose me\n"
    )


def test_printing_costs_little_more_than_into_a_file(world):
    """Row 19 asks for twice the time of a pipe; the assertion leaves room for a busy machine."""

    def measure(file):
        started = time.thread_time()
        for _ in range(50_000):
            print("a line of some text", file=file)
        return time.thread_time() - started

    with open(os.devnull, "w") as null:
        ratios = [measure(world.out) / measure(null) for _ in range(5)]
    assert min(ratios) < 8, ratios


def test_a_flush_sees_to_it_that_the_text_has_left(world):
    """Code may follow that never returns, or ends the process."""
    print("about to go", file=world.out, flush=True)
    assert world.sent == [(0, "stdout", "about to go\n")]


def test_a_flush_waits_for_no_sender_that_hangs_and_not_with_every_line(world, held):
    begun = time.monotonic()
    for number in range(100):
        print(number, file=world.out, flush=True)
    assert time.monotonic() - begun < 5 * stdio.FLUSH_S
    held.set()
    eventually(lambda: world.text().endswith("\n99\n"), 5)
