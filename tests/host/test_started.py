"""Ranks that are started by a command: everything that is promised for a fork, wrapper or not."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from monarch_nb.config import VERSION
from monarch_nb.host import guard
from tests.host.support import host
from tests.support import descendants, eventually, is_running, open_fds, stop

ENTRY = "monarch_nb.host.rank"
PLAIN = [sys.executable, sys.executable, "-m", ENTRY]
ENV = ["env", "env", "WRAPPED=yes", *PLAIN[1:]]
# a shell that stays in between, and passes on how the rank ended
SHELL = ["sh", "sh", "-c", f"WRAPPED=yes {sys.executable} -m {ENTRY}; exit $?"]
WRAPPERS = pytest.mark.parametrize("line", [PLAIN, ENV, SHELL], ids=["plain", "env", "shell"])


def start(agent, line, count=1, **fields):
    procs = agent.spawn(count, commands=[line] * count, **fields)
    agent.up(procs)
    return procs


def records(agent):
    return list(Path(agent.boot.run_dir).glob("*.boot"))


@WRAPPERS
def test_it_is_in_its_place_like_a_fork(agent, line, tmp_path):
    cpu = min(os.sched_getaffinity(0))
    fields = {
        "cwd": str(tmp_path),
        "path": [*sys.path, "/of/the/mesh"],
        "env": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HOME": None},
        "rank_env": [{"MINE": "1"}],
        "bind": [{"cpus": [cpu]}],
        "sizes": [3],
        "ranks": [2],
    }
    [proc] = start(agent, line, **fields)
    [fork] = agent.spawn(1, **fields)
    started, forked = agent.facts(proc), agent.facts(fork)
    same = ("cwd", "path", "cpus", "sigterm", "modules")
    assert [started[name] for name in same] == [forked[name] for name in same]
    assert started["boot"]["rank"] == 2
    assert (started["env"]["MINE"], started["env"]["MONARCH_NB_PROC"]) == ("1", str(proc))
    assert "HOME" not in started["env"]
    assert "MONARCH_NB_BOOT" not in started["env"]
    assert started["env"].get("WRAPPED") == (None if line is PLAIN else "yes")
    assert started["env"]["OMP_NUM_THREADS"] == "1"
    assert started["fds"]["0"] == "/dev/null"
    assert started["fds"]["1"].startswith("pipe:")
    pid = started["pid"]
    assert started["sid"] == agent.pids()[proc]
    assert (pid == started["sid"]) == (line is not SHELL)
    assert guard.tag_of(pid) == proc
    assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "500\n"
    pipes = [target for target in open_fds(pid).values() if target.startswith("pipe:")]
    assert len(pipes) == 3  # its streams and its rope
    assert records(agent) == []


@WRAPPERS
@pytest.mark.fault
def test_its_end_is_reported_at_once_and_nothing_of_it_stays(agent, line):
    procs = start(agent, line, 3)
    pids = {agent.facts(proc)["pid"] for proc in procs}
    tree = {pid for proc in procs for pid in descendants(agent.pids()[proc])} | pids
    agent.send(procs[0], "grandchild", how="bare")
    agent.hear("done", procs[0])
    at = time.monotonic()
    os.kill(agent.pids()[procs[0]], signal.SIGKILL)
    exited = agent.hear("exited", procs[0])
    assert exited["signal"] == signal.SIGKILL
    assert agent.when("exited", procs[0]) - at < 1.0
    agent.send(procs[1], "exit_with", code=7)
    assert agent.hear("exited", procs[1])["code"] == 7
    agent.send(procs[2], "exit")
    assert agent.hear("exited", procs[2])["code"] == 0
    zygote = agent.hear("ready")["zygote"]
    eventually(lambda: not any(map(is_running, tree)), 5.0, "all of it gone")
    eventually(lambda: not descendants(zygote), 5.0, "the grandchild gone")


@pytest.mark.slow
@WRAPPERS
@pytest.mark.fault
@pytest.mark.parametrize("victim", ["zygote", "agent"])
def test_it_ends_with_the_zygote_and_with_the_agent(line, victim):
    with host() as agent:
        procs = start(agent, line, 2)
        pids = [agent.facts(proc)["pid"] for proc in procs]
        pid = agent.agent_pid if victim == "agent" else agent.hear("ready")["zygote"]
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not any(map(is_running, pids)), 5.0, "the ranks gone")


@pytest.mark.fault
def test_a_rank_in_another_session_ends_though_nobody_is_left_to_end_it(agent):
    script = f"setsid {sys.executable} -m {ENTRY} & wait"
    [proc] = start(agent, ["sh", "sh", "-c", script])
    pid = agent.facts(proc)["pid"]
    assert pid != agent.pids()[proc]
    stop(agent.agent_pid)  # it would look after the orphan
    os.kill(agent.hear("ready")["zygote"], signal.SIGKILL)
    os.kill(agent.agent_pid, signal.SIGKILL)
    eventually(lambda: not is_running(pid), 5.0)


def test_last_words_output_and_crashes(agent):
    [proc] = start(agent, ENV)
    agent.send(proc, "write", text="from C\n")
    assert eventually(lambda: agent.find("raw", proc))[0]["text"] == "from C\n"
    agent.send(proc, "segfault")
    exited = agent.hear("exited", proc)
    assert exited["signal"] == signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in exited["tail"]
    assert "ranks.py" in exited["tail"]


def test_a_command_that_ends_at_once(agent):
    [proc] = agent.spawn(1, commands=[["sh", "sh", "-c", "echo no licence >&2; exit 3"]])
    exited = agent.hear("exited", proc)
    assert (exited["code"], exited["tail"]) == (3, "no licence")
    assert exited["reason"] == (
        "`sh -c 'echo no licence >&2; exit 3'` ended before it was heard as a rank"
    )
    eventually(lambda: not records(agent), what="its boot record removed")


def test_a_shell_has_the_signals_of_a_shell(agent):
    """Python ignores SIGPIPE, and an exec would hand that on."""
    [proc] = agent.spawn(1, commands=[["sh", "sh", "-c", "yes | head -n 1; exit 3"]])
    assert agent.hear("exited", proc)["tail"] == "y"


@pytest.mark.slow
def test_a_command_that_never_is_a_rank_is_given_up():
    with host(start_s=0.5) as agent:
        fork = agent.spawn(1)[0]
        agent.up([fork])
        line = ["sh", "sh", "-c", "echo waiting; sleep 1000; true"]
        [proc] = agent.spawn(1, commands=[line])
        pid = agent.pids()[proc]
        family = eventually(lambda: descendants(pid)) | {pid}
        exited = agent.hear("exited", proc)
        assert "`sh -c 'echo waiting; sleep 1000; true'` was started" in exited["reason"]
        assert "never became a rank" in exited["reason"]
        assert (exited["signal"], exited["tail"]) == (signal.SIGKILL, "waiting")
        assert agent.find("silent") == []
        eventually(lambda: not any(map(is_running, family)), 5.0)
        assert agent.facts(fork)["pid"]


def test_a_stop_does_not_wait_for_a_command_for_ever(agent):
    [proc] = agent.spawn(1, commands=[["sleep", "sleep", "1000"]])
    assert agent.ask("stop", procs=[proc], grace_s=0.2) == {"ok": True}
    exited = agent.hear("exited", proc)
    assert (exited["asked"], exited["reason"]) == (True, None)
    assert not is_running(agent.pids()[proc])


@pytest.mark.parametrize(
    "program, why",
    [("/nowhere/python", "is not there"), ("no-such-program", "is not there"), (__file__, "may")],
)
def test_a_program_that_is_not_there(agent, program, why):
    procs = agent.new_ids(2)
    answer = agent.ask("spawn", procs=procs, commands=[[program, "x"], None])
    assert program in answer["error"]
    assert why in answer["error"]
    start(agent, PLAIN)


@pytest.mark.parametrize("command", ["ls", ["ls"], ["ls", 1], [], {}])
def test_a_command_that_is_none(agent, command):
    [proc] = agent.new_ids(1)
    assert "a command is" in agent.ask("spawn", procs=[proc], commands=[command])["error"]
    assert agent.ask("spawn", procs=[proc]) == {"ok": True}  # nothing of it was taken


def test_a_program_is_found_as_the_rank_would_find_it(agent, tmp_path):
    script = tmp_path / "wrapper"
    script.write_text(f"#!/bin/sh\nexec {sys.executable} -m {ENTRY}\n")
    script.chmod(0o755)
    paths = f"{tmp_path}:{os.environ['PATH']}"
    start(agent, ["wrapper", "wrapper"], env={"PATH": paths})
    where = {"cwd": str(tmp_path), "env": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}}
    start(agent, ["./wrapper", "wrapper"], **where)
    script.write_text("no interpreter\n")
    [proc] = agent.spawn(1, commands=[[str(script), "wrapper"]])
    exited = agent.hear("exited", proc)
    assert exited["code"] == 1
    assert exited["tail"] == f"cannot execute {script}: Exec format error"


def asker(**changes):
    mine = {"version": list(sys.version_info[:3]), "monarch_nb": VERSION, "prefix": sys.prefix}
    return {**mine, "path": ["/of/the/mesh"], **changes}


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"version": [3, 2, 1]}, ["3.2.1", sys.version.split()[0], "with a Python 3.2"]),
        ({"monarch_nb": "0.0.9"}, ["0.0.9", VERSION]),
    ],
)
def test_another_version_is_refused_in_one_line(agent, changes, said):
    [proc] = agent.spawn(1, commands=[PLAIN], python=asker(**changes))
    exited = agent.hear("exited", proc)
    assert exited["code"] == 1
    [line] = exited["tail"].splitlines()
    assert all(each in line for each in said), line


def test_another_patch_version_will_do_and_another_installation_has_its_own_libraries(agent):
    other = asker(version=[*sys.version_info[:2], 999], prefix="/another/venv")
    [proc] = start(agent, PLAIN, python=other)
    path = agent.facts(proc)["path"]
    assert path[0] == "/of/the/mesh"
    assert any(each.endswith("site-packages") for each in path)


def test_a_rank_is_there_once(agent):
    script = f"B=$MONARCH_NB_BOOT; {sys.executable} -m {ENTRY}; exec env {' '.join(PLAIN[1:])}"
    [proc] = start(agent, ["sh", "sh", "-c", script])
    agent.send(proc, "exit")
    exited = agent.hear("exited", proc)
    assert exited["code"] == 1
    assert "only once" in exited["tail"]


@pytest.mark.parametrize("hand_on, said", [(False, "not by hand"), (True, "only once")])
def test_it_is_not_started_by_hand(hand_on, said, tmp_path):
    env = {name: text for name, text in os.environ.items() if name != "MONARCH_NB_BOOT"}
    if hand_on:
        env["MONARCH_NB_BOOT"] = str(tmp_path / "gone")
    done = subprocess.run(PLAIN[1:], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
