"""`debug_controller`: a program asks who is stopped at a breakpoint."""

import os
import subprocess
import sys

import pytest

from tests.notebook.prompts import STOPS_EARLY
from tests.source import ROOT

PROGRAM = """\
import os, socket, subprocess, sys
from monarch_nb import Actor, endpoint, this_host
from monarch_nb.control.debug.controller import debug_controller

class Trainer(Actor):
    @endpoint
    def step(self, x):
        loss = x + 0.5
        breakpoint()
        return loss

    @endpoint
    def stopped(self):
        return [each.rank for each in debug_controller().list.call_one(False).get()]

procs = this_host().spawn_procs({"gpus": 2}, name="ranks")
trainers = procs.spawn("trainer", Trainer)
others = procs.spawn("others", Trainer)
controller = debug_controller()
print(controller.list.call_one(print_output=False).get())
waiting = controller.wait_pending_session.call_one()
slow = trainers.slice(gpus=1).step.call(3)
waiting.get(20)
[one] = controller.list.call_one().get()
print(one.rank, dict(one.coords), one.function, one.lineno, one.hostname == socket.gethostname())
print(others.slice(gpus=0).stopped.call_one().get(20))
debug = [sys.executable, "-m", "monarch_nb.control.cli", "debug", "--pid", str(os.getpid())]
prompt = subprocess.Popen(debug, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
prompt.stdin.write(b"c\\n")
prompt.stdin.flush()
print(slow.get(20).values()[0], controller.list.call_one(False).get())
prompt.kill()
prompt.wait()
"""


@pytest.mark.timeout(60)
def test_a_program_is_told_who_is_stopped_and_breakpoints_stop_for_it(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, *table, stopped, seen, last = done.stdout.splitlines()
    assert first == "[]"
    assert "Actor Name" in table[1]
    assert "trainer.step" in table[3]
    assert stopped == f"1 {{'gpus': 1}} step {9 if STOPS_EARLY else 10} True"
    assert seen == "[1]"
    assert last == "3.5 []"
