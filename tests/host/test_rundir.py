"""Run dirs: private, short, swept when the owner is dead and never before."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from monarch_nb.errors import LaunchError
from monarch_nb.host import rundir
from monarch_nb.host.rundir import new_run_dir, sweep
from monarch_nb.net import private, wire
from tests.support import eventually, is_running

OWNER = """
import sys, time
from monarch_nb.host.rundir import new_run_dir
print(new_run_dir().path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def owner(tmp_path, monkeypatch):
    """Another process with a run dir of its own."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.path = Path(process.stdout.readline().strip())
        yield process
        process.kill()


def test_a_run_dir_is_private_and_goes_away(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    made = new_run_dir()
    assert made.path.parent == tmp_path
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o700
    private.check_private(made.path)
    made.remove()
    made.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault
def test_a_dead_owners_dir_is_swept_a_living_ones_is_not(owner, tmp_path):
    assert sweep(tmp_path) == []
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    made = new_run_dir()
    assert [path.name for path in tmp_path.iterdir()] == [made.path.name]
    made.remove()


@pytest.mark.fault
def test_a_stopped_owner_is_alive(owner, tmp_path):
    os.kill(owner.pid, signal.SIGSTOP)
    assert sweep(tmp_path) == []
    assert owner.path.exists()


def stranger(path, content):
    path.mkdir(mode=0o700)
    (path / "owner").write_bytes(content)


@pytest.mark.parametrize("make", [
    lambda path: path.mkdir(mode=0o700),
    lambda path: stranger(path, b"something else"),
    lambda path: (stranger(path, rundir._MARKER), path.chmod(0o755)),
    lambda path: path.write_text("a file"),
    lambda path: path.symlink_to("/"),
    lambda path: (path.mkdir(mode=0o700), (path / "owner").symlink_to("/etc/passwd")),
], ids=["empty", "no marker", "not private", "file", "link", "owner is a link"])  # fmt: skip
def test_what_is_not_ours_is_left_alone(tmp_path, make):
    path = tmp_path / "mnb-strange"
    make(path)
    assert sweep(tmp_path) == []
    assert os.path.lexists(path)


def test_a_place_with_a_long_name_is_not_taken(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    made = new_run_dir()
    assert made.path.parent != long
    assert wire.inbox_path(made.path, 2**64 - 1)
    made.remove()


def test_no_place_at_all_is_said(monkeypatch):
    monkeypatch.setattr(rundir, "_candidates", lambda: [Path("/nowhere")])
    with pytest.raises(LaunchError, match=r"/nowhere .*TMPDIR"):
        new_run_dir()


BEGINNER = """
import os, signal, subprocess, sys, threading
from monarch_nb.host.rundir import new_run_dir
path = new_run_dir().path
threading.Thread(target=threading.Event().wait, daemon=True).start()  # it may be the last to end
# What the operating system gives back one by one: the pipe to the agent, this slowly, the lock
os.posix_fallocate(os.memfd_create("large"), 0, 1 << 30)
agent = [sys.executable, "-P", "-m", "monarch_nb.host.agent"]
with open(path / "agent.log", "w") as log:
    agent = subprocess.Popen(agent, stdin=subprocess.PIPE, stdout=log, stderr=log)
print(agent.pid, flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""
READS_ITS_INPUT = "0 0x0 "  # as /proc/<pid>/syscall has it


@pytest.mark.fault
@pytest.mark.parametrize("waits", [False, True], ids=["starts", "waits"])
def test_an_owner_that_dies_before_its_agent_has_begun_leaves_no_dir(tmp_path, monkeypatch, waits):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    command = [sys.executable, "-c", BEGINNER]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as owner:
        agent = int(owner.stdout.readline())
        call = Path(f"/proc/{agent}/syscall")
        eventually(lambda: not waits or call.read_text().startswith(READS_ITS_INPUT))
        owner.communicate("\n")
    eventually(lambda: not is_running(agent), 10, "the agent's end")
    assert list(tmp_path.iterdir()) == []
