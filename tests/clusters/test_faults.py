"""Rows 5, 6, 9, 21, 31 and 34 with ranks on two machines that were reached by ssh: what is lost is
named with its host, what is not goes on, and nothing is left."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from monarch_nb import MeshFailure, RankExited, RankUnreachable
from monarch_nb.control.client import client
from monarch_nb.host.rundir import sweep_all
from monarch_nb.job import SSHJob
from tests import inside
from tests.clusters.actors import Where, names
from tests.faults.actors import Worker
from tests.source import ROOT
from tests.support import descendants, describe_process, eventually, listening_ports, stop

pytestmark = [pytest.mark.slow, pytest.mark.fault, pytest.mark.timeout(120)]

OUTAGE_S = 6.0
SLACK = 5  # a busy machine makes a slow run, not a red one


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """What takes half a minute takes seconds here."""
    monkeypatch.setenv("MONARCH_NB_OUTAGE_S", f"{OUTAGE_S:g}")
    monkeypatch.setenv("MONARCH_NB_GRACE_S", "3")
    monkeypatch.setenv("MONARCH_NB_ATTACH_S", "3")


@pytest.fixture
def told(monkeypatch) -> list[MeshFailure]:
    """The failures that nobody waits for."""
    found: list[MeshFailure] = []
    monkeypatch.setattr("monarch_nb.unhandled_fault_hook", found.append, raising=False)
    return found


@pytest.fixture
def nodes(machines, sshd):
    """Two machines, and the options with which ssh logs in to them."""
    both = machines(2, home=True)
    config = sshd(both).config
    # a shared connection would stay for a while
    return both, ["-F", str(config), "-o", "ControlMaster=no", "-o", "ControlPath=none"]


@pytest.fixture
def made(nodes, attach, told):
    """Two ranks on each of the machines."""
    both, words = nodes
    job = SSHJob(sys.executable, words, env={"MONARCH_NB_OUTAGE_S": f"{OUTAGE_S:g}"})
    job.add_mesh("trainers", [each.name for each in both])
    procs = job.state(cached_path=None).trainers.spawn_procs(per_host={"gpus": 2})
    yield procs
    job.kill()
    for each in both:
        eventually(lambda each=each: not ours(each), 20, lambda each=each: left(each))


def ours(machine, what="monarch_nb"):
    """Processes on a machine with this in their command line; sshd goes on."""
    return [pid for pid in machine.processes() if what in describe_process(pid)]


def left(machine):
    return "\n".join(["nothing is left:", *map(describe_process, ours(machine))])


def agent_of(machine):
    [found] = ours(machine, "monarch_nb.host.agent")
    return found


def zygote_of(machine):
    agent = agent_of(machine)
    zygotes = ours(machine, "monarch_nb.host.zygote")
    [found] = [pid for pid in zygotes if len(descendants(pid) & set(zygotes)) == len(zygotes) - 1]
    assert found in descendants(agent)
    return found


# ------------------------------------------------------------------------------------------- row 5


@pytest.mark.parametrize(
    "victim, number, kind, goal_s, words",
    [
        ("zygote", signal.SIGKILL, RankExited, 0.5, "node2: the zygote (process "),
        ("agent", signal.SIGKILL, RankUnreachable, 0.5, "node2: its agent was ended by SIGKILL"),
        pytest.param(
            *("agent", signal.SIGSTOP, RankUnreachable, 2.5),
            "node2: its agent did not answer for ",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_all_ranks_of_the_host_end_and_the_others_go_on(
    made, nodes, told, victim, number, kind, goal_s, words
):
    [_, two], _ = nodes
    counters = made.spawn("counters", Worker)
    assert counters.add.call().get(30).values() == [1] * 4
    waiting = counters.slice(hosts=1).sleep.call(100.0)
    pid = {"agent": agent_of, "zygote": zygote_of}[victim](two)
    at = time.monotonic()
    if number == signal.SIGSTOP:
        stop(pid)
    else:
        os.kill(pid, number)
    error = waiting.exception(30)
    assert time.monotonic() - at < SLACK * goal_s
    assert type(error) is kind, error
    assert error.ranks == (2, 3)
    assert words in str(error)
    assert "for 0.0 s" not in str(error)
    assert counters.slice(hosts=0).add.call().get(5).values() == [2, 2]
    eventually(lambda: not ours(two, "host.zygote"), 10, lambda: left(two))
    assert [each for each in told if set(each.crashed_ranks) - {2, 3}] == []
    assert "lost ranks [2, 3]" in repr(made)
    made.heal()
    assert counters.add.call().get(30).values() == [3, 3, 1, 1]
    assert names(made.spawn("where", Where)) == ["node1", "node1", "node2", "node2"]


def test_a_host_that_is_stopped_is_silent_then_unreachable(made, nodes, told):
    """Every process of it, as a machine that is suspended."""
    [_, two], _ = nodes
    counters = made.spawn("counters", Worker)
    assert counters.add.call().get(30).values() == [1] * 4
    waiting = counters.slice(hosts=1).sleep.call(100.0)
    for pid in ours(two):
        stop(pid)
    eventually(lambda: "silent ranks [2, 3]" in repr(made), SLACK * 2.5)
    assert counters.slice(hosts=0).add.call().get(5).values() == [2, 2]
    error = waiting.exception(30)
    assert isinstance(error, RankUnreachable)
    assert error.ranks == (2, 3)
    assert "node2: nothing was heard of it for " in str(error)
    for pid in ours(two):
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: not ours(two), 30, lambda: left(two))


# ------------------------------------------------------------------------------------------- row 9


@pytest.mark.parametrize("seconds", [1.0, pytest.param(3.5, marks=pytest.mark.nightly)])
def test_an_outage_loses_and_doubles_no_call(made, nodes, told, seconds):
    [_, two], _ = nodes
    counter = made.slice(hosts=1, gpus=0).spawn("counter", Worker)
    assert counter.add.call_one().get(30) == 1
    waiting = []

    def call() -> None:
        for _ in range(5_000):
            waiting.append(counter.add.call_one())

    calling = threading.Thread(target=call)
    calling.start()
    eventually(lambda: len(waiting) > 1_000)
    with two.cut_off():
        at = time.monotonic()
        if seconds > 2:
            eventually(lambda: client().supervision.silent, 5.0, "it is shown as silent")
            assert "silent ranks [2, 3]" in repr(made)
        threading.Event().wait(max(0.0, at + seconds - time.monotonic()))
    calling.join()
    assert [each.get(30) for each in waiting] == list(range(2, 5_002))
    eventually(lambda: not client().supervision.silent, 10.0)
    assert told == []


def test_what_is_cut_off_for_too_long_ends_by_itself_and_is_healed(made, nodes, told):
    [_, two], _ = nodes
    counters = made.spawn("counters", Worker)
    assert counters.add.call().get(30).values() == [1] * 4
    waiting = counters.slice(hosts=1).add.call()
    assert waiting.get(10).values() == [2, 2]
    with two.cut_off():
        lost = counters.slice(hosts=1).add.call().exception(30)
        assert isinstance(lost, RankUnreachable)
        assert "node2: " in str(lost)
        eventually(lambda: not ours(two), 4 * OUTAGE_S, lambda: left(two))
    made.heal()
    assert counters.add.call().get(30).values() == [2, 2, 1, 1]


@pytest.mark.parametrize("way", ["to it", "from it"])
def test_a_network_that_loses_one_way_only_is_an_outage_too(made, nodes, told, machines, way):
    [_, two], _ = nodes
    counters = made.spawn("counters", Worker)
    assert counters.add.call().get(30).values() == [1] * 4
    route = ["ip", "route", "add", "blackhole"]
    away = ["ip", "route", "del", "blackhole"]

    def go(command: list[str]) -> None:
        if way == "from it":
            two.run([*command, machines.address])
        else:
            subprocess.run([*command, two.address], check=True, capture_output=True)

    go(route)
    try:
        eventually(lambda: "silent ranks [2, 3]" in repr(made), SLACK * 2.5)
        waiting = counters.slice(hosts=1).add.call()
    finally:
        go(away)
    assert waiting.get(20).values() == [2, 2]
    eventually(lambda: "silent" not in repr(made), 10.0)
    assert counters.add.call().get(20).values() == [2, 2, 3, 3]
    assert told == []


# ------------------------------------------------------------------------------------------- row 6


PROGRAM = """
import sys
from monarch_nb.job import SSHJob
job = SSHJob(sys.argv[1], sys.argv[2:])
job.add_mesh("trainers", ["node1", "node2"])
procs = job.state(cached_path=None).trainers.spawn_procs(per_host={"gpus": 2})
procs.initialized.get(60)
print("there", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["killed", "stopped and killed", "ended"])
def test_nothing_is_left_on_any_host_when_the_program_has_gone(nodes, attach, how):
    both, words = nodes
    command = [sys.executable, "-c", PROGRAM, sys.executable, *words]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as program:
        assert program.stdout.readline() == "there\n"
        assert all(map(ours, both))
        at = time.monotonic()
        if how == "ended":
            program.stdin.close()
        else:
            if how == "stopped and killed":
                stop(program.pid)
            program.kill()
        for each in both:
            eventually(lambda each=each: not ours(each), SLACK * 3.0, lambda each=each: left(each))
        print(f"row 6, {how}: nothing left after {time.monotonic() - at:.1f} s (goal 3)")
    sweep_all()  # its run dir, as the next client does


# ------------------------------------------------------------------------------------------ row 21


NOISE = """
import socket, ssl, sys, os
for place in sys.argv[1:]:
    host, port = place.rsplit(":", 1)
    for what in (b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n", os.urandom(4096), b"",
                 b"\\x16\\x03\\x01\\x02\\x00\\x01\\x00\\x01\\xfc\\x03\\x03" + os.urandom(500),
                 b"\\xff" + bytes(8) + b"\\x7f\\x03\\x00NULL" + bytes(48),
                 b"\\xff\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x01\\x7f\\x03\\x00CURVE" + bytes(47) + os.urandom(300)):
        for _ in range(50):
            try:
                with socket.create_connection((host, int(port)), 5) as one:
                    one.sendall(what)
            except OSError:
                pass
print("done")
"""  # noqa: E501


def test_strangers_at_every_port_reach_nothing(made, nodes, machines, told):
    """HTTP, TLS, noise, ZeroMQ without a key and with a wrong one, from a third machine."""
    both, _ = nodes
    [stranger] = machines(1)
    counters = made.spawn("counters", Worker)
    assert counters.add.call().get(30).values() == [1] * 4
    places = [f"{machines.address}:{each.split()[-1]}" for each in ports(os.getpid())]
    for machine in both:
        found = {each for pid in ours(machine) for each in ports(pid)}
        assert found, "others connect to it"
        places += [f"{machine.address}:{each.split()[-1]}" for each in found]
    asking = stranger.popen([sys.executable, "-c", NOISE, *places], stdout=-1, text=True)
    count = 1
    longest = 0.0
    while asking.poll() is None:
        at = time.monotonic()
        count += 1
        assert counters.add.call().get(10).values() == [count] * 4
        longest = max(longest, time.monotonic() - at)
    assert asking.stdout.read() == "done\n"
    assert longest < 1.0
    assert counters.add.call().get(10).values() == [count + 1] * 4
    assert told == []


def ports(pid: int) -> set[str]:
    """Where others can reach a process."""
    return {each for each in listening_ports(pid) if not each.startswith(("127.", "::1"))}


# ------------------------------------------------------------------------------------------ row 31


PATCH = """
import importlib.metadata, platform
real = importlib.metadata.version
importlib.metadata.version = lambda name: {versions}.get(name) or real(name)
if {python!r}:
    platform.python_version = lambda: {python!r}
"""


@pytest.mark.parametrize("what, version", [("Python", "3.9.1"), ("monarch_nb", "0.0.1")])
def test_a_host_with_another_version_is_refused_with_both(nodes, attach, tmp_path, what, version):
    both, words = nodes
    (tmp_path / "other").mkdir()
    ours_too = what == "monarch_nb"
    text = PATCH.format(versions={}, python="" if ours_too else version)
    if ours_too:
        text += "import monarch_nb.host.versions as v\nv.VERSION = '0.0.1'\n"
    (tmp_path / "other/sitecustomize.py").write_text(text)
    python = tmp_path / "python"
    path = f"{tmp_path}/other:{ROOT}"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {sys.executable} "$@"\n')
    python.chmod(0o700)
    job = SSHJob(str(python), words)
    job.add_mesh("trainers", [each.name for each in both])
    with pytest.raises(RuntimeError, match=f"node. did not join: .*{what} {version} is") as said:
        job.state(cached_path=None).trainers.initialized.get(60)
    assert "here" in str(said.value)
    job.kill()
    for each in both:
        eventually(lambda each=each: not ours(each), 20)


# ------------------------------------------------------------------------------------------ row 34


def test_a_login_that_ends_takes_no_host_along_that_is_reached_without_it(made, nodes, told):
    [_, two], _ = nodes
    counters = made.spawn("counters", Worker)
    assert counters.add.call().get(30).values() == [1] * 4
    for pid in two.processes():
        if "sshd: " in describe_process(pid) or "sshd-session" in describe_process(pid):
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: not ours(two, "sshd: root"), 5)
    for count in range(2, 6):
        assert counters.add.call().get(10).values() == [count] * 4
    assert told == []


@pytest.mark.nightly
def test_the_ranks_of_a_host_that_no_login_reaches_again_go_beside_others(made, nodes, told):
    [_, two], _ = nodes
    assert names(made.spawn("where", Where)) == ["node1", "node1", "node2", "node2"]
    two.lose_power()
    eventually(lambda: inside.lost(made) == [2, 3], 4 * OUTAGE_S)
    made.heal()
    assert names(made.spawn("again", Where)) == ["node1"] * 4
