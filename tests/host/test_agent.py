"""An agent with real ranks: what a spawn gives, what an end reports."""

import mmap
import os
import signal
import socket
import sys
import threading
from pathlib import Path

import pytest
import torch

from monarch_nb.host.launch import PRELOAD
from tests.host.support import AGENT, CONTROLLER, host
from tests.support import eventually, is_running

HUGE = 2 << 20


def can_collapse() -> bool:
    """Whether this kernel puts pages together on demand."""
    with mmap.mmap(-1, 2 * HUGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.write(bytes(2 * HUGE))
        try:
            memory.madvise(25)
        except OSError:
            return False
        return True


def in_huge_pages(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    [found] = [line.split()[1] for line in lines if line.startswith("AnonHugePages")]
    return int(found) << 10


def test_ready_says_who_and_with_what(agent):
    ready = agent.hear("ready")
    assert ready["pid"] == agent.agent_pid
    assert ready["threads"] == 1
    assert ready["versions"]["python"] == sys.version.split()[0]


def test_four_ranks_each_in_its_place(agent):
    procs = agent.spawn(
        4,
        b"a bootstrap pickle",
        labels=["hosts", "gpus"],
        sizes=[1, 4],
        slots=[1, 2, 0, 3],
        rank_env=[{"MINE": str(index)} for index in range(4)],
        env={"ALL": "yes", "HOME": None, "CUDA_VISIBLE_DEVICES": "3,4,5"},
    )
    found = [agent.facts(proc) for proc in procs]
    zygote = agent.hear("ready")["zygote"]
    for index, (proc, facts) in enumerate(zip(procs, found, strict=True)):
        boot = facts["boot"]
        assert (boot["proc"], boot["rank"], boot["local_rank"]) == (proc, index, index)
        assert (boot["world_size"], boot["host_size"]) == (4, 4)
        assert (boot["agent"], boot["controller"], boot["owner"]) == (AGENT, CONTROLLER, CONTROLLER)
        assert boot["device"] == ["cuda:1", "cuda:2", "cuda:0", "cuda:0"][index]
        assert boot["bootstrap"] == "YSBib290c3RyYXAgcGlja2xl"
        assert facts["pid"] == facts["sid"] == agent.pids()[proc]
        assert facts["ppid"] == zygote
        assert (facts["env"]["MINE"], facts["env"]["ALL"]) == (str(index), "yes")
        assert facts["env"]["MONARCH_NB_PROC"] == str(proc)
        assert "HOME" not in facts["env"]
        assert facts["fds"]["0"] == "/dev/null"
        assert facts["fds"]["1"].startswith("pipe:")
        assert facts["sigterm"] == str(signal.SIG_DFL.value)
    assert len({facts["random"] for facts in found}) == 4
    assert len({facts["boot"]["board"][1] for facts in found}) == 4


def test_folder_import_path_processors_and_thread_count(agent, tmp_path):
    path = [*sys.path, "/nowhere"]
    [proc] = agent.spawn(1, cwd=str(tmp_path), path=path, bind=[{"cpus": [0]}])
    facts = agent.facts(proc)
    assert facts["cwd"] == str(tmp_path)
    assert facts["path"] == path
    assert facts["cpus"] == [0]
    assert facts["env"]["OMP_NUM_THREADS"] == "1"


def test_a_thread_count_of_the_users_stays(agent):
    [proc] = agent.spawn(1, env={"OMP_NUM_THREADS": "7"})
    assert agent.facts(proc)["env"]["OMP_NUM_THREADS"] == "7"


def test_a_folder_that_is_not_there_is_said(agent):
    [proc] = agent.spawn(1, cwd="/nowhere/at/all")
    exited = agent.hear("exited", proc)
    assert exited["code"] == 1
    assert "/nowhere/at/all" in exited["tail"]


def test_sixty_four_ranks(agent, record_property):
    procs = agent.spawn(64)
    agent.up(procs)
    assert len(set(agent.pids().values())) == 64
    assert agent.ask("stop", procs=procs, grace_s=10) == {"ok": True}
    assert all(agent.hear("exited", proc)["code"] == 0 for proc in procs)


@pytest.mark.parametrize("deed, code, number, said", [
    ({"verb": "exit_with", "code": 3}, 3, None, ""),
    ({"verb": "abort"}, None, signal.SIGABRT, "Fatal Python error: Aborted"),
    ({"verb": "segfault"}, None, signal.SIGSEGV, "Fatal Python error: Segmentation fault"),
])  # fmt: skip
def test_an_end_is_reported_with_its_cause_and_last_words(agent, deed, code, number, said):
    [proc] = agent.spawn(1)
    agent.send(proc, "write", text="about to go\n", fd=2)
    agent.hear("done", proc)
    agent.send(proc, **deed)
    exited = agent.hear("exited", proc)
    assert (exited["code"], exited["signal"], exited["oom"]) == (code, number, False)
    assert exited["tail"].startswith("about to go")
    assert said in exited["tail"]
    assert len(agent.find("exited", proc)) == 1


def test_a_main_that_raises_ends_with_its_traceback():
    with host(main="tests.host.ranks:refuse") as agent:
        [proc] = agent.spawn(1)
        exited = agent.hear("exited", proc)
        assert exited["code"] == 1
        assert exited["tail"].endswith("RuntimeError: rank 0 does not want to")


def test_a_zygote_that_cannot_start_says_why():
    with host(preload=("no_such_module",), ready=False) as agent:
        failed = agent.hear("failed")
        assert failed["stage"] == "zygote"
        assert "No module named 'no_such_module'" in failed["text"]


def test_the_board_is_sent_while_somebody_looks(agent):
    [proc] = agent.spawn(1)
    place = agent.facts(proc)["boot"]["board"]
    agent.send(proc, "board", board=place, what="trainer.step()")
    agent.hear("done", proc)
    assert agent.find("board") == []
    agent.ask("status", on=True)

    def seen(field):
        return [row for body in agent.find("board") for row in body[field]]

    [rank] = eventually(lambda: [row for row in seen("ranks") if row[1] == "busy"])
    assert (rank[0], *rank[3:]) == (proc, "trainer.step()", 5, 7, 2, 1, 1)
    [told] = [body for body in agent.find("board") if rank in body["ranks"]]
    assert 0 <= told["now_ns"] - rank[2] < 20e9
    [usage] = eventually(lambda: [row for row in seen("usage") if row[2]])[:1]
    assert usage[0] == proc
    agent.ask("status", on=False)


def test_an_agent_samples_as_fast_as_it_is_asked_to(agent):
    [proc] = agent.spawn(1)
    place = agent.facts(proc)["boot"]["board"]
    assert agent.ask("status", on=True, period_s=10)["host"] == socket.gethostname()
    agent.send(proc, "board", board=place, what="first")
    agent.hear("done", proc)
    agent.ask("hello")
    assert [row for body in agent.find("board") for row in body["ranks"] if row[3]] == []
    agent.ask("status", on=True, period_s=0.1)
    agent.send(proc, "board", board=place, what="second")

    def told():
        return {row[3] for body in agent.find("board") for row in body["ranks"]}

    eventually(lambda: "second" in told())
    assert "period_s: str" in agent.ask("status", on=True, period_s="often")["error"]


@pytest.mark.fault
def test_stop_gives_grace_and_then_kills(agent):
    polite, stubborn = agent.spawn(2)
    agent.send(stubborn, "refuse_to_end")
    agent.hear("doing", stubborn)
    assert agent.ask("stop", procs=[polite, stubborn], grace_s=0.5) == {"ok": True}
    assert agent.hear("exited", polite)["code"] == 0
    exited = agent.hear("exited", stubborn)
    assert (exited["signal"], exited["oom"]) == (signal.SIGKILL, False)


def test_kill_sends_any_signal(agent):
    [proc] = agent.spawn(1)
    agent.up([proc])
    agent.ask("kill", procs=[proc, 9999], signal=signal.SIGTERM)
    assert agent.hear("exited", proc)["signal"] == signal.SIGTERM


@pytest.mark.fault
def test_ranks_of_a_rank_end_with_it(agent):
    [parent] = agent.spawn(1)
    [child] = agent.spawn(1, owner=parent)
    agent.up([parent, child])
    agent.ask("kill", procs=[parent], signal=signal.SIGKILL)
    assert agent.hear("exited", child)["code"] == 0


@pytest.mark.parametrize("verb, fields, said", [
    ("dance", {}, "dance: an agent knows spawn, stop"),
    ("spawn", {"procs": "all"}, "Spawn.procs: str, not list"),
    ("spawn", {"procs": [5, 5]}, "named twice"),
    ("spawn", {"procs": [5], "slots": []}, "one entry for each of 1 ranks"),
    ("spawn", {"procs": list(range(100, 6000))}, "room for 4096"),
    ("spawn", {"procs": list(range(100, 1100)), "commands": [["env", "env"]] * 1000},
     "1000 ranks need about 195.3 GiB of memory before they do anything"),
    ("stop", {}, "procs"),
    ("kill", {"procs": [1], "signal": 9999}, "9999"),
])  # fmt: skip
def test_a_bad_request_is_answered_and_changes_nothing(agent, verb, fields, said):
    assert said in agent.ask(verb, **fields)["error"]
    agent.spawn(1)


def test_an_id_is_used_once(agent):
    [proc] = agent.spawn(1)
    agent.ask("stop", procs=[proc], grace_s=5)
    assert "used once" in agent.ask("spawn", procs=[proc])["error"]


def test_noise_is_dropped(agent):
    for frame in (b"", b"x", os.urandom(60)):
        agent.links.outbox(AGENT).send(frame)
    agent.spawn(1)


def test_shutdown_ends_all_and_the_agent(agent):
    procs = agent.spawn(2)
    assert agent.ask("shutdown", grace_s=5) == {"ok": True}
    eventually(lambda: agent.launcher.poll() == 0, what="the agent's end")
    assert [agent.find("exited", proc)[0]["code"] for proc in procs] == [0, 0]
    assert "shutting down" not in agent.launcher.last_words()


def test_the_agent_is_light(agent):
    maps = Path(f"/proc/{agent.agent_pid}/maps").read_text()
    assert "torch" not in maps
    assert "numpy" not in maps


@pytest.mark.slow
def test_a_zygote_with_torch_has_one_thread_and_its_ranks_differ():
    with host(preload=PRELOAD) as agent:
        ready = agent.hear("ready")
        assert ready["threads"] == 1
        assert ready["versions"]["torch"] == torch.__version__
        tasks = os.listdir(f"/proc/{ready['zygote']}/task")
        assert tasks == [str(ready["zygote"])]
        found = [agent.facts(proc) for proc in agent.spawn(4)]
        assert all(facts["modules"] == ["torch", "IPython", "numpy"] for facts in found)
        assert {facts["torch_threads"] for facts in found} == {max(1, os.cpu_count() // 4)}
        assert len({facts["torch_random"] for facts in found}) == 4
        pids = list(agent.pids().values())
    assert not any(map(is_running, pids))


@pytest.mark.slow
def test_a_zygote_loads_what_ranks_ask_for_and_keeps_one_thread():
    with host() as agent:
        zygote = agent.hear("ready")["zygote"]
        [light] = agent.spawn(1)
        assert agent.facts(light)["modules"] == []
        found = [agent.facts(proc) for proc in agent.spawn(4, libraries=["torch", "numpy"])]
        assert all(facts["modules"] == ["torch", "numpy"] for facts in found)
        assert {facts["torch_threads"] for facts in found} == {max(1, os.cpu_count() // 4)}
        assert len({facts["torch_random"] for facts in found}) == 4
        assert os.listdir(f"/proc/{zygote}/task") == [str(zygote)]


def test_a_zygote_loads_what_will_be_needed_before_it_forks_again(agent):
    agent.send(AGENT, "load", libraries=["cmath", "no_such_library"])
    [proc] = agent.spawn(1)
    agent.up([proc])
    assert "no_such_library" in agent.launcher.last_words()


@pytest.mark.slow
def test_an_idle_zygote_loads_what_the_first_optimizer_of_a_rank_would():
    def a_new_rank_has_it() -> bool:
        threading.Event().wait(1.2)  # each spawn makes it wait anew until it is idle
        [proc] = agent.spawn(1)
        return agent.facts(proc)["has_dynamo"]

    with host(preload=PRELOAD) as agent:
        zygote = agent.hear("ready")["zygote"]
        eventually(a_new_rank_has_it, within_s=20)
        assert os.listdir(f"/proc/{zygote}/task") == [str(zygote)]


@pytest.mark.skipif(not can_collapse(), reason="Linux before 6.1, or without huge pages")
def test_the_memory_of_an_idle_zygote_is_in_huge_pages():
    with host(preload=("numpy",)) as agent:
        zygote = agent.hear("ready")["zygote"]
        eventually(lambda: in_huge_pages(zygote) >= HUGE, 20.0, "huge pages")
        [proc] = agent.spawn(1)
        assert agent.facts(proc)


def test_a_batch_of_requests_is_taken_apart(agent):
    from monarch_nb.core.wire import frames

    ports = [5001, 5002]
    requests = [
        frames.HEADER.pack(frames.CONTROL, 0, 0, 0, 0, 0, CONTROLLER, port) + b'{"verb": "hello"}'
        for port in ports
    ]
    agent.links.outbox(AGENT).send(frames.pack_batch(requests))
    for port in ports:
        assert eventually(lambda port=port: agent.answers.get(port))["pid"] == agent.agent_pid
