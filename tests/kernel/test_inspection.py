"""`monarch-nb status | logs | stacks | debug --list`: what a terminal tells of running kernels."""

import contextlib
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from monarch_nb.control.inspection.answering import MAX_VISITS
from monarch_nb.host.rundir import owners
from tests.kernel.client import Cell, KernelClient
from tests.support import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

COMMAND = [sys.executable, "-m", "monarch_nb.control.cli"]
MESH = f"mesh_{uuid.uuid4().hex[:8]}"  # other kernels of this user may run meanwhile
WORK = """%%mesh
import time
print("same", flush=True)
print("rank", rank, flush=True)
def step():
    while not released.exists():
        time.sleep(0.01)
if rank < 2:
    step()
"""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inspection") / "release"


@pytest.fixture(scope="module")
def kernel(release: Path) -> Iterator[KernelClient]:
    with KernelClient("monarch") as client:
        client.ok(f"%mesh up --gpus 3 --name {MESH}", timeout_s=60)
        client.ok(f"%%mesh\nimport pathlib\nreleased = pathlib.Path({str(release)!r})")
        yield client


@pytest.fixture
def busy(kernel: KernelClient, release: Path) -> Iterator[Cell]:
    """The kernel's main thread waits, and two of three ranks run."""
    cell = kernel.start(WORK)
    kernel.until(lambda: all(f"rank {rank}" in cell.text() for rank in range(3)))
    yield cell
    release.touch()
    kernel.finish(cell)
    release.unlink()
    assert cell.status == "ok"


def pid_of(kernel: KernelClient) -> int:
    pid: int = kernel.manager.provisioner.pid
    return pid


def typed(*words: object) -> tuple[int, str, str]:
    """A command, to its end: exit code, output, errors."""
    done = subprocess.run(
        [*COMMAND, *map(str, words)], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr


def shown(*words: object) -> list[str]:
    code, out, err = typed(*words)
    assert code == 0, (out, err)
    return out.splitlines()


def told(*words: object) -> dict:
    """The answer of the one kernel that is meant."""
    code, out, err = typed(*words, "--json")
    assert (code, err) == (0, "")
    whole = json.loads(out)
    assert (whole["schema"], whole["command"]) == (1, words[0])
    [found] = whole["kernels"]
    return found


# ------------------------------------------------------------------------------------------ status


def test_status_tells_what_ranks_do_while_a_cell_runs(kernel, busy):
    lines = shown("status", "--kernel", pid_of(kernel))
    assert lines[0].startswith(f"{pid_of(kernel)}  ")
    assert lines[1].startswith(f"{MESH}: 3 ranks, 2 busy, 1 idle; gpus=3 on ")
    assert lines[2].split() == ["ranks", "state", "for", "doing"]
    first, second = (line.split() for line in lines[3:5])
    assert (first[:2], first[-3:]) == (["0-1", "busy"], ["s", "cell", first[-1]])
    assert second[:2] == ["2", "idle"]


def test_status_is_json_for_programs(kernel, busy):
    found = told("status", "--kernel", pid_of(kernel), "--each")
    assert (found["pid"], found["error"], found["notebook"]) == (pid_of(kernel), None, None)
    assert "monarch_kernel" in found["command"]
    [mesh] = found["meshes"]
    assert (mesh["name"], mesh["axes"], mesh["size"]) == (MESH, {"gpus": 3}, 3)
    assert mesh["states"] == {"busy": 2, "idle": 1}
    works, idles = mesh["groups"]
    assert (works["ranks"], works["count"], works["state"]) == ("0-1", 2, "busy")
    assert works["what"].startswith("cell In[")
    assert works["for_s"] > 0
    assert (idles["ranks"], idles["what"]) == ("2", "")
    assert [each["coords"] for each in mesh["ranks"]] == [{"gpus": at} for at in range(3)]
    assert all(psutil.pid_exists(each["pid"]) for each in mesh["ranks"])
    assert all(each["rss_bytes"] > 1 << 20 for each in mesh["ranks"])


def test_failures_are_told_once_for_all_ranks_alike(kernel):
    kernel.run("%%mesh\nif rank: raise ValueError('bad batch')")
    [mesh] = told("status", "--kernel", pid_of(kernel))["meshes"]
    failure = mesh["failures"][0]
    assert (failure["ranks"], failure["error"]) == ("1-2", "ValueError: bad batch")
    line = next(
        each for each in shown("status", "--kernel", pid_of(kernel)) if each.startswith("failed ")
    )
    assert line.endswith("ranks 1-2: ValueError: bad batch")


def test_what_failed_is_told_after_a_heal_too():
    name = f"mesh_{uuid.uuid4().hex[:8]}"
    with KernelClient("monarch") as kernel:
        kernel.ok(f"%mesh up --gpus 2 --name {name}", timeout_s=60)
        cell = (
            "%%mesh\nimport os\nprint('last words of', rank, flush=True)\n"
            "if rank: os.kill(os.getpid(), 9)"
        )
        number = kernel.run(cell).reply["content"]["execution_count"]
        assert "healed" not in kernel.ok("%mesh errors --history").text()
        kernel.ok("%mesh heal")
        told_again = kernel.ok("%mesh errors --history").text()
        head, *lines = told_again.splitlines()
        died = rf"\d\d:\d\d:\d\d\.\d{{3}}, \S+ s ago, {name} rank 1, cell In\[{number}\]"
        assert re.fullmatch(died, head)
        assert "RankExited: the process was killed by signal 9 (SIGKILL)" in lines[0]
        assert lines[-3:-1] == ["  what rank 1 had written:", "    last words of 1"]
        assert re.fullmatch(r"  healed \S+ s later: a new process", lines[-1])
        assert (
            kernel.ok("%mesh errors 0 --history").text() == "nothing has failed on the ranks yet\n"
        )
        [mesh] = told("status", "--kernel", pid_of(kernel))["meshes"]
        assert mesh["failures"] == []
        [past] = mesh["past_failures"]
        assert (past["ranks"], past["what"]) == ("1", f"cell In[{number}]")
        assert past["became"].startswith("healed ")


def test_a_failed_call_is_told_too(kernel):
    kernel.ok(
        "from monarch_nb import Actor, endpoint\n"
        "class Trainer(Actor):\n"
        "    @endpoint\n"
        "    def step(self): raise RuntimeError('no data')\n"
        f"trainers = {MESH}.spawn('trainers', Trainer)"
    )
    assert kernel.run("trainers.step.call().get()").status == "error"

    def failures() -> list[tuple[str, str]]:
        [mesh] = told("status", "--kernel", pid_of(kernel))["meshes"]
        return [(each["ranks"], each["error"]) for each in mesh["failures"]]

    # the call fails with the first rank that does
    eventually(lambda: ("0-2", "RuntimeError: no data") in failures(), 10, lambda: str(failures()))


def test_in_a_terminal_there_are_colours(kernel):
    kernel.ok("%%mesh\n1")
    words = [*COMMAND, "status", "--kernel", str(pid_of(kernel))]
    terminal, end = pty.openpty()
    with (
        open(terminal, "rb", buffering=0) as screen,
        subprocess.Popen(words, stdout=end, env={**os.environ, "TERM": "xterm"}) as command,
    ):
        os.close(end)
        said = b""
        while b"\x1b[32midle" not in said:
            said += screen.read(4096)
        assert command.wait(20) == 0


# ------------------------------------------------------------------------------------- logs, stacks


def test_logs_have_the_last_lines_equal_ones_once(kernel, busy):
    code, out, err = typed("logs", MESH)
    assert code == 0
    assert out.endswith("[0-2] same\n[0] rank 0\n[1] rank 1\n[2] rank 2\n"), out
    assert err.startswith(f"whole logs of {MESH}: /")
    assert shown("logs", MESH, "--ranks", "0,2", "--tail", 1) == ["[0] rank 0", "[2] rank 2"]
    found = told("logs", MESH, "--tail", 1)
    times = [each.pop("at") for each in found["lines"]]
    assert all(abs(time.time() - at) < 60 for at in times)
    assert found["lines"] == [{"rank": each, "text": f"rank {each}"} for each in range(3)]
    timed = shown("logs", MESH, "--ranks", "0,2", "--tail", 1, "--times")
    assert [line.partition(" ")[0] for line in timed] == ["[0]", "[2]"]
    for line, at in zip(timed, times[::2], strict=True):
        came = time.strftime("%H:%M:%S", time.localtime(at))
        assert re.fullmatch(rf"\[(\d)\] {came}\.{round(at * 1000) % 1000:03d} rank \1", line)
    assert list(Path(found["folder"]).glob(f"{MESH}.*.log"))


def test_all_of_many_lines_are_there(kernel):
    kernel.ok("%%mesh\nif rank == 1:\n    for number in range(6000): print('line', number)")
    lines = shown("logs", MESH, "--ranks", "1", "--tail", 6000)
    assert lines == [f"[1] line {number}" for number in range(6000)]
    with subprocess.Popen(
        [*COMMAND, "logs", MESH, "--tail", "6000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": ""},  # with it Python does not notice
    ) as command:  # fmt: skip
        assert command.stdout.readline()
        command.stdout.close()  # as `head` does
        assert command.wait(20) == 0
        assert b"Traceback" not in command.stderr.read()


def test_logs_follow_what_comes_until_the_kernel_ends():
    name = f"mesh_{uuid.uuid4().hex[:8]}"
    with KernelClient("monarch") as kernel:
        kernel.ok(f"%mesh up --gpus 2 --name {name}", timeout_s=60)
        kernel.ok("%%mesh\nprint('before')")
        words = [*COMMAND, "logs", name, "-f"]
        with (
            subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as people,
            subprocess.Popen([*words, "--json"], stdout=subprocess.PIPE, text=True) as programs,
            contextlib.ExitStack() as ending,  # also where this fails: they would follow for ever
        ):
            for each in (people, programs):
                ending.callback(each.kill)
            assert people.stdout.readline() == "[0-1] before\n"
            lines = [json.loads(programs.stdout.readline()) for _ in range(2)]
            assert {each["rank"] for each in lines} == {0, 1}
            kernel.ok("%%mesh\nimport sys\nif rank: print('later', file=sys.stderr)")
            assert people.stdout.readline() == "[1] later\n"
            line = json.loads(programs.stdout.readline())
            assert abs(time.time() - line.pop("at")) < 10
            assert line == {
                "schema": 1,
                "command": "logs",
                "pid": pid_of(kernel),
                "mesh": name,
                "rank": 1,
                "text": "later",
                "stream": "stderr",
                "level": "",
            }
            people.send_signal(signal.SIGINT)
            assert people.wait(10) == 130
            kernel.manager.shutdown_kernel()
            assert programs.wait(20) == 0


def test_stacks_are_a_tree_of_the_ranks_while_a_cell_runs(kernel, busy):
    lines = shown("stacks", MESH)
    assert lines[0].startswith("ranks 0-1  Cell In[")
    assert lines[0].endswith(": step()")
    assert " step(): " in lines[1]
    assert lines[-1].split() == ["rank", "2", "idle"]
    [mesh] = told("stacks", MESH, "--ranks", "0,2")["meshes"]
    assert [each["ranks"] for each in mesh["calls"]] == ["0", "0", "2"]
    inner = mesh["calls"][1]
    assert (inner["function"], inner["depth"]) == ("step", 0)
    assert (mesh["calls"][2]["idle"], mesh["no_answer"]) == (True, "")


def test_a_rank_that_is_stopped_has_no_stacks_and_is_named(kernel):
    [mesh] = told("status", "--kernel", pid_of(kernel), "--each")["meshes"]
    rank = psutil.Process(mesh["ranks"][1]["pid"])
    rank.suspend()
    try:
        lines = shown("stacks", MESH)
    finally:
        rank.resume()
    assert lines[-1] == "rank 1: no answer; monarch-nb status shows why"


# ------------------------------------------------------------------------------------------- vars

VARIABLES = """%%mesh
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 2)
    def __repr__(self):
        print("code of the user's runs")
        return "model"
model, x, loss, epoch = Model(), torch.zeros(4 if rank == 2 else 3, 5), 0.5 / (rank + 1), 7
if rank == 0:
    only = ["a", "b"]
"""


def test_variables_are_a_table_of_the_ranks_while_a_cell_runs(kernel, release):
    kernel.ok(VARIABLES)
    cell = kernel.start(WORK)
    kernel.until(lambda: all(f"rank {rank}" in cell.text() for rank in range(3)))
    try:
        rows = {line.split()[0]: line.split()[1:] for line in shown("vars", MESH)}
        found = told("vars", MESH, "--ranks", "1-2")
    finally:
        release.touch()
        kernel.finish(cell)
        release.unlink()
    assert rows["model"] == ["0-2", "Model", "8", "parameters", "float32", "cpu", "32", "B"]
    assert rows["x"] == ["0-1", "Tensor", "[3,", "5]", "float32", "cpu", "60", "B", "differs"]
    assert rows["2"] == ["Tensor", "[4,", "5]", "float32", "cpu", "80", "B"]
    assert rows["loss"] == ["0-2", "float", "0.5,", "0.25,", "0.16666666666666666", "differs"]
    assert rows["epoch"] == ["0-2", "int", "7"]
    assert " ".join(rows["only"]) == "0 list length 2 differs: not on ranks 1-2"
    assert not {"rank", "torch", "Model", "step"} & rows.keys()
    assert "code of the user's" not in cell.text()
    [mesh] = found["meshes"]
    x = next(each for each in mesh["variables"] if each["name"] == "x")
    assert (x["differs"], x["missing"]) == (True, "")
    assert x["groups"][1] == {
        "ranks": "2",
        "type": "torch.Tensor",
        "shape": [4, 5],
        "dtype": "float32",
        "bytes": 80,
        "length": None,
        "parameters": None,
        "devices": [{"ranks": "2", "is": "cpu"}],
        "values": [],
    }


# ---------------------------------------------------------------------------------- debug --list


def test_who_is_stopped_is_listed_and_stays_stopped(kernel):
    cell = kernel.start("%%mesh\nif rank == 1:\n    breakpoint()\n    print('went on')")
    assert kernel.asked(20, of=cell)
    found = told("debug", "--list", "--kernel", pid_of(kernel))
    [stop] = found["stops"]
    assert (stop["mesh"], stop["rank"], stop["kind"]) == (MESH, 1, "breakpoint")
    assert stop["place"].startswith("Cell In[")
    lines = shown("debug", "--list", "--pid", pid_of(kernel))
    assert lines[2].split()[:3] == [MESH, "1", "breakpoint"]
    assert lines[-1].endswith(f"monarch-nb debug --kernel {pid_of(kernel)}")
    kernel.answer("c")
    kernel.finish(cell)
    assert "went on" in cell.text()
    assert told("debug", "--list", "--kernel", pid_of(kernel))["stops"] == []


# --------------------------------------------------------------------------------- several kernels


def test_a_kernel_that_is_stopped_is_named_and_the_others_are_shown(kernel):
    with KernelClient("monarch") as other:
        stopped = pid_of(other)
        os.kill(stopped, signal.SIGSTOP)
        try:
            began = time.monotonic()
            code, out, _ = typed("status")
            took_s = time.monotonic() - began
            asked = typed("status", "--kernel", stopped, "--json")
        finally:
            os.kill(stopped, signal.SIGCONT)
    assert code == 1
    why = f"process {stopped} does not answer: it is stopped. Type: kill -CONT {stopped}"
    assert why in out
    assert MESH in out
    assert took_s < 6, "two seconds, and those in which Python starts"
    assert asked[0] == 1
    assert json.loads(asked[1])["kernels"][0]["error"] == why


def test_of_several_kernels_one_has_to_be_chosen(kernel):
    with KernelClient("monarch") as other:
        other.ok(f"%mesh up --gpus 1 --name {MESH}", timeout_s=60)
        code, out, err = typed("stacks", MESH)
        assert (code, out) == (2, "")
        first = min(pid_of(kernel), pid_of(other))
        assert err.startswith(
            f"monarch-nb: several kernels have a mesh '{MESH}'; choose one: --kernel {first}\n"
        )
        for each in (kernel, other):
            assert f"\n  {pid_of(each)}  " in err
        assert shown("stacks", "--kernel", pid_of(other)) == ["rank 0  idle"]


def test_mistakes_say_what_to_type(kernel):
    pid = pid_of(kernel)
    assert typed("logs", "nope")[2] == (
        "monarch-nb: no kernel of yours on this machine has a mesh 'nope'\n"
    )
    for words, said in (
        (("logs", MESH, "--ranks", "7"), f"{MESH} has no rank 7; its ranks are 0-2"),
        (("stacks", "nope", "--kernel", pid), f"no mesh 'nope' is up; there: {MESH}"),
        (("logs", "--kernel", 1), "process 1 is no kernel of yours on this machine"),
        (("stacks", MESH, "--ranks", "x"), "cannot read 'x'; ranks are given as 3 or 0,2 or 0-3"),
        (("logs", MESH, "--tail", "0"), "must be a whole number from 1 to 20000"),
        (("debug", "--json"), "--json goes with --list"),
    ):
        code, out, err = typed(*words)
        assert (code, out) == (2, "")
        assert said in err


# ----------------------------------------------------------------------------------- who comes in


def visit(kernel: KernelClient) -> socket.socket:
    [owner] = [each for each in owners() if each.pid == pid_of(kernel)]
    stream = socket.socket(socket.AF_UNIX)
    stream.settimeout(20)
    stream.connect(str(owner.path / "questions"))
    return stream


def answer_to(kernel: KernelClient, said: bytes) -> dict:
    with visit(kernel) as stream, stream.makefile("rb") as lines:
        assert json.loads(lines.readline())["schema"] == 1
        stream.sendall(said)
        stream.shutdown(socket.SHUT_WR)
        return json.loads(lines.readline())


ASKED = {"topic": "logs", "mesh": None, "ranks": None, "lines": 1, "follow": False, "each": False}


def test_what_makes_no_sense_is_refused(kernel):
    none = {"error": "this is no question of monarch-nb"}
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b"\xff\n", b"{}\n", b"[" * 100_000 + b"\n"):
        assert answer_to(kernel, said) == none
    for wrong in (
        {"topic": "kill"}, {"mesh": 3}, {"ranks": []}, {"ranks": [-1]}, {"ranks": [True]},
        {"ranks": [1 << 60]}, {"lines": 0}, {"lines": 1 << 60}, {"follow": 1},
    ):  # fmt: skip
        said = json.dumps({**ASKED, **wrong}).encode() + b"\n"
        assert "knows no such question" in answer_to(kernel, said)["error"], wrong
    assert "knows" not in answer_to(kernel, json.dumps(ASKED).encode() + b"\n").get("error", "")


def test_who_says_nothing_takes_no_place_for_long(kernel):
    silent = [visit(kernel) for _ in range(MAX_VISITS)]
    assert typed("status", "--kernel", pid_of(kernel))[0] == 1
    eventually(
        lambda: typed("status", "--kernel", pid_of(kernel))[0] == 0, 30, "a place for a visitor"
    )
    for stream in silent:
        stream.close()
