"""What ranks write from C, on its way to the controller: whole, in turn, and without the controller
too."""

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_nb.core.wire.board import BOARD_BYTES, ReadCount
from monarch_nb.host.agent.loop import Loop
from monarch_nb.host.output import FLUSH_S, PIECE_BYTES, STUCK_S, WINDOW_BYTES, FlowControl, Output
from tests.host.support import Host, host
from tests.support import eventually

LINE = "x" * 99 + "\n"
FLOOD = 200_000  # lines: 20 MB
SPARE_BYTES = 20 << 20  # of memory, whatever is written


@pytest.fixture
def agent() -> Iterator[Host]:
    with host() as made:
        yield made


def written(agent: Host, proc: int, stream: str = "stdout") -> str:
    pieces = [body for body in agent.find("raw", proc) if body["stream"] == stream]
    return "".join(body["text"] for body in pieces)


def peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) << 10


# --------------------------------------------------------------------------------- whose turn it is


class Ranks:
    """Pipes of `count` ranks, and the controller's side of them."""

    def __init__(self, count: int) -> None:
        self.loop = Loop()
        self.flow = FlowControl(self.loop)
        self.fds: list[int] = []
        self.outputs = []
        self.counts: list[ReadCount] = []
        for proc in range(count):
            (out, write_out), (err, write_err) = os.pipe(), os.pipe()
            os.set_blocking(write_out, False)
            self.outputs.append(Output(proc, (out, err)))
            self.fds += [write_out, write_err]
            self.counts.append(ReadCount(bytearray(BOARD_BYTES), proc))
            self.flow.add(self.outputs[-1], self.counts[-1])

    def write(self, proc: int, text: str) -> int:
        """As much as the pipe takes."""
        try:
            return os.write(self.fds[2 * proc], text.encode())
        except BlockingIOError:
            return 0

    def flush(self, now: float) -> list[tuple[int, int]]:
        """Who sends how much."""
        self.loop.wait(0)
        return [(piece.proc, piece.bytes) for piece in self.flow.flush(now)]

    def close(self) -> None:
        for output in self.outputs:
            self.flow.remove(output)
        for fd in self.fds:
            os.close(fd)
        self.loop.close()


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    made = Ranks(3)
    yield made
    made.close()


def flood(ranks: Ranks, now: float) -> int:
    """Rank 0 writes all it can until it has to wait. How much is on its way then."""
    sent = 0
    while ranks.write(0, LINE * 1000):
        now += FLUSH_S
        sent += sum(size for _, size in ranks.flush(now))
    return sent


def test_a_writer_waits_while_the_controller_takes_nothing(ranks):
    sent = flood(ranks, 0.0)
    assert WINDOW_BYTES - PIECE_BYTES < sent <= WINDOW_BYTES
    assert ranks.flush(2.0) == []
    ranks.flow.taken(PIECE_BYTES, 2.1)
    assert ranks.flow.due() <= 2.1  # at once
    assert [proc for proc, _ in ranks.flush(2.1)] == [0]
    ranks.flush(2.2)
    assert ranks.write(0, LINE) == len(LINE)


def test_pipes_take_turns(ranks):
    flood(ranks, 0.0)
    ranks.write(1, "a line\n")
    ranks.flush(1.9)
    ranks.flow.taken(PIECE_BYTES, 2.0)
    ranks.flow.taken(PIECE_BYTES, 2.0)
    assert (1, 7) in ranks.flush(2.0)


def test_a_controller_that_is_stopped_holds_nobody_up_and_is_told_how_much_it_missed(ranks):
    sent = flood(ranks, 0.0)
    now = STUCK_S * 2
    ranks.flush(now)
    dropped = 0
    for _ in range(100):
        dropped += ranks.write(0, LINE * 1000)
        ranks.flush(now)
    assert dropped > 100 * PIECE_BYTES // 2
    ranks.flow.taken(sent, now)
    texts = []
    for _ in range(10):
        now += FLUSH_S
        ranks.loop.wait(0)
        texts += [piece.text for piece in ranks.flow.flush(now)]
    [skipped] = re.findall(r"\[monarch_nb: (\d+) bytes skipped: .*\]\n", "".join(texts))
    assert dropped - 4 * PIECE_BYTES < int(skipped) <= dropped + 4 * PIECE_BYTES
    assert ranks.write(0, LINE) == len(LINE)


def test_who_waits_for_what_was_written_hears_when_it_has_gone_on(ranks):
    passed = []
    ranks.write(0, "before\n")
    ranks.flow.when_forwarded(ranks.outputs[:1], lambda: passed.append(0))
    ranks.flow.when_forwarded(ranks.outputs[1:], lambda: passed.append(1))
    ranks.write(0, "after\n")
    ranks.flow.tell()
    assert passed == [1]
    assert ranks.counts[0].value == 0
    ranks.loop.wait(0)
    assert ranks.counts[0].value == 1
    assert ranks.counts[1].value == 0
    ranks.flow.tell()
    assert passed == [1]
    assert ranks.flow.due() < 0.0  # at once, whenever the last flush was
    ranks.flush(0.0)
    ranks.flow.tell()
    assert passed == [1, 0]


# ----------------------------------------------------------------------------------- real processes


def test_draining_is_over_when_all_has_gone_on(agent):
    [proc] = agent.spawn(1)
    agent.up([proc])
    for number in range(20):
        agent.send(proc, "write", text=LINE, times=number * 50)
        eventually(lambda wanted=number + 1: len(agent.find("done", proc)) == wanted)
        assert agent.ask("drain", procs=[proc]) == {"ok": True}
        assert len(written(agent, proc)) == sum(range(number + 1)) * 50 * len(LINE)
    assert agent.ask("drain", procs=[proc, 12345]) == {"ok": True}


def test_what_c_writes_arrives(agent):
    [proc] = agent.spawn(1)
    agent.send(proc, "write", text="grüße from C\n")
    assert agent.hear("raw", proc) == {
        "verb": "raw", "proc": proc, "stream": "stdout", "text": "grüße from C\n", "bytes": 15,
    }  # fmt: skip


def test_a_flood_arrives_whole_and_nobody_else_waits_for_it(agent):
    loud, quiet = agent.spawn(2)
    agent.up([loud, quiet])
    agent.send(loud, "write", text=LINE, times=FLOOD, fd=2)
    agent.hear("raw", loud)
    asked = time.monotonic()
    agent.send(quiet, "write", text="quiet\n")
    assert agent.when("raw", quiet) - asked < 0.5
    agent.hear("done", loud)
    eventually(lambda: len(written(agent, loud, "stderr")) >= FLOOD * 100, 20, "all of it")
    assert written(agent, loud, "stderr") == LINE * FLOOD
    assert agent.ask("tail", proc=loud)["text"].endswith("x" * 99)


@pytest.mark.fault
def test_a_rank_that_is_killed_in_a_flood_leaves_all_that_it_wrote(agent):
    [proc] = agent.spawn(1)
    agent.send(proc, "write", text=LINE, times=FLOOD // 10)
    agent.send(proc, "write_and_die", text="the last line\n")
    assert agent.hear("exited", proc)["signal"] == signal.SIGKILL
    assert written(agent, proc) == LINE * (FLOOD // 10) + "the last line\n"


@pytest.mark.slow
def test_a_rank_goes_on_when_the_controller_takes_nothing():
    with host() as agent:
        [proc] = agent.spawn(1)
        agent.up([proc])
        agent.takes = False
        before = peak_bytes(agent.agent_pid)
        agent.send(proc, "write", text=LINE, times=FLOOD)
        agent.hear("done", proc, within_s=STUCK_S + 20)
        assert agent.when("done", proc) - agent.when("doing", proc) > STUCK_S
        assert peak_bytes(agent.agent_pid) - before < SPARE_BYTES
        on_its_way = sum(body["bytes"] for body in agent.find("raw", proc))
        assert on_its_way <= WINDOW_BYTES
        agent.takes = True
        agent.send(agent.boot.agent, "taken", bytes=on_its_way)
        text = eventually(lambda: "skipped" in (said := written(agent, proc)) and said)
        [skipped] = re.findall(r"\n\[monarch_nb: (\d+) bytes skipped: .*\]\n", text)
        assert text.count("x") < FLOOD * 100
        assert len(re.sub(r"\n\[monarch_nb.*\]\n", "", text)) + int(skipped) == FLOOD * 100
        agent.send(proc, "write", text="and on\n")
        eventually(lambda: written(agent, proc).endswith("and on\n"))
