"""Kills and stops of real processes: who is told, how soon, and that nothing is left.

Each goal is recorded; a test fails at ten times the goal, so a busy machine makes a slow run and
not a red one.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from monarch_nb.testing.processes import SESSION
from tests.host.support import AGENT, Host, host, wait
from tests.support import descendants, eventually, is_running, session_processes


def kill(pid, number=signal.SIGKILL):
    os.kill(pid, number)
    return time.monotonic()


def gone(pids, within_s=10.0):
    """When the last of them had ended."""
    eventually(lambda: not any(map(is_running, pids)), within_s, "their end")
    return time.monotonic()


def test_the_end_of_the_thread_that_started_it_ends_a_host_at_once():
    """So it begins before the memory of an owner that was killed is taken down."""
    made: list[Host] = []
    may_end = threading.Event()

    def start() -> None:
        made.append(Host())
        may_end.wait(60)

    thread = threading.Thread(target=start)
    thread.start()
    agent = eventually(lambda: made, 20)[0]
    try:
        agent.hear("ready", within_s=60)
        [proc] = agent.spawn(1)
        agent.up([proc])
        pids = [agent.agent_pid, *agent.pids().values()]
        os.kill(agent.agent_pid, signal.SIGCONT)  # as anybody may
        assert agent.ask("hello")["pid"] == agent.agent_pid
    finally:
        may_end.set()
        thread.join()
    gone(pids)
    agent.close()


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("deed", [None, "refuse_to_end"])
def test_a_killed_rank_is_reported_at_once(agent, goal, deed):
    procs = agent.spawn(2)
    agent.up(procs)
    if deed:
        agent.send(procs[0], deed)
        agent.hear("doing", procs[0])
    at = kill(agent.pids()[procs[0]])
    exited = agent.hear("exited", procs[0])
    assert (exited["signal"], exited["code"], exited["oom"]) == (signal.SIGKILL, None, False)
    goal("killed rank reported", agent.when("exited", procs[0]) - at, 0.1)
    assert agent.facts(procs[1])["pid"] == agent.pids()[procs[1]]
    assert len(agent.find("exited")) == 1


@pytest.mark.slow
@pytest.mark.fault
def test_a_stopped_rank_is_silent_and_heard_again(agent, goal):
    stopped, other = agent.spawn(2)
    agent.up([stopped, other])
    wait(1.0)  # until the links carry heartbeats
    at = kill(agent.pids()[stopped], signal.SIGSTOP)
    goal("stopped rank silent", agent.when("silent", stopped) - at, 2.5)
    at = kill(agent.pids()[stopped], signal.SIGCONT)
    goal("continued rank heard", agent.when("heard", stopped) - at, 2.0)
    assert agent.facts(stopped)["boot"]["proc"] == stopped
    assert agent.find("silent", other) == []
    assert len(agent.find("silent")) == len(agent.find("heard")) == 1


@pytest.mark.slow
def test_a_rank_that_holds_the_gil_is_not_silent(agent):
    [proc] = agent.spawn(1)
    agent.up([proc])
    agent.send(proc, "hold_gil", s=6)
    agent.hear("done", proc)
    assert agent.find("silent") == []


@pytest.mark.slow
@pytest.mark.fault
def test_a_rank_that_ends_by_itself_is_not_silent_first(agent):
    procs = agent.spawn(8)
    agent.up(procs)
    for proc in procs:
        agent.send(proc, "exit")
    for proc in procs:
        assert agent.hear("exited", proc)["code"] == 0
    assert agent.find("silent") == []


def ranks_with_children(agent):
    """Each has started a process of another kind."""
    procs = agent.spawn(4)
    agent.up(procs)
    for proc, how in zip(procs, ("exec", "bare", "fork", "daemon"), strict=True):
        agent.send(proc, "grandchild", how=how)
        agent.hear("done", proc)
    return procs


@pytest.mark.slow
@pytest.mark.fault
def test_every_rank_ends_with_the_zygote_and_another_takes_its_place(agent, goal):
    procs = ranks_with_children(agent)
    family = descendants(agent.agent_pid)
    at = kill(agent.hear("ready")["zygote"])
    exits = [agent.hear("exited", proc) for proc in procs]
    goal("ranks reported after the zygote's end", time.monotonic() - at, 0.5)
    goal("all gone after the zygote's end", gone(family) - at, 0.5)
    assert [exited["signal"] for exited in exits] == [signal.SIGKILL] * 4
    [failed] = agent.find("failed")
    assert "SIGKILL" in failed["text"]
    agent.up(agent.spawn(1))
    assert len(agent.find("exited")) == 4


@pytest.mark.slow
@pytest.mark.fault
def test_nothing_survives_the_agent(agent, goal):
    ranks_with_children(agent)
    family = descendants(agent.agent_pid)
    assert len(family) >= 9
    at = kill(agent.agent_pid)
    goal("all gone after the agent's end", gone(family) - at, 0.5)


@pytest.mark.slow
@pytest.mark.fault
def test_nothing_survives_the_agent_even_with_a_stopped_zygote(agent, goal):
    agent.up(agent.spawn(2))
    family = descendants(agent.agent_pid)
    os.kill(agent.hear("ready")["zygote"], signal.SIGSTOP)
    at = kill(agent.agent_pid)
    goal("all gone, the zygote was stopped", gone(family) - at, 0.5)


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("stop", ["", "owner", "agent"])
def test_nothing_survives_the_owner(goal, stop):
    with owner(4) as (process, facts):
        pids = [facts["agent"], facts["zygote"], *facts["ranks"]]
        family = descendants(process.pid)
        assert set(pids) < family
        if stop:
            os.kill(process.pid if stop == "owner" else facts["agent"], signal.SIGSTOP)
        at = kill(process.pid)
        process.wait()
        goal(f"all gone after the owner's end ({stop})", gone(family) - at, 1.0)
        eventually(lambda: not Path(facts["run_dir"]).exists(), what="the run dir's end")


@contextlib.contextmanager
def owner(count):
    name, _, value = SESSION.partition("=")
    with subprocess.Popen(
        [sys.executable, "-m", "tests.host.owner", str(count)],
        stdout=subprocess.PIPE,
        env={**os.environ, name: value},
    ) as process:
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("how", ["exec", "bare", "fork", "daemon"])
def test_what_a_rank_has_started_ends_with_it(agent, goal, how):
    doomed, other = agent.spawn(2)
    before = session_processes()
    for proc in (doomed, other):
        agent.send(proc, "grandchild", how=how)
        agent.hear("done", proc)

    def new():
        found = {pid for pid in descendants(agent.agent_pid) - before if is_running(pid)}
        return found if len(found) == 2 else None

    started = eventually(new, what="one grandchild each")
    at = kill(agent.pids()[doomed])
    agent.hear("exited", doomed)
    eventually(lambda: sum(map(is_running, started)) == 1, 10, "one grandchild gone")
    goal(f"grandchild gone ({how})", time.monotonic() - at, 1.0)
    wait(0.3)
    assert sum(map(is_running, started)) == 1, "the other rank's grandchild is none of its business"


@pytest.mark.slow
@pytest.mark.fault
def test_a_rank_that_eats_its_memory_is_said_to_have(needs):
    needs("memory_cgroup", "root")
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    root = Path("/sys/fs/cgroup/memory")
    own = next(line for line in lines if ":memory:" in line)
    group = root / f"mnb-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(400 << 20))
        (group / "cgroup.procs").write_text(str(os.getpid()))
        with host() as agent:
            (root / own.split(":")[2].lstrip("/") / "cgroup.procs").write_text(str(os.getpid()))
            [proc, other] = agent.spawn(2)
            agent.send(proc, "allocate", mib=2000)
            exited = agent.hear("exited", proc)
            assert (exited["signal"], exited["oom"]) == (signal.SIGKILL, True)
            assert exited["reason"].startswith("out of memory (limit 400 MiB, peak 400 MiB")
            agent.facts(other)
            at = kill(agent.pids()[other])
            assert not agent.hear("exited", other)["oom"], at
    finally:
        eventually(lambda: not (group / "cgroup.procs").read_text(), what="the group empty")
        group.rmdir()


@pytest.mark.fault
def test_a_zygote_that_is_loading_ends_with_its_agent(tmp_path, monkeypatch):
    loading = tmp_path / "loading"
    monkeypatch.setenv("MNB_TEST_LOADING", str(loading))
    with host(preload=("tests.host.endless",), ready=False) as agent:
        eventually(loading.exists)
        [zygote] = descendants(agent.agent_pid)
        kill(agent.agent_pid)
        gone([zygote], 5)


@pytest.mark.fault
def test_a_death_is_told_while_the_zygote_loads_more(tmp_path, monkeypatch):
    loading = tmp_path / "loading"
    monkeypatch.setenv("MNB_TEST_LOADING", str(loading))
    with host() as agent:
        procs = agent.spawn(2)
        agent.up(procs)
        agent.send(AGENT, "load", libraries=["tests.host.endless"], soon=True)
        eventually(loading.exists)
        kill(agent.pids()[procs[0]])
        assert agent.hear("exited", procs[0])["signal"] == signal.SIGKILL


@pytest.mark.fault
def test_a_zygote_that_loads_more_ends_with_its_agent(tmp_path, monkeypatch):
    loading = tmp_path / "loading"
    monkeypatch.setenv("MNB_TEST_LOADING", str(loading))
    with host() as agent:
        agent.send(AGENT, "load", libraries=["tests.host.endless"])
        eventually(loading.exists)
        kill(agent.agent_pid)
        gone([agent.hear("ready")["zygote"]], 5)
