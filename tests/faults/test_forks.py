"""Row 18, first half: processes of endpoints never touch our sockets, and end with the rank."""

import os
import signal
import time

import pytest

from monarch_nb import RankExited
from tests.support import descendants, eventually, is_running

# each leaves a process behind that lives for a thousand seconds, and gives its pid
DAEMONS = {
    "fork": """
pid = os.fork()
if pid == 0:
    while True: time.sleep(1000)
result = pid
""",
    "fork and setsid": """
pid = os.fork()
if pid == 0:
    os.setsid()
    while True: time.sleep(1000)
result = pid
""",
    "a daemon": """
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    pid = os.fork()
    if pid:
        os.write(writer, str(pid).encode())
        os._exit(0)
    while True: time.sleep(1000)
result = int(os.read(reader, 100))
""",
    "subprocess": "import subprocess; result = subprocess.Popen(['sleep', '1000']).pid",
    "subprocess in a new session without environment": (
        "import subprocess\n"
        "result = subprocess.Popen(['/bin/sleep', '1000'], start_new_session=True, env={}).pid"
    ),
    "multiprocessing fork": """
import multiprocessing
process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
process.start()
self.kept = process
result = process.pid
""",
    "multiprocessing spawn": """
import multiprocessing
process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(1000,))
process.start()
self.kept = process
result = process.pid
""",
}


@pytest.mark.fault
@pytest.mark.parametrize("how", DAEMONS)
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_an_endpoint_starts_ends_with_the_rank(mesh, goal, how, end):
    made = mesh(2)
    child = made.one(1).do.call_one(DAEMONS[how]).get(timeout=30)
    assert is_running(child)
    assert made.one(1).add.call_one().get(timeout=10) == 1  # the rank goes on beside it
    family = descendants(made.pids[1]) | {child, made.pids[1]}
    at = time.monotonic()
    if end == "kill":
        sleeping = made.one(1).sleep.call_one(60.0)
        os.kill(made.pids[1], signal.SIGKILL)
        assert isinstance(sleeping.exception(timeout=10), RankExited)
    else:
        made.procs.stop().get(timeout=20)
    eventually(lambda: not any(map(is_running, family)), 10.0, f"{how} gone after {end}")
    goal(f"{how}, {end}: gone", time.monotonic() - at, 1.0)


FORKED_CHILD = {
    "returns normally": "pass",
    "uses the mesh's sockets": "self.sent = 1",
    "exits by sys.exit": "sys.exit(0)",
    "raises": "raise ValueError('in the child')",
}


@pytest.mark.parametrize("what", FORKED_CHILD)
def test_a_forked_child_that_runs_on_answers_nothing(mesh, tmp_path, what):
    """The child returns from the endpoint as the parent does: only the parent may answer."""
    made = mesh(2)
    ledger = tmp_path / "ledger"
    code = f"""
pid = os.fork()
if pid == 0:
    {FORKED_CHILD[what]}
    result = "the child's answer"
else:
    result = pid
open({str(ledger)!r}, "a").write(f"{{os.getpid()}}\\n")
"""
    child = made.one(1).do.call_one(code).get(timeout=10)
    assert child != "the child's answer"
    eventually(lambda: not is_running(child), 10.0, "the child has ended")
    for i in range(50):
        assert made.one(1).add.call_one(1).get(timeout=10) == i + 1
    assert list(made.workers.add.call(0).get(timeout=10).values()) == [0, 50]
    assert is_running(made.pids[1])


def test_a_forked_child_cannot_use_the_mesh(mesh):
    made = mesh(2)
    code = """
import monarch_nb
reader, writer = os.pipe()
if os.fork() == 0:
    try:
        self.peer.add.call_one(1).get(timeout=2)
        text = "answered"
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"
    os.write(writer, text.encode())
    os._exit(0)
result = os.read(reader, 10_000).decode()
"""
    made.one(1).keep.call_one(made.one(0)).get(timeout=10)
    said = made.one(1).do.call_one(code).get(timeout=20)
    assert "fork" in said, said
    assert made.one(0).add.call_one(1).get(timeout=10) == 1
    assert made.one(1).add.call_one(1).get(timeout=10) == 1


def test_a_pool_and_a_dataloader_work_in_an_endpoint(mesh):
    made = mesh(1)
    code = """
import concurrent.futures, multiprocessing
fork = multiprocessing.get_context("fork")
with concurrent.futures.ProcessPoolExecutor(2, mp_context=fork) as pool:
    result = list(pool.map(abs, [-1, -2, -3]))
"""
    assert made.workers.do.call_one(code).get(timeout=30) == [1, 2, 3]
    code = """
import torch
data = torch.utils.data.DataLoader(list(range(8)), batch_size=4, num_workers=2)
result = [batch.sum().item() for batch in data]
"""
    assert made.workers.do.call_one(code).get(timeout=50) == [6, 22]
    assert made.workers.add.call_one().get(timeout=5) == 1


def test_the_client_may_fork(mesh):
    """A child of the client's process leaves our sockets and processes alone."""
    made = mesh(2)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert list(made.workers.add.call().get(timeout=10).values()) == [1, 1]
