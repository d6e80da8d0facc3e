"""Ranks that wait for one another: what is said, how it ends, and a new group; over real ranks."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from monarch_nb.core.errors.records import ErrorRecord
from monarch_nb.notebook.hangs import who_left, without_noise
from tests.kernel.client import Cell, KernelClient
from tests.notebook.ranks import PROMPT_S, pids_of_ranks

TOLD_S = 5.0
INIT = (
    "%%mesh\nimport time, torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
    "kept = rank\nones = torch.ones(4)\nfor _ in range(3): dist.all_reduce(ones)"
)
LATE = "%%mesh\ndef load():\n    time.sleep(60)\nif rank == 3: load()\ndist.all_reduce(ones)"


def line(cell: Cell) -> str:
    """What the line below the cell says now; of an alarm without its sign and advice."""
    return alarm(cell).partition("\n")[0].removeprefix("\N{WARNING SIGN} ")


def alarm(cell: Cell) -> str:
    shown = cell.contents("display_data", "update_display_data")
    return shown[-1]["data"].get("text/plain", "") if shown else ""


def told(kernel: KernelClient, cell: Cell, pattern: str, within_s: float = TOLD_S) -> str:
    kernel.until(lambda: re.fullmatch(pattern, line(cell)), timeout_s=within_s)
    return line(cell)


def stopped(kernel: KernelClient, cell: Cell) -> Cell:
    assert kernel.stop_s(cell) < PROMPT_S
    return cell


@pytest.fixture
def grouped(fresh) -> KernelClient:
    fresh.ok(INIT, timeout_s=60)
    return fresh


@pytest.mark.parametrize(
    "said",
    [
        "Application timeout caused pair closure",
        "[/gloo/gloo/transport/tcp/pair.cc:541] Connection closed by peer [127.0.0.1]:20354",
        "[/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:20354: Connection reset",
        "[/gloo/gloo/transport/tcp/pair.cc:328] writev [127.0.0.1]:20354: Broken pipe",
    ],
)
def test_however_a_stopped_wait_in_cpp_ends_its_rank_has_left_it(said):
    lost = ErrorRecord("RuntimeError", said)
    stop = ErrorRecord("KeyboardInterrupt", "", context=lost)
    assert who_left({3: stop}).startswith("rank 3 has left a collective before it had ended")
    assert without_noise(stop).context is None
    own = ErrorRecord("KeyboardInterrupt", "", context=ErrorRecord("OSError", "Broken pipe"))
    assert not who_left({3: own})
    assert without_noise(own) is own


def test_a_rank_that_does_not_come_is_named_and_the_line_goes_on(grouped):
    cell = grouped.start(LATE)
    pattern = r"ranks 0-2 in all_reduce #4 for (\d+) s; rank 3 in Cell In\[3\], line 3 load\(\)"
    first = told(grouped, cell, pattern)
    grouped.until(lambda: line(cell) != first, timeout_s=4)
    assert re.fullmatch(pattern, line(cell)), line(cell)
    assert alarm(cell).startswith("\N{WARNING SIGN} ranks 0-2 in all_reduce")
    assert alarm(cell).endswith(
        "\nThe stop button ends the wait; %mesh collectives and %mesh stacks show more"
    )
    assert len(cell.contents("display_data")) == 1
    stopped(grouped, cell)
    assert cell.error.endswith("KeyboardInterrupt: all ranks have stopped")
    assert (
        "ranks 0-2 have left a collective before it had ended. "
        "The next cell has a new process group"
    ) in cell.error


def test_the_alarm_stays_below_what_ranks_print(grouped):
    cell = grouped.start(
        "%%mesh\nfor i in range(60 * (rank == 3)): print('step', i, flush=True); time.sleep(0.2)\n"
        "dist.all_reduce(ones)"
    )
    told(grouped, cell, "ranks 0-2 in all_reduce.*")
    grouped.until(lambda: "step 30" in cell.text(), timeout_s=20)
    grouped.until(lambda: cell.parts[-1].startswith("\N{WARNING SIGN}"), timeout_s=10)
    grouped.until(lambda: [text[0] for text in cell.parts].count("\N{WARNING SIGN}") == 1)
    stopped(grouped, cell)


@pytest.mark.fault
def test_a_rank_that_is_stopped_is_named_in_time_and_the_line_goes_when_it_goes_on(fresh):
    [pid] = pids_of_ranks(fresh)[2:3]
    cell = fresh.start("%%mesh\nimport time\nprint('started', flush=True)\ntime.sleep(12)")
    fresh.until(lambda: "started" in cell.text())
    at = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    try:
        wanted = r"rank 2 does not answer, stopped or frozen; mesh0: waiting for ranks 0-3, .*"
        told(fresh, cell, wanted)
        assert time.monotonic() - at <= 2.5
        assert "%mesh interrupt --kill 2 ends it" in alarm(cell)
    finally:
        os.kill(pid, signal.SIGCONT)
    told(fresh, cell, "mesh0: waiting for ranks 0-3, .*", within_s=2.5)
    stopped(fresh, cell)


def test_one_command_makes_the_group_again_and_nothing_is_lost(grouped):
    grouped.ok("%%mesh\npair = dist.new_group([0, 1])")
    cell = grouped.start(LATE)
    told(grouped, cell, "ranks 0-2 in all_reduce.*")
    stopped(grouped, cell)
    said = grouped.ok("%mesh regroup").text()
    assert said == (
        "mesh0: all ranks are in a new process group (gloo). 1 other group is gone: make them with "
        "new_group. What holds the old one (DDP, DeviceMesh) has to be made again\n"
    )
    shown = grouped.ok("%%mesh\nones.fill_(1); dist.all_reduce(ones); kept, ones[0].item()")
    assert shown.displays[0]["text/plain"].splitlines() == [
        f"[{rank}] ({rank}, 4.0)" for rank in range(4)
    ]
    assert grouped.ok("%mesh collectives").text() == "ranks 0-3  all_reduce #1 f32[4]\n"


def test_ranks_in_different_collectives_are_told_apart(grouped):
    cell = grouped.start(
        "%%mesh\nif rank == 1: dist.broadcast(ones, 0)\nelse: dist.all_reduce(ones)"
    )
    told(grouped, cell, r"ranks 0,2-3 in all_reduce #4 for \d s; rank 1 in broadcast #4 for \d s")
    stopped(grouped, cell)


def test_collectives_shows_the_first_disagreement(grouped):
    cell = grouped.ok("%%mesh --noblock -o job\nif rank: dist.all_reduce(ones[:rank])")
    assert cell.status == "ok"

    def report() -> str:
        return grouped.ok("%mesh collectives --last 2").text()

    grouped.until(lambda: report().count("waiting") == 3, timeout_s=10)
    assert report() == (
        "rank 1 waits in all_reduce #4 f32[1]; rank 2 is in all_reduce #4 f32[2]; "
        "rank 3 is in all_reduce #4 f32[3]\n"
        "The stop button ends the wait; the next cell has a new process group\n\n"
        "rank 0  all_reduce #2 f32[4]\n        all_reduce #3 f32[4]\n"
        "rank 1  all_reduce #3 f32[4]\n        all_reduce #4 f32[1], waiting\n"
        "rank 2  all_reduce #3 f32[4]\n        all_reduce #4 f32[2], waiting\n"
        "rank 3  all_reduce #3 f32[4]\n        all_reduce #4 f32[3], waiting\n"
    ), grouped.run("%mesh status").shown + grouped.run("job.result()").shown
    busy = grouped.run("%mesh regroup")
    assert "ranks 1-3 are still at work. %mesh interrupt stops that" in busy.error
    grouped.ok("job.cancel()")
    grouped.ok("job.wait(timeout=2)")
    assert grouped.ok("%mesh regroup").text().startswith("mesh0: all ranks are in a new process")


def test_a_rank_that_only_computes_is_not_looked_into(grouped):
    cell = grouped.ok("%%mesh\ntime.sleep(3.5)")
    drawn = [content["data"].get("text/plain", "")
             for content in cell.contents("display_data", "update_display_data")]  # fmt: skip
    assert all(text == "" or text.startswith("mesh0: waiting for") for text in drawn)


def test_a_rank_that_was_restarted_comes_into_the_new_group(grouped):
    cell = grouped.start(LATE)
    told(grouped, cell, "ranks 0-2 in all_reduce.*")
    stopped(grouped, cell)
    grouped.ok("%mesh restart 3", timeout_s=30)
    assert "new process group (gloo)" in grouped.ok("%mesh regroup").text()
    shown = grouped.ok(
        "%%mesh\nimport torch, torch.distributed as dist\n"
        "x = torch.ones(1); dist.all_reduce(x); x.item()"
    )
    assert shown.displays[0]["text/plain"] == "[0-3] 4.0"


def test_what_cannot_be_told_is_said(fresh):
    assert fresh.ok("%mesh collectives").text() == "ranks 0-3  no process group\n"
    assert fresh.ok("%mesh regroup").text() == "mesh0: ready for a new init_process_group().\n"
    assert "mesh0 has no rank 7; its ranks are 0-3" in fresh.run("%mesh collectives 7").error
    assert "%mesh collectives: cannot read 'x'" in fresh.run("%mesh collectives x").error
    fresh.ok("%mesh down")
    for command in ("collectives", "regroup", "stacks"):
        assert "no mesh is up" in fresh.run(f"%mesh {command}").error.lower()


def test_a_recorder_that_is_off_is_named(fresh):
    fresh.ok("%%mesh\nimport os; os.environ['TORCH_FR_BUFFER_SIZE'] = '0'")
    fresh.ok(INIT, timeout_s=60)
    shown = fresh.ok("%mesh collectives").text()
    assert shown == "ranks 0-3  nothing is recorded: TORCH_FR_BUFFER_SIZE is 0\n"
    cell = fresh.start(LATE)
    told(fresh, cell, r"ranks 0-2 in all_reduce for \d s; rank 3 in .* load\(\)")
    stopped(fresh, cell)


def test_native_frames_where_they_can_be_read(grouped):
    """Or the reason, where the machine forbids it."""
    cell = grouped.ok("%%mesh 0 --noblock -o job\ndist.all_reduce(ones)")
    assert cell.status == "ok"
    grouped.until(lambda: "waiting" in grouped.ok("%mesh collectives 0").text(), timeout_s=10)
    shown = grouped.ok("%mesh stacks 0 --native", timeout_s=30).shown
    if "File" not in shown:
        pytest.skip(shown)
    assert "in all_reduce" in shown
    assert re.search(r"lib\w+\S*\.so\S*\", line 0, in ", shown), shown
    assert "Cell In[3]" in shown
    grouped.ok("job.cancel()")


@pytest.mark.slow
@pytest.mark.fault
def test_under_load_nobody_is_said_not_to_answer(fresh):
    """Eight processes beside four ranks that compute, on whatever processors there are."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(8)]
    try:
        cell = fresh.ok(
            "%%mesh\nimport time\nend = time.monotonic() + 6\n"
            "while time.monotonic() < end: sum(range(1000))"
        )
    finally:
        for process in busy:
            process.kill()
            process.wait()
    shown = cell.contents("display_data", "update_display_data")
    said = [each["data"].get("text/plain", "") for each in shown]
    assert any("waiting for ranks 0-3" in text for text in said)
    assert not any("does not answer" in text for text in said)
