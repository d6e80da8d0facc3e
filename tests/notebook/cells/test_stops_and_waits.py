"""Cells in the background, cells that hang, and what is waited for, over real ranks."""

import re
from pathlib import Path

import pytest

from tests import support
from tests.kernel.client import Cell, KernelClient
from tests.notebook.ranks import PROMPT_S, pids_of_ranks, stop

FIRST_CELLS = ["%mesh up --gpus 4"]


def test_the_next_cell_waits_for_a_background_cell_on_its_ranks(kernel):
    kernel.ok("%%mesh -a\nimport time\ntime.sleep(0.6)\nended = True")
    assert kernel.ok("%%mesh\nended").displays == [{"text/plain": "[0-3] True"}]


def test_a_background_cell_is_cancelled_and_its_ranks_are_free(kernel):
    kernel.ok("%%mesh -a -o job\nimport time\ntime.sleep(60)")
    kernel.ok("job.cancel()")
    assert kernel.ok("job.wait(timeout=2)").displays == [{"text/plain": "True"}]
    assert kernel.ok("%%mesh\n1").displays == [{"text/plain": "[0-3] 1"}]


@pytest.mark.alone
def test_stop_of_a_cell_that_waits_for_its_turn_leaves_the_one_before_alone(kernel):
    kernel.ok("%%mesh -a -o job\nimport time\ntime.sleep(1.5)\n'whole'")
    cell = kernel.start(
        "print('started', flush=True)\nget_ipython().run_cell_magic('mesh', '', '1')"
    )
    kernel.until(lambda: "started" in cell.text())
    kernel.settle(0.2)
    assert kernel.stop_s(cell) < PROMPT_S
    assert cell.status == "error"
    assert kernel.ok("job.result().values()").displays == [{"text/plain": str(["whole"] * 4)}]


def test_stop_while_nothing_runs_is_for_cells_in_the_background(kernel):
    cell = kernel.ok("%%mesh -a\nimport time\nprint(f'rank {rank} works')\ntime.sleep(60)")
    kernel.until(lambda: all(f"rank {rank} works" in cell.text() for rank in range(4)))
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


def test_a_timeout_names_the_ranks_that_hang_in_a_collective_and_ends_it(fresh):
    begin = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
    fresh.ok(f"%%mesh\n{begin}", timeout_s=60)
    cell = fresh.run("%%mesh --timeout 1\nif rank != 2: dist.barrier()")
    assert cell.error.endswith(
        "TimeoutError: ranks 0-1,3 had not ended after 1 s and were interrupted"
    )
    assert "Cell In[3], line 2" in cell.error
    assert "ranks 0-1,3 have left a collective before it had ended" in cell.error
    assert fresh.ok("%%mesh\n1").displays == [{"text/plain": "[0-3] 1"}]


def test_ranks_that_wait_in_c_plus_plus_are_named_and_can_be_restarted(fresh):
    """DDP's reducer waits in the backward pass, where no signal is seen."""
    fresh.ok(
        "%%mesh\nimport torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))",
        timeout_s=60,
    )
    cell = fresh.run("%%mesh --timeout 1\nif rank != 2: model(torch.ones(1, 2)).sum().backward()")
    assert (
        "ranks 0-1,3 are in C++ code of PyTorch, which an interrupt may not end; "
        "%mesh restart 0-1,3 starts again, with empty namespaces"
    ) in cell.error
    fresh.ok("%mesh restart 0-1,3", timeout_s=30)
    assert "new process group (gloo)" in fresh.ok("%mesh regroup").text()
    assert fresh.ok("%%mesh\n1").displays == [{"text/plain": "[0-3] 1"}]


def test_restart_gives_ranks_with_empty_namespaces(fresh):
    before = pids_of_ranks(fresh)
    fresh.ok("%%mesh\nkept = 1")
    said = fresh.ok("%mesh restart 1-2").text()
    assert re.fullmatch(
        r"mesh0: ranks 1-2 started again, with empty namespaces\. %mesh replay [\d,-]+ --ranks 1-2 "
        r"runs there what cells have defined\n",
        said,
    )
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
    shown = fresh.ok("%mesh stacks").displays[0]["text/plain"]
    taken, _, stacks = shown.partition("\n")
    assert re.fullmatch(r"taken \d\d:\d\d:\d\d", taken)
    assert stacks == (
        "rank 0     Cell In[2], line 3, in <module>: sum(range(10**10))\nranks 1-3  idle"
    )


@pytest.mark.alone
def test_stop_frees_a_rank_whose_interpreter_is_held(fresh, tmp_path):
    """A regular expression that goes on for ages: no message is read, a signal is seen."""
    mark = tmp_path / "begun"
    cell = begun(
        fresh,
        f"%%mesh 1\nimport re\nopen({str(mark)!r}, 'w')\nre.fullmatch('(a+)+b', 'a' * 50)",
        mark,
    )
    assert fresh.stop_s(cell) < PROMPT_S
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
    assert cell.contents("clear_output")  # it has gone


def test_values_that_take_long_say_so(kernel):
    kernel.ok("%%mesh 1 --noblock\nimport time\ntime.sleep(1.7)")
    cell = kernel.ok("mesh0['late'] = 1")
    [first] = cell.contents("display_data")
    assert first["data"]["text/plain"] == "mesh0.put late: waiting for rank 1 of 4, 1.0 s"


@pytest.mark.fault
def test_what_was_flushed_is_shown_though_the_rank_is_gone(fresh):
    cell = fresh.run("%%mesh 2\nimport os\nprint('about to go', flush=True)\nos._exit(3)")
    assert cell.text() == "[2] about to go\n"
    assert cell.error.startswith("rank 2: the process exited with code 3")


@pytest.mark.fault
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
