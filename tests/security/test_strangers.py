"""Rule 3: nothing is unpickled from strangers, and noise harms nobody.

Every inbox of a mesh (streams and queues of client, agent and ranks) is given noise, truncated and
oversized messages and pickles that would leave a trace if anybody loaded them.
"""

import contextlib
import json
import math
import os
import pickle
import random
import socket
import struct
import threading
import time
from pathlib import Path

import pytest
import zmq

from monarch_nb.actors import hosting
from monarch_nb.control.client import client
from monarch_nb.core.wire import frames, pickling
from monarch_nb.core.wire.frames import HEADER
from monarch_nb.core.wire.messages import agents, codec
from monarch_nb.core.wire.messages.agents import Hello, Here
from monarch_nb.net import wire
from tests.support import eventually, rss_bytes

MALFORMED = "from monarch_nb.process import current; result = current.proc().links.malformed"


class Trap:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.fixture
def trap(tmp_path):
    """A pickle that must never be loaded."""
    path = tmp_path / "loaded"
    yield pickle.dumps(Trap(str(path)))
    assert not path.exists(), "a stranger's pickle was loaded"


def header(kind=frames.CALL, flags=0, buffers=0, rank=0, port=0, source=7, reply=0) -> bytes:
    return HEADER.pack(kind, flags, buffers, rank, 0, port, source, reply)


def messages(trap: bytes) -> dict[str, list[bytes]]:
    """Frames of what a stranger, or a broken peer, may send."""
    rng = random.Random(3)
    port = frames.ACTOR_BIT | 12345
    batch = header(frames.BATCH, rank=3) + struct.pack("<3I", 40, 41, 1 << 31) + b"x" * 81
    return {
        "random bytes": [rng.randbytes(200)],
        "a long random frame": [rng.randbytes(1 << 20)],
        "nothing": [b""],
        "half a header": [header()[:20]],
        "an unknown kind": [header(kind=99) + trap],
        "unknown flags": [header(flags=0xF0) + trap],
        "HTTP": [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + b" " * 40],
        "a call to no actor": [header(port=port) + trap],
        "an answer to nobody": [header(frames.REPLY, port=300) + trap],
        "an error to nobody": [header(frames.ERROR, port=301) + trap],
        "control that is no JSON": [header(frames.CONTROL) + trap],
        "control that is no object": [header(frames.CONTROL) + b"[1, 2]"],
        "control without a verb": [header(frames.CONTROL) + b"{}"],
        "an unknown verb": [header(frames.CONTROL) + b'{"verb": "obey"}', trap],
        "a verb without its fields": [header(frames.CONTROL) + b'{"verb": "exited"}'],
        "more buffers than announced": [header(buffers=1), trap, trap],
        "fewer buffers than announced": [header(buffers=5), trap],
        "a payload that is not there": [header(flags=frames.DETACHED)],
        "a lease that is not there": [header(flags=frames.SHARED, port=port)],
        "a lease that is noise": [
            header(flags=frames.SHARED, buffers=1, port=300),
            rng.randbytes(77),
        ],
        "a lease that is noise, to no actor": [
            header(flags=frames.SHARED, buffers=1, port=port),
            rng.randbytes(77),
        ],
        "a payload that was the table": [
            header(flags=frames.SHARED | frames.DETACHED, buffers=1, port=port),
            rng.randbytes(77),
        ],
        "a batch that lies": [batch],
        "control that is deep": [header(frames.CONTROL) + b'{"verb":"hello","x":' + b"[" * 50_000],
        "a spawn that is deep": [
            header(frames.CONTROL)
            + b'{"verb":"spawn","procs":[5],"config":{"a":%s}}' % (b"[" * 900 + b"]" * 900)
        ],
        "infinite bytes": [header(frames.CONTROL) + b'{"verb":"taken","bytes":Infinity}'],
        "a period that is no number": [
            header(frames.CONTROL) + b'{"verb":"status","on":true,"period_s":NaN}'
        ],
        "an endless grace": [header(frames.CONTROL) + b'{"verb":"stop_all","grace_s":Infinity}'],
        "a process that cannot be": [
            header(frames.CONTROL) + b'{"verb":"spawn","procs":[-1],"owner":-5}'
        ],
        "output that is noise": [header(frames.OUTPUT, port=frames.OUTPUT_PORT) + trap],
    }


def places() -> dict[str, int]:
    """The processes of the mesh that have an inbox."""
    proc = client().proc
    [state] = [s for s in client().supervision.states.values() if s.kind == "proc"]
    return {"client": proc.id, "agent": proc.agent, "rank": state.processes[0]}


def send_by_queue(process: int, parts: list[bytes]) -> None:
    """As ZeroMQ carries it: to agents, and from agents."""
    context = zmq.Context()
    out = context.socket(zmq.PUSH)
    out.connect(wire.inbox_path(client().proc.links.run_dir, process))
    out.send_multipart(parts)
    out.close(2000)
    context.term()


def send_by_stream(process: int, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as out:
        out.connect(str(wire.stream_path(client().proc.links.run_dir, process)))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            out.sendall(data)


def on_stream(parts: list[bytes]) -> bytes:
    first, *rest = parts
    pieces = [struct.pack("<I", len(first)) + first]
    pieces += [struct.pack("<Q", len(part)) + part for part in rest]
    return b"".join(pieces)


def assert_well(mesh) -> None:
    before = time.perf_counter()
    assert len(mesh.workers.add.call(0).get(timeout=10)) == 2
    assert time.perf_counter() - before < 5
    assert client().proc.ask is not None
    assert isinstance(agent_says_hello(), Here)


def agent_says_hello() -> Here:
    answers: list[Here] = []
    proc = client().proc
    proc.ask(proc.agent, Hello(), answers.append)
    eventually(lambda: answers, 10.0, "the agent's answer")
    return answers[0]


@pytest.mark.parametrize("what", messages(b""))
def test_noise_by_queue_reaches_nobody(mesh, trap, what, monkeypatch):
    loaded = spy(monkeypatch)
    for process in places().values():
        for _ in range(3):
            send_by_queue(process, messages(trap)[what])
    assert_well(mesh)
    assert loaded() <= 2  # the two answers of `assert_well`


@pytest.mark.parametrize("what", messages(b""))
def test_noise_by_stream_reaches_nobody(mesh, trap, what, monkeypatch):
    loaded = spy(monkeypatch)
    for name, process in places().items():
        if name != "agent":  # it has a queue only
            for _ in range(3):
                send_by_stream(process, on_stream(messages(trap)[what]))
    assert_well(mesh)
    assert loaded() <= 2


def spy(monkeypatch):
    """How often this process has called the one `loads`."""
    calls: list[bytes] = []
    real = pickling.loads

    def watched(payload, buffers=()):
        calls.append(bytes(payload))
        return real(payload, buffers)

    monkeypatch.setattr(pickling, "loads", watched)
    return lambda: len(calls)


OVERSIZED = {
    "a frame of 4 GB": struct.pack("<I", 0xFFFFFFFF),
    "65 535 buffers": on_stream([header(buffers=0xFFFF)]) + struct.pack("<Q", 0) * 1000,
    "a buffer of 8 EB": on_stream([header(buffers=1)]) + struct.pack("<Q", 1 << 63),
    "a buffer of 1 TB": on_stream([header(buffers=1)]) + struct.pack("<Q", 1 << 40) + b"x" * 100,
    "a buffer of 3 GB": on_stream([header(buffers=1)]) + struct.pack("<Q", 3 << 30) + b"x" * 100,
    "raw noise": random.Random(5).randbytes(1 << 20),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "ZMTP": b"\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL" + bytes(48),
}


UNFINISHED = {
    "65 535 buffers",
    "a buffer of 3 GB",
    "TLS",
    "ZMTP",
}  # cut short, as by a peer that dies


@pytest.mark.parametrize("what", OVERSIZED)
def test_oversized_and_foreign_streams_are_dropped_and_counted(mesh, what):
    rank = mesh.workers.slice(gpus=0)
    before = [client().proc.links.malformed, rank.do.call_one(MALFORMED).get(timeout=10)]
    rss = [rss_bytes(pid) for pid in (os.getpid(), mesh.ranks[0])]
    for name, process in places().items():
        if name != "agent":
            send_by_stream(process, OVERSIZED[what])
    assert_well(mesh)
    after = [client().proc.links.malformed, rank.do.call_one(MALFORMED).get(timeout=10)]
    if what not in UNFINISHED:
        assert all(b > a for a, b in zip(before, after, strict=True)), (before, after)
    grown = [rss_bytes(pid) - r for pid, r in zip((os.getpid(), mesh.ranks[0]), rss, strict=True)]
    assert max(grown) < 64 << 20


def test_what_is_malformed_is_counted_by_everybody(mesh, trap):
    rank = mesh.workers.slice(gpus=0)

    def counts() -> list[int]:
        return [
            client().proc.links.malformed,
            agent_says_hello().malformed,
            rank.do.call_one(MALFORMED).get(timeout=10),
        ]

    bad = (
        "random bytes",
        "half a header",
        "fewer buffers than announced",
        "control that is no JSON",
    )
    before = counts()
    for process in places().values():
        for what in bad:
            send_by_queue(process, messages(trap)[what])
    eventually(lambda: all(b - a >= len(bad) for a, b in zip(before, counts(), strict=True)), 10.0)


def test_noise_for_no_actor_ends_no_thread_when_it_is_given_up(mesh, trap, monkeypatch):
    """Each was kept for an actor that may yet come; the thread that ended the wait ended itself."""
    monkeypatch.setattr(hosting, "PARKING_S", 0.2)
    ended = []
    monkeypatch.setattr(threading, "excepthook", lambda args: ended.append(args.exc_value))
    bad = [
        "a lease that is not there",
        "a lease that is noise, to no actor",
        "a payload that was the table",
    ]
    before, malformed = set(threading.enumerate()), client().proc.links.malformed
    for what in bad:
        send_by_queue(client().proc.id, messages(trap)[what])
    eventually(lambda: client().proc.links.malformed >= malformed + len(bad), 10.0)
    eventually(lambda: set(threading.enumerate()) <= before, 10.0)
    assert not ended


def test_raw_bytes_to_the_queue_sockets(mesh):
    """Not even ZeroMQ: bytes written straight to the unix socket below it."""
    for process in places().values():
        path = wire.inbox_path(client().proc.links.run_dir, process).removeprefix("ipc://")
        for data in (*OVERSIZED.values(), b"\xff" * 9 + b"\x7f\3\0CURVE" + bytes(100)):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as out:
                out.connect(path)
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    out.sendall(data[:4096])
    assert_well(mesh)


def test_a_thousand_connections_that_say_nothing(mesh):
    path = str(wire.stream_path(client().proc.links.run_dir, places()["rank"]))
    silent = []
    for _ in range(300):
        each = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        each.setblocking(False)
        silent.append(each)
        with contextlib.suppress(BlockingIOError):
            each.connect(path)
    assert_well(mesh)
    for each in silent:
        each.close()
    pid = mesh.ranks[0]
    eventually(lambda: len(os.listdir(f"/proc/{pid}/fd")) < 100, 10.0, "the rank closes them too")
    assert_well(mesh)


def test_ten_thousand_mutations_of_real_messages(mesh, trap, monkeypatch):
    """A broken peer: every message is a real one with bits flipped, cut or repeated."""
    rng = random.Random(11)
    seeds = [b"".join(parts) for parts in messages(trap).values()]
    process = places()["rank"]
    path = str(wire.stream_path(client().proc.links.run_dir, process))
    for _ in range(100):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as out:
            out.connect(path)
            out.settimeout(5)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError, TimeoutError):
                for _ in range(100):
                    data = bytearray(on_stream([rng.choice(seeds)[:400]]))
                    for _ in range(rng.randrange(4)):
                        data[rng.randrange(len(data))] = rng.randrange(256)
                    out.sendall(
                        data[: rng.randrange(1, len(data) + 1)] if rng.random() < 0.1 else data
                    )
    assert_well(mesh)


STRANGE = (
    None, True, -1, 0, 1 << 63, 1 << 64, 10**400, 0.5, -1e300, math.nan, math.inf, -math.inf, "",
    "\0", "\ud800", "x" * 300, [], [[]], [None], [-1], [1 << 70], [5, 5], ["\0"], {}, {"": None},
    {"\0": "\ud800"}, json.loads("[" * 900 + "]" * 900),
)  # fmt: skip
KINDS = (
    agents.Spawn, agents.Stop, agents.Kill, agents.Watch, agents.WatchBoard, agents.Taken,
    agents.Drain, agents.GetLastLines, agents.DumpStacks, agents.GetStackDumps,
    agents.GetBoardRows, agents.GetNativeStacks, agents.Hello,
)  # fmt: skip


def test_a_thousand_requests_of_every_kind_with_strange_values(mesh):
    rng = random.Random(17)
    context = zmq.Context()
    out = context.socket(zmq.PUSH)
    out.connect(wire.inbox_path(client().proc.links.run_dir, places()["agent"]))
    agent = agent_says_hello().pid
    for _ in range(1000):
        kind = rng.choice(KINDS)
        fields = [*kind._fields, "unheard_of"]
        some = rng.sample(fields, rng.randint(0, len(fields)))
        body = {name: rng.choice(STRANGE) for name in some}
        source, reply = rng.choice([7, client().proc.id]), rng.choice([0, 300, (1 << 64) - 1])
        body["verb"] = codec.verb_of(kind)
        head = header(frames.CONTROL, source=source, reply=reply)
        out.send(head + json.dumps(body).encode())
    out.close(2000)
    context.term()
    assert_well(mesh)
    assert agent_says_hello().pid == agent


def test_one_loads_in_the_code_base():
    """By the text, beside the syntax trees of tests/test_architecture.py."""
    root = Path(pickling.__file__).parents[2]
    found = [
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if "pickle.loads(" in path.read_text() or "cloudpickle.loads(" in path.read_text()
    ]
    assert found == ["core/wire/pickling.py"]
