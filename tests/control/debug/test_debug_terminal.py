"""`monarch-nb debug`: a terminal at the prompts of a program's ranks."""

import contextlib
import os
import pty
import re
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from monarch_nb.control import cli
from tests.notebook.prompts import STOPS_EARLY
from tests.support import eventually

pytestmark = pytest.mark.timeout(60)

COMMAND = [sys.executable, "-m", "monarch_nb.control.cli", "debug", "--pid"]
PROGRAM = """\
from monarch_nb import Actor, endpoint, this_host

class Trainer(Actor):
    @endpoint
    def step(self, x):
        breakpoint()
        loss = x + 0.5
        return loss

trainers = this_host().spawn_procs({"gpus": 2}, name="ranks").spawn("trainer", Trainer)
print("result", trainers.step.call(3).get().values(), flush=True)
"""


@pytest.fixture
def program(tmp_path) -> Iterator[subprocess.Popen[str]]:
    """A program without a notebook, whose ranks will stop."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, str(path)],
        env={**os.environ, "MONARCH_NB_BREAKPOINTS": "stop"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


def debug(pid: int, lines: str) -> str:
    """What the command says when these lines are typed."""
    done = subprocess.run(
        [*COMMAND, str(pid)], input=lines, capture_output=True, text=True, timeout=30, check=False
    )
    assert not done.stderr, done.stderr
    return done.stdout


def test_a_terminal_speaks_to_the_ranks_of_a_program(program):
    assert "in another terminal type: monarch-nb debug" in program.stderr.readline()
    line = 6 if STOPS_EARLY else 7
    eventually(lambda: f"ranks 0-1 at program.py:{line}" in debug(program.pid, ""))
    if STOPS_EARLY:
        debug(program.pid, "cast all n\n")
    shown = debug(program.pid, "p x\nrank 1\ncast all n\np loss\n")
    assert "at program.py:7 step()\n-> loss = x + 0.5\n" in shown
    assert "(rank 0) 3\n" in shown
    assert "-> return loss" in shown
    assert "(rank 1) 3.5\n" in shown
    assert program.poll() is None
    debug(program.pid, "detach\nlist\ncontinue\n")
    assert program.stdout.readline() == "result [3.5, 3.5]\n"
    assert program.wait(20) == 0


ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.mark.slow
def test_completion_in_a_real_terminal(program):
    program.stderr.readline()
    terminal, end = pty.openpty()
    os.set_blocking(terminal, False)
    shown: list[str] = []

    def sees(text: str) -> None:
        def look() -> bool:
            with contextlib.suppress(BlockingIOError):
                shown.append(os.read(terminal, 4096).decode(errors="replace"))
            return text in ESCAPES.sub("", "".join(shown))

        eventually(look, what=lambda: f"{text!r} in {shown}")
        shown.clear()

    with subprocess.Popen(
        [*COMMAND, str(program.pid)], stdin=end, stdout=end, stderr=end,
        env={**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}, start_new_session=True,
    ) as command:  # fmt: skip
        sees("(rank 0)")
        os.write(terminal, b"whati\t")
        sees("whatis")
        os.write(terminal, b" x\r")
        sees("<class 'int'>")
        os.write(terminal, b"continue\r")
        assert command.wait(20) == 0
    os.close(terminal)
    os.close(end)
    assert program.wait(20) == 0


@pytest.mark.slow
def test_without_a_terminal_a_program_is_not_held_up(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, stdin=subprocess.DEVNULL,
        timeout=50, check=False,
    )  # fmt: skip
    assert done.stdout.endswith("result [3.5, 3.5]\n")
    told = f"breakpoint in step(), line {6 if STOPS_EARLY else 7}: nobody can type here, going on"
    assert told in done.stdout + done.stderr


def test_who_is_no_controller_is_named(capsys):
    assert cli.main(["debug", "--pid", "1"]) == 2
    assert "no controller" in capsys.readouterr().err


def test_what_is_no_visitor_is_sent_away(mesh_runtime):
    import monarch_nb
    from monarch_nb.control.client import client

    procs = monarch_nb.this_host().spawn_procs({"gpus": 1}, name="plain")
    procs.initialized.get()
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b"\xff\xfe\n", b'{"line": 3}\n'):
        stream = socket.socket(socket.AF_UNIX)
        stream.connect(str(client().proc.links.run_dir / "visitors"))
        stream.sendall(said)
        stream.shutdown(socket.SHUT_WR)
        stream.settimeout(5)
        while stream.recv(4096):
            continue
        stream.close()
    procs.stop().get()
