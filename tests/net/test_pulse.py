"""The pulse link by itself, against a process of its own."""

import os
import signal
import subprocess
import sys

import pytest

from monarch_nb.net import wire
from monarch_nb.net.pulse import Pulse
from tests.host.support import wait
from tests.support import eventually

PEER = """
import sys
from pathlib import Path
from monarch_nb.net import wire
context = wire.new_context()
inbox = wire.bind_inbox(context, Path(sys.argv[1]), 7)
print("bound", flush=True)
sys.stdin.read()
inbox.close(0)
context.term()
"""


@pytest.fixture
def context():
    made = wire.new_context()
    yield made
    made.destroy(0)  # what a failed test has left open would hold `term` up for ever


@pytest.fixture
def run_dir(tmp_path):
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def pulse(context, run_dir):
    made = Pulse(context, run_dir, 7, 0.1, 0.3)
    yield made
    made.close()


@pytest.fixture
def peer(run_dir):
    with subprocess.Popen(
        [sys.executable, "-c", PEER, str(run_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"bound\n"
        yield process
        process.kill()


def test_a_peer_that_never_was_is_no_news(pulse):
    wait(0.5)
    assert pulse.read() == []


@pytest.mark.slow
@pytest.mark.fault
def test_stopped_and_continued_again_and_again(pulse, peer):
    assert eventually(pulse.read) == [True]
    for _ in range(3):
        os.kill(peer.pid, signal.SIGSTOP)
        assert eventually(pulse.read) == [False]
        wait(0.5)  # attempts to connect reach the stopped peer's backlog
        assert pulse.read() == []
        os.kill(peer.pid, signal.SIGCONT)
        assert eventually(pulse.read) == [True]


@pytest.mark.fault
def test_an_end_is_a_loss(pulse, peer):
    assert eventually(pulse.read) == [True]
    peer.kill()
    assert eventually(pulse.read) == [False]


@pytest.mark.fault
def test_many_links_cost_few_files(context, run_dir, peer):
    before = len(os.listdir("/proc/self/fd"))
    pulses = [Pulse(context, run_dir, 7, 0.5, 1.5) for _ in range(256)]
    for pulse in pulses:
        assert eventually(pulse.read) == [True]
    assert len(os.listdir("/proc/self/fd")) - before <= 4 * 256 + 8  # and the context's own
    for pulse in pulses:
        pulse.close()
