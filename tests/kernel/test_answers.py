"""P5: whatever dies, hangs or comes back, the kernel itself answers `1 + 1` at once."""

import os
import re
import signal
import time

import pytest

from tests.kernel.client import KernelClient
from tests.support import descendants, describe_process, stop

pytestmark = [pytest.mark.slow, pytest.mark.fault, pytest.mark.nightly, pytest.mark.timeout(120)]

ACTORS = """
import os, time
from monarch_nb import Actor, endpoint

class Worker(Actor):
    @endpoint
    def pid(self):
        return os.getpid()
    @endpoint
    def sleep(self):
        time.sleep(60)

workers = mesh0.spawn("workers", Worker)
[*workers.pid.call().get().values()]
"""
ANSWER_S = 0.3
WATCHED_S = 4.0  # longer than a stopped rank is silent, and a lost agent unheard


@pytest.fixture
def kernel(monkeypatch):
    """With four ranks in a call, which nobody waits for."""
    monkeypatch.setenv("MONARCH_NB_GRACE_S", "1")
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh up --gpus 4", timeout_s=60)
        kernel.pids = [int(each) for each in re.findall(r"\d{2,}", kernel.ok(ACTORS).shown)]
        kernel.ok("call = workers.sleep.call()")
        yield kernel
        kernel.manager.shutdown_kernel()  # who is killed without an agent leaves its folder


def agent_of(kernel: KernelClient) -> int:
    below = descendants(kernel.manager.provisioner.pid)
    [found] = [pid for pid in below if "monarch_nb.host.agent" in describe_process(pid)]
    return found


FAULTS = {
    "a rank is killed": (lambda kernel: os.kill(kernel.pids[1], signal.SIGKILL), "RankExited"),
    "a rank is stopped": (lambda kernel: stop(kernel.pids[1]), "RankUnreachable"),
    "the agent is killed": (lambda kernel: os.kill(agent_of(kernel), signal.SIGKILL), "RankExited"),
    "the agent is stopped": (lambda kernel: stop(agent_of(kernel)), "RankUnreachable"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_the_kernel_answers_all_the_time(kernel, goal, what):
    strike, error = FAULTS[what]
    strike(kernel)
    longest_s, over = 0.0, time.monotonic() + WATCHED_S
    while (now := time.monotonic()) < over:
        assert kernel.ok("print(1 + 1)").shown == "2\n"
        longest_s = max(longest_s, time.monotonic() - now)
    goal(f"{what}: the longest answer of the kernel", longest_s, ANSWER_S)
    assert error in kernel.ok("type(call.exception(timeout=10)).__name__").shown
    assert "lost ranks" in kernel.ok("mesh0").shown
