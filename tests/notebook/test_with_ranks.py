"""The notebook over real ranks: what a Jupyter client sees, with real processes and signals."""

import os
import re
import signal
import time

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests import support
from tests.kernel.client import KernelClient
from tests.notebook.ranks import FREE_S, PROMPT_S, pids_of_ranks, stop

FIRST_CELLS = ["%mesh up --gpus 4"]


def pid_of(kernel: KernelClient) -> int:
    return int(kernel.ok("import os; print(os.getpid())").text())


def test_output_results_and_state(kernel):
    assert kernel.ok("%%mesh\nkept = rank\nprint('hello'); 1 + 1").shown == "[0-3] hello\n[0-3] 2\n"
    assert kernel.ok("%%mesh gpus=1:3\nkept, size").displays == [
        {"text/plain": "[1] (1, 4)\n[2] (2, 4)"}
    ]
    assert kernel.ok("%%mesh 0,1,3\nkept * 10").displays == [
        {"text/plain": "[0] 0\n[1] 10\n[3] 30"}
    ]


def test_stderr_and_displays_of_ranks(kernel):
    cell = kernel.ok(
        "%%mesh\nimport sys\nfrom IPython.display import HTML, display\n"
        "print('out'); print('err', file=sys.stderr); display(HTML('<b>x</b>')); print('end')"
    )
    assert cell.text("stderr") == "[0-3] err\n"
    assert cell.text() == "[0-3] out\n[0-3] end\n"
    [data] = cell.displays
    assert data["text/html"].endswith("[0-3]</div><b>x</b>")


def test_an_error_shows_the_lines_of_the_cell(kernel):
    cell = kernel.run("%%mesh\n\ndef f(x):\n    return 1 / x\n\nf(rank - 2)")
    number = cell.reply["content"]["execution_count"]
    assert cell.status == "error"
    assert cell.error.startswith("rank 2: ZeroDivisionError: division by zero\nTraceback")
    assert f"Cell In[{number}], line 4, in f\n    return 1 / x" in cell.error
    assert "monarch_nb" not in cell.error
    assert kernel.ok("%%mesh\n'on'").displays == [{"text/plain": "[0-3] 'on'"}]


def test_the_status_is_that_of_now(kernel):
    """The boards of ranks are read ten times a second, and cells are faster."""
    for _ in range(5):
        kernel.run("%%mesh\n1 / 0")
        assert kernel.ok("%mesh status").shown.startswith("mesh0: 4 ranks, 4 failed; ")
        kernel.ok("%%mesh 1-3\n1")
        assert kernel.ok("%mesh").shown.startswith("mesh0: 4 ranks, 1 failed, 3 idle; ")


def test_output_arrives_as_it_is_printed_and_folded(kernel):
    cell = kernel.start("%%mesh\nimport time\nprint('early', flush=True); time.sleep(3)")
    kernel.until(lambda: cell.text() == "[0-3] early\n", timeout_s=2)
    assert cell.reply is None
    kernel.finish(cell)


def test_actors_print_under_the_cell_that_called_them(kernel):
    kernel.ok(
        "from monarch_nb import Actor, endpoint\n"
        "class Talker(Actor):\n"
        "    @endpoint\n"
        "    def say(self, text):\n        print(text); return len(text)\n"
        "talkers = mesh0.spawn('talkers', Talker)"
    )
    cell = kernel.ok("talkers.say.call('hi').get().values()")
    assert cell.shown == "[0-3] hi\n[2, 2, 2, 2]\n"


def test_what_an_earlier_cells_call_has_said_is_there_with_its_result(kernel):
    kernel.ok(
        "from monarch_nb import Actor, current_rank, endpoint\n\n"
        "class Counter(Actor):\n    @endpoint\n    def count(self):\n"
        "        for n in range(3):\n            print(n, current_rank()['gpus'])\n\n"
        "counters = mesh0.spawn('counters', Counter)"
    )
    for _ in range(5):
        asked = kernel.ok("later = counters.count.call()")
        waited = kernel.ok("later.get()")
        assert (asked.text() + waited.text()).count("[") == 12
    kernel.ok("counters.stop().get()")


@pytest.mark.alone
@pytest.mark.parametrize("work", [
    "import time; time.sleep(30)",
    "import asyncio; await asyncio.sleep(30)",
    "while True: pass",
    "import threading; threading.Event().wait(30)",
])  # fmt: skip
def test_stop_gives_the_prompt_and_the_ranks_back(kernel, work):
    cell, waited = stop(kernel, f"%%mesh\nprint('started', flush=True)\n{work}")
    assert waited < PROMPT_S
    assert cell.status == "error"
    begun = time.monotonic()
    assert kernel.ok("%%mesh\n'free'").displays == [{"text/plain": "[0-3] 'free'"}]
    assert time.monotonic() - begun < FREE_S


@pytest.mark.alone
def test_stop_reaches_endpoints(fresh):
    fresh.ok(
        "import time\nfrom monarch_nb import Actor, endpoint\n"
        "class Sleeper(Actor):\n"
        "    @endpoint\n"
        "    def work(self):\n        print('started', flush=True); time.sleep(30)\n"
        "    @endpoint\n    def quick(self): return 1\n"
        "sleepers = mesh0.spawn('sleepers', Sleeper)"
    )
    for call in ("sleepers.work.call().get()", "await sleepers.work.call()"):
        cell, waited = stop(fresh, call)
        assert waited < PROMPT_S
        assert cell.status == "error"
        assert cell.error
        begun = time.monotonic()
        fresh.ok("sleepers.quick.call().get()")
        assert time.monotonic() - begun < FREE_S


@pytest.mark.fault
@pytest.mark.alone
def test_a_rank_that_ignores_the_interrupt_is_named_and_can_be_killed(fresh):
    stubborn = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    work = f"if rank == 3:\n    {stubborn}\nimport time; until = time.time() + 60\n"
    cell, waited = stop(
        fresh,
        f"%%mesh\n{work}print('started', flush=True)\nwhile time.time() < until: time.sleep(0.1)",
    )
    assert waited < PROMPT_S
    assert re.search(r"interrupted; ranks? [0-2,-]*3 (is|are) still at work", cell.error)
    assert "is at Cell In[2], line 7: while time.time() < until: time.sleep(0.1)\n" in cell.error
    cell = fresh.run("%%mesh\n1")
    assert cell.error.startswith("rank 3 is still busy with cell In[2], started ")
    assert fresh.ok("%%mesh 0-2\n1").displays == [{"text/plain": "[0-2] 1"}]
    assert "rank 3 killed" in fresh.ok("%mesh interrupt --kill 3").text()
    assert fresh.run("%%mesh 3\n1").error.startswith("rank 3 of mesh0 is lost")
    fresh.ok("%mesh heal")
    assert fresh.ok("%%mesh\n1").displays == [{"text/plain": "[0-3] 1"}]


@pytest.mark.fault
def test_a_rank_that_dies_in_a_cell_is_named_and_the_others_go_on(fresh):
    cell = fresh.run("%%mesh\nimport os\nif rank == 2: os._exit(3)\nrank")
    assert cell.status == "error"
    assert cell.displays == [{"text/plain": "[0] 0\n[1] 1\n[3] 3"}]
    assert cell.error.startswith("rank 2: ")
    assert "exited with" in cell.error
    assert "%mesh heal" in cell.error
    assert fresh.run("%%mesh\n1").error == (
        "rank 2 of mesh0 is lost; %mesh status shows how. "
        "Type: %mesh heal, or %%mesh 0-1,3 for the others"
    )
    assert fresh.ok("%%mesh 0-1,3\n1").displays == [{"text/plain": "[0-1,3] 1"}]
    assert "✕ exited" in fresh.ok("%mesh").displays[0]["text/plain"]
    fresh.ok("%mesh heal")
    assert fresh.ok("%%mesh\nrank").displays == [{"text/plain": "[0] 0\n[1] 1\n[2] 2\n[3] 3"}]


@pytest.mark.fault
def test_an_idle_rank_that_dies_is_told_with_the_next_cell_and_harms_no_other(fresh):
    victim = pids_of_ranks(fresh)[1]
    cell = fresh.start("import time\nfor _ in range(20): time.sleep(0.05)\nprint('undisturbed')")
    os.kill(victim, signal.SIGKILL)
    assert "undisturbed" in fresh.finish(cell).text()
    assert cell.status == "ok"
    told = cell.text("stderr") + fresh.ok("1").text("stderr")
    assert told.count("SIGKILL") == 1
    assert "mesh0" in told


@pytest.mark.parametrize("restart", [False, True])
def test_shutdown_and_restart_leave_no_process(own, restart):
    processes = support.descendants(pid_of(own))
    assert processes >= set(pids_of_ranks(own))
    asked = time.monotonic()
    if restart:
        own.client.stop_channels()
        own.manager.restart_kernel(now=False)
        own.connect()
        assert own.ok("%mesh").text().startswith("No mesh is up.")
    else:
        own.manager.shutdown_kernel(now=False)
    assert time.monotonic() - asked < 4
    support.eventually(lambda: not any(map(support.is_running, processes)), within_s=1)


@pytest.mark.fault
def test_a_killed_kernel_leaves_no_process(own):
    processes = support.descendants(pid_of(own))
    assert processes >= set(pids_of_ranks(own))
    os.kill(pid_of(own), signal.SIGKILL)
    support.eventually(lambda: not any(map(support.is_running, processes)), within_s=2)


@pytest.mark.slow
def test_it_runs_without_a_browser_and_stops_at_a_failing_cell(tmp_path):
    cells = ["%mesh up --gpus 2", "%%mesh\nprint('hi')\nrank", "%%mesh\n1 / rank", "%mesh down"]
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, cells)))
    client = NotebookClient(notebook, kernel_name="monarch", timeout=60)
    with pytest.raises(CellExecutionError, match=r"rank 0: \S*ZeroDivisionError"):
        client.execute(cwd=str(tmp_path))
    streams, result = notebook.cells[1].outputs
    assert streams.text == "[0-1] hi\n"
    assert result.data["text/plain"] == "[0] 0\n[1] 1"
    [failed] = notebook.cells[2].outputs[-1:]
    assert failed.output_type == "error"
    assert notebook.cells[3].execution_count is None
