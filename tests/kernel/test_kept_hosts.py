"""Meshes on hosts of jobs that outlive their kernel, with real kernels and real hosts: processes of
this machine that dial the kernel, as those of other engines do."""

import os
import re
import signal
import socket
import stat
import time

import psutil
import pytest

from monarch_nb.control.keeping import kept_record
from monarch_nb.core.wire.messages.codec import Refused
from monarch_nb.core.wire.messages.hosts import LetGo
from monarch_nb.net.hosts.joining import ask_to_let_go
from monarch_nb.net.keys import KeyPair
from tests import support
from tests.kernel.client import KernelClient
from tests.kernel.test_kept import ACTORS, COUNTS, END_S, LINES, kill, lines_of, ranks_of

pytestmark = pytest.mark.slow

UP = "%mesh up --on processes --hosts 2 --gpus 2 --device cpu --keep {}"
GROUP = """%%mesh
import torch, torch.distributed as dist
dist.init_process_group("gloo")
def total():
    one = torch.ones(1)
    dist.all_reduce(one)
    return int(one)"""
TALK = """from monarch_nb import Actor, endpoint

class Greeter(Actor):
    @endpoint
    def greet(self):
        return "hello"

class Guest(Actor):
    def __init__(self, greeters):
        self.greeters = greeters
    @endpoint
    def ask(self):
        return self.greeters.greet.call().get().values()

greeters = mesh0.spawn("greeters", Greeter)
guests = mesh0.spawn("guests", Guest, greeters)
guests.slice(hosts=0).ask.call().get()
"""

LATE_ONCE = """
import time
from monarch_nb.control.hosts.head import Head

take, asked = Head._take, []
def late(head, offered):
    answer = take(head, offered)
    asked.append(offered.host)
    if len(asked) == 1:
        time.sleep(2.5)
    return answer
Head._take = late"""


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """Of this test alone: others would be offered its meshes. It leaves no host, should it fail."""
    monkeypatch.setenv("MONARCH_NB_HOME", str(tmp_path / "keys"))
    yield
    for record in kept_record.all_records():
        for pid in hosts_of(record):
            if support.is_running(pid):
                os.kill(pid, signal.SIGKILL)
        record.end()


def the_record():
    [record] = kept_record.all_records()
    return record


def hosts_of(record) -> list[int]:
    """The processes of the hosts, in their order."""
    [(_, _, state)] = record.hosts.jobs
    return [pid for pid, _ in state["engine"]["processes"].values()]


def everything_below(pids: list[int]) -> list[int]:
    found = [psutil.Process(pid) for pid in pids]
    return [each.pid for host in found for each in [host, *host.children(recursive=True)]]


def none_left(pids: list[int]) -> None:
    support.eventually(lambda: not any(map(support.is_running, pids)), END_S, "all to end")


def test_a_kernel_is_killed_and_its_mesh_on_two_hosts_comes_back(tmp_path):
    told = tmp_path / "told"
    with KernelClient("monarch") as first:
        said = first.ok(UP.format("1h"), timeout_s=90).text()
        assert "mesh0 is up: 4 ranks (hosts=2 gpus=2)" in said
        assert "kept for 60 min without the kernel" in said
        first.ok(GROUP, timeout_s=60)
        assert "[11, 11, 11, 11]" in first.ok(ACTORS).text()
        running = first.start(COUNTS.format(str(told)))
        first.until(lambda: "line 5" in running.text())
        pids = everything_below(hosts_of(the_record()))
        for path in kept_record.folder_for("").rglob("*"):
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
        kill(first)
    assert all(map(support.is_running, pids))
    with KernelClient("monarch") as second:
        assert second.ok("1").shown.startswith(
            "mesh0 with 4 ranks is still there: %mesh attach mesh0\n"
        )
        listed = second.ok("%mesh list").text()
        assert "mesh0: hosts=2 gpus=2; kept for 60 min" in listed
        assert re.search(
            r"4 ranks busy \(cell In\[4\]\) for \d.*; alone for .*, ends in 60 min", listed
        )
        attach = second.ok("%mesh attach")
        assert "mesh0 (4 ranks (hosts=2 gpus=2)) is back" in attach.text()
        assert "variables: mesh0, sums" in attach.text()
        assert "cell In[4] still runs on ranks 0-3" in attach.text()
        told.touch()
        assert "[0, 100, 200, 300]" in second.ok("cell4.result().values()").shown
        second.until(lambda: len(lines_of(attach.text())) == 4 * LINES)
        found = lines_of(attach.text())
        assert set(found.values()) == {1}, "none lost, none doubled"
        for rank in range(4):
            assert [line for of, line in found if of == rank] == list(range(LINES)), "in order"
        assert "[0-3] 4" in second.ok("%%mesh\ntotal()").shown
        assert "[14, 14, 14, 14]" in second.ok("print(sums.add.call(3).get().values())").text()
        assert "2/2" in second.ok("%mesh jobs").shown
        assert "3 hosts now" in second.ok("%mesh scale --hosts 3", timeout_s=60).text()
        assert "[0-5] 6" in second.ok("%%mesh\n6").shown
        more = everything_below(hosts_of(the_record()))
        assert "are given back" in second.ok("%mesh down").text()
    none_left([*pids, *more])
    assert not kept_record.all_records()


def test_a_host_that_gets_its_answer_too_late_asks_again():
    """The kernel was busy for longer than a host waits, which is told the same once more."""
    with KernelClient("monarch") as first:
        first.ok(UP.format("1h"), timeout_s=90)
        first.ok("%%mesh\nx = rank")
        kill(first)
    with KernelClient("monarch") as second:
        second.ok(LATE_ONCE)
        assert "mesh0 (4 ranks (hosts=2 gpus=2)) is back" in second.ok("%mesh attach").text()
        assert "[0] 0\n[1] 1\n[2] 2\n[3] 3" in second.ok("%%mesh\nx").shown
        assert "True" in second.ok("len(asked) > len(set(asked)) == 2").shown
        second.ok("%mesh down")


def test_a_restart_leaves_it_and_ranks_of_both_hosts_talk_on():
    with KernelClient("monarch") as kernel:
        kernel.ok(UP.format("1h"), timeout_s=90)
        kernel.ok(TALK)
        pids = ranks_of(kernel)
        kernel.manager.restart_kernel(now=False)
        kernel.client.stop_channels()
        kernel.connect()
        assert "is back" in kernel.ok("%mesh attach mesh0").text()
        assert ranks_of(kernel) == pids
        told = kernel.ok("print(set(map(tuple, guests.ask.call().get().values())))").text()
        assert told == "{('hello', 'hello', 'hello', 'hello')}\n"
        kernel.ok("%mesh down")
    none_left(pids)


@pytest.mark.nightly
def test_nobody_comes_and_all_ends():
    with KernelClient("monarch") as kernel:
        kernel.ok(UP.format("3s"), timeout_s=90)
        pids = everything_below(hosts_of(the_record()))
        kill(kernel)
    assert all(map(support.is_running, pids))
    none_left(pids)


def test_it_is_ended_without_being_attached():
    with KernelClient("monarch") as kernel:
        kernel.ok(UP.format("1h"), timeout_s=90)
        pids = everything_below(hosts_of(the_record()))
        kill(kernel)
    with KernelClient("monarch") as kernel:
        assert "mesh0 is ended" in kernel.ok("%mesh down --kept mesh0").text()
        none_left(pids)
        assert "No mesh is up" in kernel.ok("%mesh list").text()


def test_the_first_cell_of_the_notebook_brings_it_back(monkeypatch):
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/ada/train.ipynb")
    up = UP.format("1h")
    with KernelClient("monarch") as kernel:
        kernel.ok(up, timeout_s=90)
        kernel.ok("%%mesh\nx = rank")
        pids = everything_below(hosts_of(the_record()))
        kill(kernel)
    with KernelClient("monarch") as kernel:
        refused = kernel.run(UP.format("1h").replace("--gpus 2", "--gpus 1")).error
        assert "is still there from before. Type: %mesh attach mesh0" in refused
        assert "mesh0 (4 ranks (hosts=2 gpus=2)) is back" in kernel.ok(up).text()
        assert "[0] 0\n[1] 1\n[2] 2\n[3] 3" in kernel.ok("%%mesh\nx").shown
        assert "is up already" in kernel.ok(up).text()
        kernel.ok("%mesh down")
    none_left(pids)


def test_what_dials_for_a_host_dies_while_no_kernel_is_there():
    with KernelClient("monarch") as kernel:
        kernel.ok(UP.format("1h"), timeout_s=90)
        first, second = hosts_of(the_record())
        others, pids = everything_below([first]), everything_below([second])
        kill(kernel)
        os.kill(second, signal.SIGKILL)
        none_left(pids)
        assert all(map(support.is_running, others))
    with KernelClient("monarch") as kernel:
        said = kernel.run("%mesh down --kept mesh0", timeout_s=20).error
        assert "mesh0 1 did not hear it: what runs there ends when its time is over" in said
    none_left(others)


def test_another_kernel_takes_it_away_and_strangers_do_not():
    with KernelClient("monarch") as first, KernelClient("monarch") as second:
        first.ok(UP.format("1h"), timeout_s=90)
        first.ok("%%mesh\nx = rank")
        hosts = the_record().hosts
        addresses = [at for _, at in hosts.head.listens]
        stolen = LetGo("0" * 64, "a stranger")
        assert ask_to_let_go(addresses, KeyPair.new(), stolen, 1.0) is None
        refused = ask_to_let_go(addresses, hosts.head.keys, stolen, 5.0)
        assert refused == Refused("nothing is kept here under this key")
        assert "is driven by process" in second.run("%mesh attach").error
        pid = first.manager.provisioner.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            refused = second.run("%mesh attach --fence").error
        finally:
            os.kill(pid, signal.SIGCONT)
        assert f"process {pid} drives these meshes, and does not answer: end it (kill {pid})" in (
            refused
        )
        second.ok("%mesh attach --fence")
        assert "[0] 0\n[1] 1\n[2] 2\n[3] 3" in second.ok("%%mesh\nx").shown
        lost = first.run("%%mesh\nx").error
        assert re.fullmatch(
            r"mesh0: another notebook has taken it over at \d\d:\d\d:\d\d. "
            r"%mesh attach mesh0 --fence brings it back here",
            lost,
        )
        first.ok("%mesh attach mesh0 --fence")
        assert "[0] 0\n[1] 1\n[2] 2\n[3] 3" in first.ok("%%mesh\nx").shown
        assert "taken it over" in second.run("%mesh get x").error
        first.ok("%mesh down")


def test_others_may_look_on_while_a_kernel_drives_it():
    with KernelClient("monarch") as first, KernelClient("monarch") as second:
        first.ok(UP.format("1h"), timeout_s=90)
        first.ok("%%mesh\nprint('before')\nimport os; os.write(1, b'of C before\\n')")
        look = second.ok("%mesh attach --view")
        assert "mesh0 (4 ranks (hosts=2 gpus=2)) is looked at" in look.text()
        assert "before" not in look.text()
        assert "4 idle" in second.ok("print(get_ipython().user_ns['mesh0'])\n%mesh status").shown
        first.ok("%%mesh\nprint('hello', rank)\nimport os; os.write(1, b'of C\\n')")
        second.until(lambda: all(f"[{rank}] hello {rank}" in look.text() for rank in range(4)))
        second.until(lambda: "of C\n" in look.text())
        assert look.text().count("hello") == 4, "each line once"
        logs = second.ok("%mesh logs").shown
        assert "[0-3] of C before\n" in logs
        assert "[0-3] before\n" in logs
        assert "looked at only" in second.run("%%mesh\n1").error
        assert "only looks at a mesh" in second.run("%mesh up --gpus 2").error
        pids = ranks_of(first)
        os.kill(pids[3], signal.SIGKILL)
        second.until(lambda: "1 exited" in second.ok("%mesh status").shown)
        first.ok("%mesh heal", timeout_s=60)
        first.ok("%%mesh\nprint('again', rank)")
        second.until(lambda: "[3] again 3" in look.text())
        assert "4 idle" in second.ok("%mesh status").shown
        assert "it goes on" in second.ok("%mesh down mesh0").text()
        assert "[0-3] 1" in first.ok("%%mesh\n1").shown
        again = second.ok("%mesh attach --view")
        kill(first)
        second.until(lambda: "mesh0: nobody drives it now" in again.text("stderr"))
        assert "No mesh is up" in second.run("%%mesh\n1").error
        assert second.run("%mesh attach --view").error == (
            "no other notebook drives mesh0, and of meshes on hosts of a job --view shows what one "
            "does. %mesh attach mesh0 brings it back; %mesh list says what its ranks do"
        )
        assert "is back" in second.ok("%mesh attach mesh0").text()
        assert "[0-3] 1" in second.ok("%%mesh\n1").shown
        second.ok("%mesh down")


@pytest.mark.nightly
def test_the_list_names_ranks_that_ended_and_hosts_that_do_not_answer():
    with KernelClient("monarch") as kernel:
        kernel.ok(UP.format("1h"), timeout_s=90)
        _, second = hosts_of(the_record())
        pids = ranks_of(kernel)
        cell = kernel.start("%%mesh 1\nimport time\nprint('begins')\ntime.sleep(1000)")
        kernel.until(lambda: "begins" in cell.text())
        kill(kernel)
    os.kill(pids[0], signal.SIGKILL)
    os.kill(second, signal.SIGSTOP)
    try:
        with KernelClient("monarch") as kernel:
            kernel.until(lambda: "1 rank ended" in kernel.ok("%mesh list").text())
            began = time.monotonic()
            listed = kernel.ok("%mesh list").text()
            assert time.monotonic() - began < END_S / 2
            assert re.search(
                r"1 rank busy \(cell In\[4\]\) for [^,]*, 1 rank ended, mesh0 1 cannot be heard; "
                r"alone for .*, ends in 60 min",
                listed,
            )
            os.kill(second, signal.SIGCONT)
            kernel.until(lambda: "2 ranks idle" in kernel.ok("%mesh list").text())
            kernel.ok("%mesh down --kept mesh0")
    finally:
        if support.is_running(second):
            os.kill(second, signal.SIGCONT)
    none_left(pids)


@pytest.mark.nightly
def test_an_agent_and_a_host_that_die_meanwhile_are_healed():
    with KernelClient("monarch") as kernel:
        kernel.ok(UP.format("1h"), timeout_s=90)
        kernel.ok("%%mesh\nx = rank")
        first, second = hosts_of(the_record())
        [agent] = psutil.Process(second).children()
        pids = everything_below([second])
        kill(kernel)
        os.kill(agent.pid, signal.SIGKILL)
        none_left(pids)
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh attach", timeout_s=30)
        assert "ranks 2-3" in kernel.run("%%mesh\nx").error
        kernel.ok("%mesh heal", timeout_s=60)
        assert "[0] 0\n[1] 1" in kernel.ok("%%mesh 0-1\nx").shown
        first, second = sorted(hosts_of(the_record()), key=lambda pid: pid != first)
        pids = everything_below([second])
        os.kill(second, signal.SIGKILL)  # what dials the kernel, while one is there
        none_left(pids)
        kernel.until(lambda: "lost" in kernel.run("%%mesh\n1").error)
        kernel.ok("%mesh heal", timeout_s=60)
        assert "[0-3] 1" in kernel.ok("%%mesh\n1").shown
        pids = everything_below(hosts_of(the_record()))
        kernel.ok("%mesh down")
    none_left(pids)


def test_a_program_at_the_address_gets_nothing_and_is_named():
    with KernelClient("monarch") as kernel:
        kernel.ok(UP.format("1h"), timeout_s=90)
        kernel.ok("%%mesh\nx = rank")
        [(_, at)] = the_record().hosts.head.listens
        kill(kernel)
    name, _, port = at.removeprefix("tcp://").rpartition(":")
    with socket.create_server((name, int(port))) as stranger, KernelClient("monarch") as kernel:
        stranger.settimeout(END_S)
        stranger.accept()[0].close()  # a host has come
        listed = kernel.ok("%mesh list").text()
        assert f"what its ranks do is not known: cannot listen at {at}" in listed
        refused = kernel.run("%mesh attach").error
        assert f"cannot listen at {at}" in refused
        assert "then type %mesh attach again" in refused
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh attach")
        assert "[0] 0\n[1] 1\n[2] 2\n[3] 3" in kernel.ok("%%mesh\nx").shown
        kernel.ok("%mesh down")


LATE = """from monarch_nb.core.wire.messages.keeping import ControllerGone
from monarch_nb.process import current
proc = current.running().proc
for process in mesh0._state.processes:
    proc.control(process, ControllerGone({}))"""


def test_the_end_of_the_kernel_before_may_be_heard_late():
    """The agent tells ranks of it, another way than the kernel comes that takes over."""
    with KernelClient("monarch") as first, KernelClient("monarch") as second:
        first.ok(UP.format("1h"), timeout_s=90)
        before = first.ok("from monarch_nb.process import current\ncurrent.running().proc.id").shown
        second.ok("%mesh attach --fence")
        second.ok(LATE.format(before.strip()))
        assert "[0-3] 2" in second.ok("%%mesh\n1 + 1").shown
        second.ok("%mesh down")
