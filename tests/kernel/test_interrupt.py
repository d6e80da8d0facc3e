"""The stop button: the prompt is back in 0.3 s whatever the kernel does, the next cell runs."""

import ast
import time

import pytest

from tests.kernel.client import Cell, KernelClient

pytestmark = pytest.mark.alone

PROMPT_S = 0.3
SLOW_DEBUGGER = """
import asyncio, types
async def slow(self, msg):
    await asyncio.sleep(5)
    return {}
get_ipython().kernel.do_debug_request = types.MethodType(slow, get_ipython().kernel)
"""


def stop(kernel: KernelClient, cell: Cell) -> float:
    """Wait until the cell says it runs, interrupt it; seconds until it has ended.

    What a cell prints comes 0.2 s later, unless it flushes: by then it is where it stays, not in
    the midst of `print`, whose files a traceback would have to read.
    """
    kernel.until(lambda: "running" in cell.text())
    return kernel.stop_s(cell)


def test_a_sleeping_cell_stops_at_once(kernel, goal):
    cell = kernel.start("import time; print('running'); time.sleep(30)")
    goal("a cell is stopped: prompt", stop(kernel, cell), PROMPT_S)
    assert cell.status == "error"
    assert "KeyboardInterrupt" in cell.error
    assert kernel.ok("1 + 1").displays == [{"text/plain": "2"}]


@pytest.mark.parametrize("sleep", ["time.sleep(30)", "await asyncio.sleep(30)"])
def test_hammering_the_button_loses_neither_the_reply_nor_the_traceback(kernel, sleep):
    for _ in range(10):
        cell = kernel.start(f"import asyncio, time; print('running'); {sleep}")
        kernel.until(lambda cell=cell: "running" in cell.text())
        presses = [kernel.control("interrupt_request", {}) for _ in range(5)]
        assert kernel.finish(cell, timeout_s=5).status == "error"
        assert "KeyboardInterrupt" in cell.error or "CancelledError" in cell.error
        kernel.until(
            lambda presses=presses: all(kernel.has_come("interrupt_reply", p) for p in presses)
        )
        assert kernel.ok("1 + 1").displays == [{"text/plain": "2"}]


def test_an_await_cell_stops_at_once(kernel, goal):
    cell = kernel.start("import asyncio; print('running'); await asyncio.sleep(30)")
    goal("a cell is stopped: prompt", stop(kernel, cell), PROMPT_S)
    assert cell.status == "error"
    kernel.ok("await asyncio.sleep(0)")


def test_synchronous_code_of_an_await_cell_stops_at_once(kernel, goal):
    code = "import asyncio, time; await asyncio.sleep(0); print('running'); time.sleep(30)"
    cell = kernel.start(code)
    goal("a cell is stopped: prompt", stop(kernel, cell), PROMPT_S)
    assert "KeyboardInterrupt" in cell.error
    kernel.ok("await asyncio.sleep(0)")


def test_a_cell_blocked_in_a_lock_stops_at_once(kernel, goal):
    code = "import threading; print('running'); threading.Event().wait(30)"
    goal("a cell is stopped: prompt", stop(kernel, kernel.start(code)), PROMPT_S)


@pytest.mark.parametrize("sleep", ["time.sleep(30)", "await asyncio.sleep(30)"])
def test_a_slow_debug_request_delays_no_interrupt(kernel, sleep, goal):
    kernel.ok(SLOW_DEBUGGER)
    try:
        cell = kernel.start(f"import asyncio, time; print('running'); {sleep}")
        kernel.until(lambda: "running" in cell.text())
        request = kernel.control("debug_request", {"type": "request", "seq": 1, "command": "x"})
        kernel.until(lambda: kernel.has_come("status", request, "busy"))
        goal("a cell is stopped: prompt", stop(kernel, cell), PROMPT_S)
        # and the slow request still ends as it should, with its own busy and idle
        kernel.until(lambda: kernel.has_come("status", request, "idle"))
        kernel.until(lambda: kernel.has_come("debug_reply", request))
    finally:
        kernel.ok("del get_ipython().kernel.do_debug_request")


@pytest.mark.slow
def test_starting_the_debugger_in_a_busy_kernel_delays_no_interrupt(goal):
    """ipykernel waits in the control thread for the shell, which runs the cell."""
    with KernelClient("monarch") as kernel:
        cell = kernel.start("import time; print('running'); time.sleep(30)")
        kernel.until(lambda: "running" in cell.text())
        content = {"type": "request", "seq": 1, "command": "initialize", "arguments": {}}
        request = kernel.control("debug_request", content)
        kernel.until(lambda: kernel.has_come("status", request, "busy"))
        goal("a cell is stopped: prompt", stop(kernel, cell), PROMPT_S)
        kernel.until(lambda: kernel.has_come("debug_reply", request))


def test_a_signal_that_the_main_thread_did_not_get_is_noticed(kernel, goal):
    """As one that comes just before a call that blocks: it is known, and nothing wakes the call."""
    mask = "import signal; signal.pthread_sigmask(signal.SIG_{}, [signal.SIGINT])\n"
    work = "import time; print('running'); time.sleep(30)"
    cell = kernel.start(mask.format("BLOCK") + work)
    kernel.until(lambda: "running" in cell.text())
    kernel.settle(0.2)  # it sleeps now
    goal("a cell is stopped: prompt", stop(kernel, cell), PROMPT_S)
    kernel.ok(mask.format("UNBLOCK"))


PRESS = """
import signal, sys
from monarch_nb.notebook.session import session_of
ran, left = 0, [1]
press = lambda *_: left and (left.pop(), signal.raise_signal(signal.SIGINT))
ip = get_ipython()
"""
EARLY = {  # how a press comes before the first line of the next cell, and how that is undone
    "while its text is read": (
        "ip.input_transformers_cleanup.append(lambda lines: (press(), lines)[1])",
        "ip.input_transformers_cleanup.pop()",
    ),
    "in a callback of the user's": (
        "ip.events.register('pre_run_cell', press)",
        "ip.events.unregister('pre_run_cell', press)",
    ),
    "in a callback of ours": (
        "link = session_of(ip).link; own = link.attach; link.attach = lambda: (press(), own())[1]",
        "del link.attach",
    ),
}


@pytest.mark.parametrize("code", ["ran = 1", "import asyncio; ran = await asyncio.sleep(0, 1)"])
@pytest.mark.parametrize("when", EARLY)
def test_a_press_before_its_first_line_stops_a_cell(kernel, when, code):
    lay, undo = EARLY[when]
    kernel.ok(PRESS + lay)
    cell = kernel.run(code)
    kernel.ok(undo)
    assert cell.status == "error"
    assert cell.error.rstrip().endswith("KeyboardInterrupt:")
    assert ("Error in callback" in cell.text()) == (when == "in a callback of the user's")
    assert kernel.ok("ran, left").shown == "(0, [])\n"


def test_a_press_between_two_statements_stops_the_second(kernel):
    kernel.ok(PRESS)
    compiled = "event == 'call' and frame.f_code.co_name == 'extra_flags' and press()"
    cell = kernel.run(f"sys.setprofile(lambda frame, event, _: {compiled})\nran = 1")
    kernel.ok("sys.setprofile(None)")
    assert cell.error.rstrip().endswith("KeyboardInterrupt:")
    assert kernel.ok("ran, left").shown == "(0, [])\n"


def test_a_press_after_a_cell_is_none_of_the_next(kernel):
    kernel.ok(f"{PRESS}ip.events.register('post_execute', press)")
    kernel.ok("ip.events.unregister('post_execute', press); ran = 1")
    assert kernel.ok("ran, left").shown == "(1, [])\n"


# Right after such a call Python sees a press that came during it
AT_AN_EXCHANGE = """
import _signal, signal, sys
left = [{}]
def press(frame, event, called):
    if event == 'c_return' and called in (_signal.signal, _signal.set_wakeup_fd):
        left[0] -= 1
        if left[0] == 0:
            signal.raise_signal(signal.SIGINT)
sys.setprofile(press)
"""


@pytest.mark.parametrize("code", ["1 + 1", "import asyncio; await asyncio.sleep(0, 2)"])
def test_a_press_while_the_handlers_of_signals_change_loses_no_reply(kernel, code):
    for count in range(1, 13):
        kernel.ok(AT_AN_EXCHANGE.format(count))
        for _ in range(4):  # one may be stopped before its code begins
            assert kernel.run(code).status in ("ok", "error")
        kernel.ok("sys.setprofile(None)")


CALLBACK = """
import asyncio, time, ipywidgets
def work(_):
    print('running')
    time.sleep(30)
button = ipywidgets.Button(description='work')
button.on_click(work)
button.model_id
"""


@pytest.mark.parametrize("code", ["", "await asyncio.sleep(30)"], ids=["alone", "beside a cell"])
def test_a_callback_of_a_widget_stops_at_once(kernel, code, goal):
    model = ast.literal_eval(kernel.ok(CALLBACK).shown)
    cell = kernel.start(code)
    kernel.until(lambda: cell.contents("status"))
    data = {"method": "custom", "content": {"event": "click"}}
    click = kernel.client.session.msg("comm_msg", {"comm_id": model, "data": data})
    kernel.client.shell_channel.send(click)
    kernel.until(lambda: kernel.has_come("stream", click["header"]["msg_id"]))
    began = time.monotonic()
    kernel.interrupt()
    assert kernel.finish(cell).status == ("error" if code else "ok")
    assert kernel.ok("1 + 1").shown == "2\n"
    goal("a callback is stopped: the next cell", time.monotonic() - began, PROMPT_S)


def test_an_interrupt_of_an_idle_kernel_is_harmless(kernel):
    requests = [kernel.control("interrupt_request", {}) for _ in range(20)]
    kernel.until(lambda: all(kernel.has_come("interrupt_reply", request) for request in requests))
    assert kernel.ok("'alive'").displays == [{"text/plain": "'alive'"}]


def test_an_interrupt_reaches_no_child_process(kernel):
    """A worker in the kernel's process group is not shot by the stop button."""
    kernel.ok("import subprocess; child = subprocess.Popen(['sleep', '60'])")
    stop(kernel, kernel.start("import time; print('running'); time.sleep(30)"))
    assert kernel.ok("child.poll()").displays == []
    kernel.ok("child.kill(); child.wait()")
