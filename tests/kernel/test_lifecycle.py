"""Start, restart, shutdown and what the kernel says about itself."""

import contextlib
import sqlite3
import time

import pytest

from tests import support
from tests.kernel.client import KernelClient


def test_it_says_who_it_is(kernel):
    info = kernel.client.kernel_info(reply=True, timeout=10)["content"]
    assert info["implementation"] == "monarch"
    assert info["banner"].startswith("Monarch ")
    assert "no mesh is up" in info["banner"].splitlines()[0]
    assert "IPython" in info["banner"]


def test_the_magics_are_there(kernel):
    assert "No mesh is up. Type: %mesh up --gpus 4" in kernel.ok("%mesh").shown


def test_threads_give_way_to_a_cell_soon(kernel):
    assert "0.001" in kernel.ok("import sys; sys.getswitchinterval()").shown


@pytest.mark.slow
def test_children_of_the_kernel_run_while_the_debugger_is_on():
    """pydevd would make a child Python wait for a debug session that nobody opens."""
    with KernelClient("monarch") as kernel:
        content = {"type": "request", "seq": 1, "command": "initialize", "arguments": {}}
        request = kernel.control("debug_request", content)
        kernel.until(lambda: kernel.has_come("debug_reply", request))
        child = "subprocess.check_output([sys.executable, '-c', 'print(6 * 7)'], timeout=20)"
        assert kernel.ok(f"import subprocess, sys; print({child})").text() == "b'42\\n'\n"


def test_breakpoint_opens_a_prompt(kernel):
    cell = kernel.start("x = 20\nbreakpoint()\nprint('x is', x)", allow_stdin=True)
    kernel.until(kernel.client.stdin_channel.msg_ready)
    for command in ("x = 21", "c"):
        prompt = kernel.client.get_stdin_msg(timeout=10)
        assert "ipdb" in prompt["content"]["prompt"]
        kernel.client.input(command)
    assert "x is 21" in kernel.finish(cell).text()


def test_breakpoint_goes_on_where_nobody_can_answer(kernel):
    cell = kernel.ok("x = 1\nbreakpoint()\nprint('went on')", allow_stdin=False)
    assert "went on" in cell.text()
    assert "breakpoint() in <module>(), line 2" in cell.text("stderr")


@pytest.mark.slow
def test_the_history_is_written_soon_and_when_the_kernel_ends():
    with KernelClient("monarch") as kernel:
        soon, at_the_end = (f"one_of_{time.time_ns()} = {n}" for n in (1, 2))
        path = kernel.ok("print(get_ipython().history_manager.hist_file)").text().strip()
        kernel.ok(soon)
        support.eventually(lambda: soon in inputs(path), what="the cell in the history")
        kernel.ok(at_the_end)
        kernel.manager.shutdown_kernel(now=False)
        assert at_the_end in inputs(path)


def inputs(path):
    with contextlib.closing(sqlite3.connect(path)) as history:
        return [source for (source,) in history.execute("SELECT source FROM history")]


@pytest.mark.slow
def test_shutdown_is_prompt_and_leaves_nothing(goal):
    with KernelClient("monarch") as kernel:
        pid = kernel_pid(kernel)
        asked = time.monotonic()
        kernel.manager.shutdown_kernel(now=False)
        took_s = time.monotonic() - asked
        goal("the kernel is shut down: its end", took_s, 2.5)
        assert took_s < kernel.manager.shutdown_wait_time  # else it was killed
        assert not support.is_running(pid)


@pytest.mark.slow
def test_restart_gives_a_fresh_kernel():
    with KernelClient("monarch") as kernel:
        pid = kernel_pid(kernel)
        kernel.ok("x = 1")
        kernel.client.stop_channels()
        asked = time.monotonic()
        kernel.manager.restart_kernel(now=False)
        assert time.monotonic() - asked < 3.5
        kernel.connect()
        assert kernel_pid(kernel) != pid
        assert kernel.run("x").status == "error"


@pytest.mark.slow
def test_shutdown_is_not_delayed_by_a_slow_debug_request(goal):
    with KernelClient("monarch") as kernel:
        kernel.ok(
            "import asyncio, types\n"
            "async def slow(self, msg): await asyncio.sleep(20)\n"
            "k = get_ipython().kernel; k.do_debug_request = types.MethodType(slow, k)"
        )
        kernel.control("debug_request", {"type": "request", "seq": 1, "command": "x"})
        asked = time.monotonic()
        kernel.manager.shutdown_kernel(now=False)
        took_s = time.monotonic() - asked
        goal("the kernel is shut down: its end", took_s, 2.5)
        assert took_s < kernel.manager.shutdown_wait_time  # else it was killed


@pytest.mark.slow
def test_it_runs_with_encryption_required():
    with KernelClient("monarch", transport_encryption="required") as kernel:
        assert kernel.client.curve_publickey
        assert kernel.ok("6 * 7").displays == [{"text/plain": "42"}]


def kernel_pid(kernel: KernelClient) -> int:
    return int(kernel.ok("import os; print(os.getpid())").text())
