"""Messages cut from a stream: any split of the bytes gives the same messages, junk only a protocol
error."""

import os
import select
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_nb.core.wire import frames
from monarch_nb.errors import ProtocolError
from monarch_nb.host.rundir import new_run_dir
from monarch_nb.net import wire
from monarch_nb.net.links import Links
from monarch_nb.net.outbox import open_queue
from monarch_nb.net.streams import MAX_FRAME_BYTES, StreamReader, split
from tests.source import ROOT
from tests.support import eventually

settings.register_profile("net", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("net")


def header(buffers: int = 0, port: int = 7, kind: int = frames.CALL) -> bytes:
    return frames.HEADER.pack(kind, 0, buffers, 1, 2, port, 3, 4)


def on_the_wire(payload: bytes, buffers: list[bytes]) -> bytes:
    return b"".join(bytes(each) for each in split([header(len(buffers)) + payload, *buffers]))


def contents(messages: list[frames.Message]) -> list[tuple[bytes, list[bytes]]]:
    return [(bytes(m.payload), [bytes(b) for b in m.buffers]) for m in messages]


messages = st.lists(
    st.tuples(st.binary(max_size=40), st.lists(st.binary(max_size=40), max_size=3)), max_size=5
)


@given(messages, st.data())
def test_any_split_of_the_bytes_gives_the_same_messages(sent, data):
    whole = b"".join(on_the_wire(payload, buffers) for payload, buffers in sent)
    reader, found, at = StreamReader(), [], 0
    while at < len(whole):
        step = data.draw(st.integers(1, len(whole) - at))
        found += reader.feed(whole[at : at + step])
        at += step
    assert contents(found) == sent


@given(messages)
def test_a_byte_at_a_time(sent):
    whole = b"".join(on_the_wire(payload, buffers) for payload, buffers in sent)
    reader, found = StreamReader(), []
    for value in whole:
        found += reader.feed(bytes([value]))
    assert contents(found) == sent


@given(st.binary(max_size=200))
def test_noise_is_a_protocol_error_or_waits_for_more(noise):
    try:
        StreamReader().feed(noise)
    except ProtocolError:
        return


@pytest.mark.parametrize("size", [0, frames.HEADER.size - 1, MAX_FRAME_BYTES + 1, (1 << 32) - 1])
def test_a_frame_of_a_size_that_none_has_is_not_waited_for(size):
    with pytest.raises(ProtocolError):
        StreamReader().feed(size.to_bytes(4, "little") + b"x")


def test_a_large_buffer_is_received_in_its_place():
    reader = StreamReader()
    payload, large = b"head", bytes(range(256)) * 4000
    wire = on_the_wire(payload, [large])
    assert reader.feed(wire[:100]) == []
    rest = memoryview(wire)[100:]
    found = []
    while rest:
        target = reader.target
        assert target is not None
        step = min(len(target), len(rest), 9000)
        target[:step] = rest[:step]
        rest = rest[step:]
        found += reader.fill(step)
    assert contents(found) == [(payload, [large])]


def test_a_batch_is_many_messages():
    inner = [header(port=port) + bytes([port]) for port in range(5)]
    batch = frames.pack_batch(inner)
    found = StreamReader().feed(len(batch).to_bytes(4, "little") + batch)
    expected = [(port, bytes([port])) for port in range(5)]
    assert [(m.port, bytes(m.payload)) for m in found] == expected


@pytest.mark.parametrize("lengths", [b"\xff" * 20, b"\x00" * 20])
def test_a_batch_that_is_not_whole_is_refused(lengths):
    batch = frames.HEADER.pack(frames.BATCH, 0, 0, 5, 0, 0, 0, 0) + lengths
    with pytest.raises(ProtocolError):
        frames.unpack_batch(frames.HEADER.unpack_from(batch), batch)


class Pair:
    """Two processes' links in one process."""

    def __init__(self, deliver=None):
        self.dir = new_run_dir()
        self.got: list[frames.Message] = []
        self.a = Links(self.dir.path, 1, lambda _m: None)
        self.b: Links | None = None
        self.deliver = deliver or self.got.append
        self.a.start()

    def start_b(self):
        self.b = Links(self.dir.path, 2, self.deliver)
        self.b.start()

    def close(self):
        self.a.close()
        if self.b is not None:
            self.b.close()
        self.dir.remove()


@pytest.fixture
def pair():
    made = Pair()
    yield made
    made.close()


def test_what_was_sent_before_the_peer_listened_arrives_in_order(pair):
    outbox = pair.a.outbox(2)
    for port in range(300):
        outbox.send(header(port=port))
    outbox.send_frames([header(buffers=1, port=300), b"x" * 1_000_000])
    pair.start_b()
    pair.a.flush()
    eventually(lambda: len(pair.got) == 301, 10)
    assert [message.port for message in pair.got] == list(range(301))


def test_a_receiver_that_does_not_read_blocks_nobody_and_loses_nothing():
    gate = threading.Event()
    got = []

    def deliver(message):
        gate.wait(10)
        got.append(message.port)

    pair = Pair(deliver)
    try:
        pair.start_b()
        outbox = pair.a.outbox(2)
        for port in range(2_000):  # far more than a socket's buffer holds
            outbox.send(header(port=port) + b"x" * 5_000)
        assert not got
        gate.set()
        eventually(lambda: len(got) == 2_000, 20)
        assert got == list(range(2_000))
    finally:
        gate.set()
        pair.close()


FLOOD, CALM = 1, 2


def test_an_agent_that_always_has_more_leaves_ranks_their_turn():
    """As a flood of output does, of which the agent sends more for each part that is taken."""
    begun, seen = threading.Event(), threading.Event()

    def deliver(message):
        if message.port == CALM:
            seen.set()
        elif not seen.is_set():
            begun.set()
            agent.send(header(port=FLOOD))
            agent.send(header(port=FLOOD))
            seen.wait(0.001)

    pair = Pair(deliver)
    try:
        context = wire.new_context()
        agent = open_queue(context, pair.dir.path, 2)
        pair.start_b()
        agent.send(header(port=FLOOD))
        assert begun.wait(5)
        pair.a.outbox(2).send(header(port=CALM))
        assert seen.wait(5)
    finally:
        seen.set()
        pair.close()
        agent.close(0)
        context.term()


def test_many_threads_keep_their_own_order(pair):
    pair.start_b()

    def send(start):
        outbox = pair.a.outbox(2)
        for port in range(start, start + 1000):
            outbox.send(header(port=port))

    threads = [threading.Thread(target=send, args=(k * 1000,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pair.a.flush()
    eventually(lambda: len(pair.got) == 4000, 10)
    for k in range(4):
        mine = [m.port for m in pair.got if m.port // 1000 == k]
        assert mine == list(range(k * 1000, k * 1000 + 1000))


def test_a_held_message_leaves_by_itself(pair):
    pair.start_b()
    outbox = pair.a.outbox(2)
    for port in range(3):
        outbox.send(header(port=port))
    eventually(lambda: len(pair.got) == 3, 5)


def test_a_peer_that_is_gone_is_forgotten_and_its_successor_reached(pair):
    pair.start_b()
    pair.a.outbox(2).send(header(port=1))
    eventually(lambda: len(pair.got) == 1, 5)
    pair.b.close()
    pair.a.outbox(2).send(header(port=2))
    pair.a.drop(2)
    pair.start_b()
    pair.a.outbox(2).send(header(port=3))
    eventually(lambda: [m.port for m in pair.got] == [1, 3], 5)


NO_FILES = """
import os, resource, sys
from pathlib import Path
from monarch_nb.net.links import Links

links = Links(Path(sys.argv[1]), 2, lambda message: print(message.port, flush=True))
links.start()
limit = len(os.listdir("/proc/self/fd")) - 1  # the list itself takes one
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, 4096))
print("none", flush=True)
sys.stdin.readline()
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
sys.stdin.readline()
links.close()
"""


def test_who_connects_to_a_process_without_files_waits_until_it_has_some(pair):
    """It is asked all the time whether somebody connects, which must cost next to nothing."""
    command = [sys.executable, "-c", NO_FILES, str(pair.dir.path)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, text=True, cwd=ROOT) as other:
        assert other.stdout.readline() == "none\n"
        before = cpu_s(other.pid)
        pair.a.outbox(2).send(header(port=17))
        select.select([other.stdout], [], [], 1.0)  # nothing comes
        assert cpu_s(other.pid) < before + 0.5
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "17\n"
        said = other.communicate("\n", timeout=10)
    assert said == ("", "")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
