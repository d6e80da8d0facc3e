"""The notebook over real ranks: what a Jupyter client sees, with real processes and signals."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests import support
from tests.kernel.client import Cell, KernelClient

pytestmark = [pytest.mark.slow, pytest.mark.fault]

PROMPT_S = 0.3
FREE_S = 1.0


@pytest.fixture(scope="module")
def kernel() -> Iterator[KernelClient]:
    """A Monarch kernel with four ranks up."""
    with KernelClient("monarch") as client:
        client.ok("%mesh up --gpus 4", timeout_s=50)
        yield client


@pytest.fixture
def fresh() -> Iterator[KernelClient]:
    """One for a test that breaks things."""
    with KernelClient("monarch") as client:
        client.ok("%mesh up --gpus 4", timeout_s=50)
        yield client


def stop(kernel: KernelClient, code: str) -> tuple[Cell, float]:
    """Start a cell, press stop when it says so; the cell and how long the prompt took."""
    cell = kernel.start(code)
    kernel.until(lambda: "started" in cell.text())
    pressed = time.monotonic()
    kernel.interrupt()
    kernel.finish(cell)
    return cell, cell.finished_s - pressed


def pids_of_ranks(kernel: KernelClient) -> list[int]:
    shown = kernel.ok("%%mesh\nimport os; os.getpid()").displays[0]["text/plain"]
    return [int(line.split()[-1]) for line in shown.splitlines()]


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
    support.eventually(lambda: fresh.run("%%mesh 3\n1").error.startswith("rank 3 of mesh0 is lost"))
    fresh.ok("%mesh heal")
    assert fresh.ok("%%mesh\n1").displays == [{"text/plain": "[0-3] 1"}]


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
def test_shutdown_and_restart_leave_no_process(fresh, restart):
    processes = support.descendants(pid_of(fresh))
    assert processes >= set(pids_of_ranks(fresh))
    asked = time.monotonic()
    if restart:
        fresh.client.stop_channels()
        fresh.manager.restart_kernel(now=False)
        fresh.connect()
        assert fresh.ok("%mesh").text().startswith("No mesh is up.")
    else:
        fresh.manager.shutdown_kernel(now=False)
    assert time.monotonic() - asked < 4
    support.eventually(lambda: not any(map(support.is_running, processes)), within_s=1)


def test_a_killed_kernel_leaves_no_process(fresh):
    processes = support.descendants(pid_of(fresh))
    assert processes >= set(pids_of_ranks(fresh))
    os.kill(pid_of(fresh), signal.SIGKILL)
    support.eventually(lambda: not any(map(support.is_running, processes)), within_s=2)


def test_it_runs_without_a_browser_and_stops_at_a_failing_cell(tmp_path):
    cells = ["%mesh up --gpus 2", "%%mesh\nprint('hi')\nrank", "%%mesh\n1 / rank", "%mesh down"]
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, cells)))
    client = NotebookClient(notebook, kernel_name="monarch", timeout=60)
    with pytest.raises(CellExecutionError, match="rank 0: ZeroDivisionError"):
        client.execute(cwd=str(tmp_path))
    streams, result = notebook.cells[1].outputs
    assert streams.text == "[0-1] hi\n"
    assert result.data["text/plain"] == "[0] 0\n[1] 1"
    [failed] = notebook.cells[2].outputs[-1:]
    assert failed.output_type == "error"
    assert notebook.cells[3].execution_count is None


# --------------------------------------------------------------- cells in the background, ends


def test_the_next_cell_waits_for_a_background_cell_on_its_ranks(kernel):
    kernel.ok("%%mesh -a\nimport time\ntime.sleep(0.6)\nended = True")
    assert kernel.ok("%%mesh\nended").displays == [{"text/plain": "[0-3] True"}]


def test_a_background_cell_is_cancelled_and_its_ranks_are_free(kernel):
    kernel.ok("%%mesh -a -o job\nimport time\ntime.sleep(60)")
    kernel.ok("job.cancel()")
    assert kernel.ok("job.wait(timeout=2)").displays == [{"text/plain": "True"}]
    assert kernel.ok("%%mesh\n1").displays == [{"text/plain": "[0-3] 1"}]


def test_stop_of_a_cell_that_waits_for_its_turn_leaves_the_one_before_alone(kernel):
    kernel.ok("%%mesh -a -o job\nimport time\ntime.sleep(1.5)\n'whole'")
    cell = kernel.start(
        "print('started', flush=True)\nget_ipython().run_cell_magic('mesh', '', '1')"
    )
    kernel.until(lambda: "started" in cell.text())
    kernel.settle(0.2)
    pressed = time.monotonic()
    kernel.interrupt()
    assert kernel.finish(cell).status == "error"
    assert cell.finished_s - pressed < PROMPT_S
    assert kernel.ok("job.result().values()").displays == [{"text/plain": str(["whole"] * 4)}]


def test_stop_while_nothing_runs_is_for_cells_in_the_background(kernel):
    cell = kernel.ok("%%mesh -a\nimport time\ntime.sleep(60)")
    kernel.interrupt()
    kernel.until(lambda: "ranks 0-3 were interrupted at" in cell.text("stderr"), timeout_s=2)
    assert kernel.ok("%%mesh\n1").displays == [{"text/plain": "[0-3] 1"}]


def test_stop_in_a_cell_that_awaits_a_background_cell_ends_it(kernel):
    kernel.ok("%%mesh -a -o job\nimport time\ntime.sleep(60)")
    cell = kernel.start("print('started', flush=True)\nawait job")
    kernel.until(lambda: "started" in cell.text())
    kernel.settle(0.2)
    kernel.interrupt()
    assert kernel.finish(cell).status == "error"
    assert kernel.ok("job.wait(timeout=2)").displays == [{"text/plain": "True"}]


def test_a_timeout_names_the_ranks_that_hang_in_a_collective_and_where(fresh):
    begin = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
    fresh.ok(f"%%mesh\n{begin}", timeout_s=60)
    cell = fresh.run("%%mesh --timeout 1\nif rank != 2: dist.barrier()")
    assert re.search(
        r"TimeoutError: ranks 0-1,3 had not ended after 1 s and were interrupted; "
        r"ranks 0-1,3 are still at work\n"
        r"  ranks 0-1,3 are in \w+ \(distributed_c10d.py:\d+\), "
        r"at Cell In\[3\], line 2: if rank != 2: dist.barrier\(\)\n",
        cell.error,
    )
    assert cell.error.endswith("%mesh interrupt --kill 0-1,3 ends them")
    fresh.ok("%mesh restart 0-1,3")
    assert fresh.ok("%%mesh\n1").displays == [{"text/plain": "[0-3] 1"}]


def test_restart_gives_ranks_with_empty_namespaces(fresh):
    before = pids_of_ranks(fresh)
    fresh.ok("%%mesh\nkept = 1")
    said = fresh.ok("%mesh restart 1-2").text()
    assert said == "mesh0: ranks 1-2 started again, with empty namespaces\n"
    after = pids_of_ranks(fresh)
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, False, True]
    assert fresh.ok("%%mesh\n'kept' in dir()").displays == [
        {"text/plain": "[0,3] True\n[1-2] False"}
    ]


def test_stop_again_is_for_ranks_that_go_on(fresh):
    stubborn = (
        "import signal, time\nhits = []\nsignal.signal(signal.SIGINT, lambda *_: hits.append(1))\n"
    )
    work = "until = time.time() + 60\nwhile len(hits) < 2 and time.time() < until: time.sleep(0.05)"
    cell, _ = stop(fresh, f"%%mesh 3\n{stubborn}print('started', flush=True)\n{work}")
    assert "rank 3 is still at work" in cell.error
    fresh.interrupt()
    fresh.until(lambda: "cell In[2] has ended on all ranks" in cell.text("stderr"), timeout_s=5)
    assert fresh.ok("%%mesh 3\nlen(hits)").displays == [{"text/plain": "[3] 2"}]


def begun(kernel: KernelClient, code: str, mark: Path) -> Cell:
    """A cell that leaves a mark when it gets to work: C that holds the interpreter lets no word
    out."""
    cell = kernel.start(code)
    support.eventually(mark.exists)
    kernel.settle(0.1)
    return cell


def test_a_rank_that_hangs_in_c_is_found(fresh, tmp_path):
    """The line is known although C holds the interpreter and runs no signal handler of Python."""
    mark = tmp_path / "begun"
    cell = begun(fresh, f"%%mesh 0\nopen({str(mark)!r}, 'w')\nsum(range(10**10))", mark)
    fresh.interrupt()
    fresh.finish(cell)
    assert "rank 0 is at Cell In[2], line 3: sum(range(10**10))\n" in cell.error
    shown = fresh.ok("%mesh stacks").text()
    assert "ranks 1-3:\n  idle\n" in shown
    assert "rank 0:\n  Cell In[2], line 3, in <module>\n    sum(range(10**10))" in shown


def test_stop_frees_a_rank_whose_interpreter_is_held(fresh, tmp_path):
    """A regular expression that goes on for ages: no message is read, a signal is seen."""
    mark = tmp_path / "begun"
    cell = begun(
        fresh,
        f"%%mesh 1\nimport re\nopen({str(mark)!r}, 'w')\nre.fullmatch('(a+)+b', 'a' * 50)",
        mark,
    )
    pressed = time.monotonic()
    fresh.interrupt()
    fresh.finish(cell)
    assert cell.finished_s - pressed < PROMPT_S
    assert cell.error.endswith("KeyboardInterrupt: all ranks have stopped")
    assert fresh.ok("%%mesh\n1").displays == [{"text/plain": "[0-3] 1"}]


def test_stop_disturbs_no_cleanup(fresh):
    """Who has heard of the stop is left to end in peace."""
    cell, _ = stop(
        fresh,
        "%%mesh\nimport time\ntry:\n    print('started', flush=True); time.sleep(30)\n"
        "finally:\n    time.sleep(0.6); saved = True",
    )
    assert "still at work" in cell.error
    assert fresh.ok("%%mesh\nsaved").displays == [{"text/plain": "[0-3] True"}]


def test_a_call_that_takes_long_says_who_is_missing(kernel):
    kernel.ok(
        "import time\nfrom monarch_nb import Actor, current_rank, endpoint\n"
        "class Slow(Actor):\n"
        "    @endpoint\n"
        "    def work(self):\n        time.sleep(1.5 if current_rank().rank == 2 else 0)\n"
        "slow = mesh0.spawn('slow', Slow)"
    )
    cell = kernel.ok("slow.work.call().get()")
    [first] = cell.contents("display_data")
    assert first["data"]["text/plain"] == "slow.work: waiting for rank 2 of 4, 1.0 s"
    assert cell.contents("update_display_data")[-1]["data"] == {}


def test_values_that_take_long_say_so(kernel):
    kernel.ok("%%mesh 1 --noblock\nimport time\ntime.sleep(1.7)")
    cell = kernel.ok("mesh0['late'] = 1")
    [first] = cell.contents("display_data")
    assert first["data"]["text/plain"] == "mesh0.put late: waiting for rank 1 of 4, 1.0 s"


def test_what_was_flushed_is_shown_though_the_rank_is_gone(fresh):
    cell = fresh.run("%%mesh 2\nimport os\nprint('about to go', flush=True)\nos._exit(3)")
    assert cell.text() == "[2] about to go\n"
    assert cell.error.startswith("rank 2: the process exited with code 3")


def test_a_mesh_of_actors_shows_the_states_of_its_ranks(fresh):
    fresh.ok(
        "from monarch_nb import Actor\nclass Quiet(Actor):\n    pass\n"
        "quiet = mesh0.slice(gpus=slice(1, 4)).spawn('quiet', Quiet)"
    )
    assert (
        fresh.ok("quiet.initialized.get(); quiet")
        .displays[0]["text/plain"]
        .startswith("ActorMesh(class=__main__.Quiet, name='quiet', shape={gpus=3}")
    )
    fresh.ok("%mesh interrupt --kill 2")
    told = "quiet</b> 3 ranks (gpus=3) on mesh0: 2 idle, 1 exited"
    support.eventually(lambda: told in fresh.ok("quiet").displays[0]["text/html"])
