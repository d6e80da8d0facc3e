"""Commands on hosts: their exit codes, where they run, what they write; and a shell there."""

import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time

import pytest

from monarch_nb import ActorError, CallInterrupted, this_host
from monarch_nb.job import exec_command, shell
from monarch_nb.testing.processes import PROC
from tests.source import ROOT
from tests.support import descendants, eventually, is_running

pytestmark = [pytest.mark.usefixtures("mesh_runtime"), pytest.mark.slow]


def test_the_largest_exit_code_is_given():
    script = 'echo "$MONARCH_RANK_gpus of $MONARCH_SIZE_gpus" > /dev/null; exit $MONARCH_RANK_gpus'
    assert exec_command(this_host(), ["sh", "-c", script], per_host={"gpus": 3}).get(30) == 2
    assert exec_command(this_host(), ["true"]).get(30) == 0
    assert exec_command(this_host(), ["sh", "-c", "kill -9 $$"]).get(30) == 128 + 9


def test_a_program_that_is_not_there_is_127(capfd):
    assert exec_command(this_host(), ["no_such_program"]).get(30) == 127
    eventually(lambda: "no_such_program: No such file" in capfd.readouterr().err)


def test_its_output_is_shown_here(capfd):
    assert exec_command(this_host(), ["sh", "-c", "echo out; echo err >&2"]).get(30) == 0
    seen = ["", ""]

    def both():
        now = capfd.readouterr()
        seen[0] += now.out
        seen[1] += now.err
        return "out" in seen[0] and "err" in seen[1]

    eventually(both)


def test_its_output_goes_to_a_folder_for_each_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "where.py").write_text(
        "import os, sys; print(os.getcwd(), sys.argv[1:], os.environ['X'])"
    )
    done = exec_command(
        this_host(), ["where.py", "a b"], env={"X": "y"}, per_host={"gpus": 2},
        output_dir=str(tmp_path / "out/$SUBDIR"),
    )  # fmt: skip
    assert done.get(30) == 0
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["gpus_0", "gpus_1"]
    for place in ("gpus_0", "gpus_1"):
        said = (tmp_path / "out" / place / "stdout.txt").read_text()
        assert said == f"{tmp_path} ['a b'] y\n"
        assert (tmp_path / "out" / place / "stderr.txt").read_text() == ""


def test_it_starts_in_the_folder_it_is_given(tmp_path):
    out = str(tmp_path / "out")
    assert exec_command(this_host(), ["pwd"], workdir="/usr", output_dir=out).get(30) == 0
    assert (tmp_path / "out/stdout.txt").read_text() == "/usr\n"


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="needs a command"):
        exec_command(this_host(), [])
    with pytest.raises(ValueError, match="a rank or a point"):
        exec_command(this_host(), ["true"], rank=0, point={"hosts": 0})
    with pytest.raises(ActorError, match="No such file"):
        exec_command(this_host(), ["true"], output_dir="/proc/none").get(30)


def test_nobody_has_to_wait_for_it(tmp_path):
    exec_command(this_host(), ["touch", str(tmp_path / "done")])
    eventually((tmp_path / "done").exists)


def test_an_interrupt_ends_the_command(tmp_path):
    done = exec_command(this_host(), ["sh", "-c", f"echo $$ > {tmp_path}/pid; sleep 60"])
    pid = int(eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    started = time.monotonic()
    with pytest.raises((KeyboardInterrupt, CallInterrupted)):
        done.get(30)
    assert time.monotonic() - started < 5
    timer.join()
    eventually(lambda: not is_running(pid))


# ------------------------------------------------------------------------------------------- shells


def test_a_shell_is_on_one_host(mesh_runtime):
    with pytest.raises(ValueError, match="singleton HostMesh"):
        shell(TwoHosts())


class TwoHosts:
    def size(self):
        return 2


PROGRAM = """
from monarch_nb import this_host
from monarch_nb.job import shell
print("code", shell(this_host(), env={"SHELL": "/bin/sh", "X": "yes"}, workdir="/usr"), flush=True)
"""


class Person:
    """Somebody at a terminal, whose program opens a shell."""

    def __init__(self, stdin=None):
        self.hand, theirs = pty.openpty()
        self.program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=theirs if stdin is None else stdin,
            stdout=theirs,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
        os.close(theirs)
        self.seen = ""

    def type(self, keys):
        os.write(self.hand, keys)

    def sees(self, text):
        deadline = time.monotonic() + 40
        while text not in self.seen:
            left_s = deadline - time.monotonic()
            assert select.select([self.hand], [], [], max(0, left_s))[0], self.seen
            self.seen += os.read(self.hand, 4096).decode()

    def runs(self):
        """Programs that have been started below the program, by name."""
        comms = (PROC / str(pid) / "comm" for pid in descendants(self.program.pid))
        return [comm.read_text().strip() for comm in comms if comm.exists()]

    def leaves(self):
        assert self.program.wait(20) == 0
        os.close(self.hand)


def test_a_shell_in_a_terminal():
    person = Person()
    person.type(b'echo "<$X $(pwd) $((6*7))>"\n')
    person.sees("<yes /usr 42>")
    person.type(b"tty; sleep 60\n")
    person.sees("/dev/pts/")
    eventually(lambda: "sleep" in person.runs())  # a shell forgets what comes while it forks
    person.type(b"\x03")  # goes to what runs there
    person.type(b"exit 7\n")
    person.sees("code 7")
    person.leaves()


def test_a_shell_ends_with_its_input():
    ours, theirs = os.pipe()
    person = Person(stdin=ours)
    os.write(theirs, b"echo started $((6*7)); sleep 60\n")
    person.sees("started 42")
    os.close(theirs)
    os.close(ours)
    person.sees("code ")
    assert "code 0" not in person.seen
    person.leaves()
