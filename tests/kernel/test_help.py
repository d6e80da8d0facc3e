"""Tab and Shift-Tab in a notebook, as front ends ask for them: while cells run or ranks hang."""

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests import support
from tests.kernel.client import KernelClient

ANSWER_S = 0.3
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
TYPES = "_jupyter_types_experimental"
SETUP = """%%mesh
import torch
model = torch.nn.Linear(2, 3)
def shrink(x, by=2):
    "Makes it smaller."
    return x / by
"""
HELD = """%%mesh
import ctypes, time
print('started', flush=True)
time.sleep(0.3)  # the text leaves
ctypes.PyDLL(None).usleep(4_000_000)  # PyDLL keeps the GIL
"""


@pytest.fixture(scope="module")
def kernel() -> Iterator[KernelClient]:
    """A Monarch kernel with four ranks that know some names."""
    with KernelClient("monarch") as client:
        client.ok("%mesh up --gpus 4", timeout_s=50)
        client.ok(SETUP)
        complete(client, "here = ran")  # loads jedi
        yield client


def ask(kernel: KernelClient, kind: str, subshell: str | None = None, **content: Any) -> Any:
    """The reply to a request, and how long it took."""
    message = kernel.client.session.msg(f"{kind}_request", content)
    message["header"]["subshell_id"] = subshell
    started = time.monotonic()
    kernel.client.shell_channel.send(message)
    asked = message["header"]["msg_id"]
    reply = kernel.until(lambda: find(kernel, f"{kind}_reply", asked))
    took_s = time.monotonic() - started
    kernel.until(lambda: kernel.has_come("status", asked, "idle"))
    return reply["content"], took_s


def find(kernel: KernelClient, kind: str, asked: str) -> Any:
    return next(
        (
            message
            for message in kernel.others
            if message["msg_type"] == kind and message["parent_header"].get("msg_id") == asked
        ),
        None,
    )


def complete(kernel: KernelClient, code: str, **options: Any) -> list[str]:
    """The completions at the end of the code, which came in time."""
    reply, took_s = ask(kernel, "complete", code=code, cursor_pos=len(code), **options)
    assert reply["status"] == "ok"
    if "here" not in code:
        assert took_s < ANSWER_S
    return reply["matches"]


def inspect(kernel: KernelClient, code: str, detail: int = 0) -> str:
    """The tooltip at the end of the code, which came in time; empty for none."""
    content = {"code": code, "cursor_pos": len(code), "detail_level": detail}
    reply, took_s = ask(kernel, "inspect", **content)
    assert took_s < ANSWER_S
    assert reply["found"] == bool(reply["data"])
    return COLOURS.sub("", reply["data"].get("text/plain", ""))


@contextlib.contextmanager
def running(kernel: KernelClient, code: str) -> Iterator[Any]:
    """A cell that has said `started`, and is stopped at the end."""
    cell = kernel.start(code)
    try:
        kernel.until(lambda: "started" in cell.text())
        yield cell
    finally:
        kernel.interrupt()
        kernel.finish(cell)


BUSY = "print('started', flush=True)\nwhile True: pass"


@pytest.mark.parametrize("code", [
    "%%mesh\nimport time\nprint('started', flush=True)\ntime.sleep(30)",
    pytest.param(f"%%mesh\n{BUSY}", marks=pytest.mark.alone),
    "import time\nprint('started', flush=True)\ntime.sleep(30)",
    pytest.param(BUSY, marks=pytest.mark.alone),
    "import asyncio\nprint('started', flush=True)\nawait asyncio.sleep(30)",
])  # fmt: skip
def test_while_a_cell_runs(kernel, code):
    kernel.ok("here_too = 1")
    with running(kernel, code):
        assert complete(kernel, "%%mesh\nmode") == ["model"]
        assert complete(kernel, "%%mesh gpus=1\nx = model.weig") == ["weight"]
        assert complete(kernel, "%mesh stat") == ["status"]
        assert complete(kernel, "here_t") == ["here_too"]
        assert "Makes it smaller." in inspect(kernel, "%%mesh\nshrink(")
        assert "return x / by" in inspect(kernel, "%%mesh\nshrink", detail=1)
        assert "Return" in inspect(kernel, "len")
        assert inspect(kernel, "%%mesh\nnothing_like_it") == ""
    assert kernel.ok("1 + 1").shown == "2\n"


def test_a_slow_object_here_delays_nobody_who_asks_ranks(kernel):
    kernel.ok(
        "import threading\nleave = threading.Event()\n"
        "class Slow:\n    def __dir__(self): print('asked'); leave.wait(10); return ['found']\n"
        "slow = Slow()"
    )
    with running(kernel, "import time\nprint('started', flush=True)\ntime.sleep(30)") as cell:
        kernel.client.complete("slow.fou")
        kernel.until(lambda: "asked" in cell.text())
        assert complete(kernel, "%%mesh\nmode") == ["model"]
    kernel.ok("leave.set()")


def test_positions_and_kinds_are_those_of_the_whole_cell(kernel):
    code = "%%mesh gpus=0:2\n'größe 😀'; tor"
    reply, _ = ask(kernel, "complete", code=code + "\nx = 1", cursor_pos=len(code))
    [found] = reply["metadata"][TYPES]
    assert (found["text"], found["type"]) == ("torch", "module")
    assert code[reply["cursor_start"] : reply["cursor_end"]] == "tor"
    assert (found["start"], found["end"]) == (reply["cursor_start"], reply["cursor_end"])


def test_the_kernel_looks_busy_as_long_as_the_cell_runs(kernel):
    with running(kernel, "import time\nprint('started', flush=True)\ntime.sleep(30)") as cell:
        complete(kernel, "%%mesh\nmode")  # until the idle of the request
        kernel.until(lambda: states(cell) == ["busy", "busy"])
    assert states(cell) == ["busy", "busy", "idle"]
    complete(kernel, "%%mesh\nmode")
    kernel.settle()
    assert states(cell) == ["busy", "busy", "idle"]


def states(cell: Any) -> list[str]:
    return [content["execution_state"] for content in cell.contents("status")]


def test_a_subshell_answers_its_own_requests(kernel):
    created = kernel.control("create_subshell_request", {})
    kernel.until(lambda: kernel.has_come("create_subshell_reply", created))
    subshell = find(kernel, "create_subshell_reply", created)["content"]["subshell_id"]
    assert complete(kernel, "%%mesh\nmode", subshell=subshell) == ["model"]
    content = {"code": "%%mesh\nmode", "cursor_pos": 11}
    reply, _ = ask(kernel, "complete", subshell="there is none", **content)
    assert reply["status"] == "error"
    deleted = kernel.control("delete_subshell_request", {"subshell_id": subshell})
    kernel.until(lambda: kernel.has_come("delete_subshell_reply", deleted))


def test_while_a_rank_keeps_the_interpreter_to_itself(kernel):
    assert complete(kernel, "%%mesh\nmode") == ["model"]
    with running(kernel, HELD):
        kernel.until(lambda: is_held(kernel))
        for _ in range(6):
            assert complete(kernel, "%%mesh\nmode") == ["model"]
        assert complete(kernel, "%%mesh\nshri") == ["shrink"]
        assert inspect(kernel, "%%mesh\nnothing_like_it") == ""
    kernel.ok("%%mesh\nmodern = 1")
    kernel.until(lambda: complete(kernel, "%%mesh\nmode") == ["model", "modern"])
    kernel.ok("%%mesh\ndel modern")


def is_held(kernel: KernelClient) -> bool:
    """Whether a rank did not answer, which would have taken it milliseconds."""
    _, took_s = ask(kernel, "complete", code="%%mesh\nmode", cursor_pos=11)
    assert took_s < ANSWER_S
    return took_s > ANSWER_S / 2


@pytest.mark.slow
@pytest.mark.fault
def test_while_ranks_are_stopped_or_lost():
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh up --gpus 2", timeout_s=50)
        kernel.ok(SETUP)
        shown = kernel.ok("%%mesh\nimport os; os.getpid()").displays[0]["text/plain"]
        pids = [int(line.split()[-1]) for line in shown.splitlines()]
        assert "Makes it smaller." in inspect(kernel, "%%mesh\nshrink(")
        support.stop(pids[0])
        for _ in range(3):
            assert complete(kernel, "%%mesh 0\nmode") == ["model"]
            assert "Makes it smaller." in inspect(kernel, "%%mesh 0\nshrink(")
        assert complete(kernel, "%%mesh\nmodel.weig") == ["weight"]
        os.kill(pids[0], signal.SIGCONT)
        os.kill(pids[1], signal.SIGKILL)
        kernel.until(lambda: "1 lost" in kernel.ok(STATUS).text())
        assert complete(kernel, "%%mesh 1\nmode") == ["model"]
        os.kill(pids[0], signal.SIGKILL)
        for _ in range(3):
            assert complete(kernel, "%%mesh\nmode") == ["model"]
        kernel.ok("%mesh down")
        assert complete(kernel, "%%mesh\nmode") == ["model"]
        assert complete(kernel, "%%mesh\nmodel.weig") == []


STATUS = "from monarch_nb.notebook.session import status_line; print(status_line(get_ipython()))"


@pytest.mark.slow
@pytest.mark.alone  # four processes come up meanwhile
def test_before_ranks_are_there():
    with KernelClient("monarch") as kernel:
        assert complete(kernel, "%%mesh\nran") == []
        cell = kernel.start(
            "from monarch_nb import this_host\n"
            "mine = this_host().spawn_procs(per_host={'gpus': 4})\n"
            "print('started', flush=True)\nmine.initialized.get()"
        )
        kernel.until(lambda: "started" in cell.text())
        for _ in range(5):
            found = complete(kernel, "%%mesh\nran")  # nobody is asked before all are up
            assert sorted(found) in ([], ["range", "rank"])
        kernel.finish(cell)
        assert sorted(complete(kernel, "%%mesh\nran")) == ["range", "rank"]


@pytest.mark.slow
def test_in_a_plain_ipython_kernel():
    with KernelClient("python3") as kernel:
        kernel.ok("%load_ext monarch_nb")
        complete(kernel, "here")
        kernel.ok("%mesh up --gpus 2", timeout_s=50)
        kernel.ok(SETUP)
        assert complete(kernel, "%%mesh\nmode") == ["model"]
        assert complete(kernel, "%%mesh\nmodel.weig") == ["weight"]
        assert complete(kernel, "%mesh sta") == ["status", "stacks"]
        assert "Makes it smaller." in inspect(kernel, "%%mesh\nshrink(")
        kernel.ok("%mesh down\n%unload_ext monarch_nb")
        assert "model" not in complete(kernel, "%%mesh\nhere = 1; mode")
        assert inspect(kernel, "%%mesh\nshrink(") == ""
