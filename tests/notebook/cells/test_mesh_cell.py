"""`%%mesh` with options: in the background, kept, bounded in time, here as well; over a fake
runtime."""

import re
import time

import pytest

# ---------------------------------------------------------------------- in the background


def test_noblock_returns_at_once_and_says_how_far_it_is(fake_kernel):
    cell = fake_kernel.ok("%%mesh --noblock -o job\nsleep(30) if rank == 3 else None")
    [shown] = cell.contents("display_data")
    number = cell.reply["content"]["execution_count"]
    assert shown["data"]["text/plain"].startswith(f"<cell In[{number}] on mesh0 [0-3]: ")
    assert "ranks done, 0.0 s>" in shown["data"]["text/plain"]
    fake_kernel.ok("import time\nwhile len(job.pending) > 1: time.sleep(0.01)")
    assert fake_kernel.ok("job.done, job.pending, job.ranks").displays == [
        {"text/plain": "(False, (3,), (0, 1, 2, 3))"}
    ]
    assert fake_kernel.ok("job.wait(timeout=0.1)").displays == [{"text/plain": "False"}]
    fake_kernel.ok("job.cancel()")
    assert fake_kernel.ok("job.wait(timeout=5)").displays == [{"text/plain": "True"}]


def test_what_a_background_cell_shows_changes_when_it_ends(fake_kernel):
    started = time.monotonic()
    cell = fake_kernel.ok("%%mesh -a\nsleep(0.5)")
    [shown] = cell.contents("display_data")
    fake_kernel.until(lambda: "done in" in str(cell.contents("update_display_data")), timeout_s=5)
    updates = cell.contents("update_display_data")  # ranks that end at different times are counted
    assert all(update["transient"] == shown["transient"] for update in updates)
    said = updates[-1]["data"]["text/plain"]
    [took] = re.findall(r"on mesh0 \[0-3\]: done in ([\d.]+) s", said)
    assert 0.5 <= float(took) <= round(time.monotonic() - started, 1)


def test_output_of_a_background_cell_comes_below_it(fake_kernel):
    cell = fake_kernel.ok("%%mesh -a\nsleep(0.4); print('late')\nrank * 0")
    other = fake_kernel.ok("print('other')")
    fake_kernel.until(lambda: "[0-3] 0" in cell.shown, timeout_s=5)
    assert cell.text() == "[0-3] late\n"
    assert other.text() == "other\n"


def test_an_error_in_the_background_is_told_below_its_cell_and_raised_by_result(fake_kernel):
    started = time.monotonic()
    cell = fake_kernel.ok("%%mesh -a -o job\nsleep(0.3); 1/0")
    told = "ranks 0-3: ZeroDivisionError: division by zero"
    fake_kernel.until(lambda: told in cell.text("stderr"), timeout_s=5)
    assert "line 2, in <module>\n    sleep(0.3); 1/0" in cell.text("stderr")
    again = fake_kernel.run("job.result()")
    assert again.status == "error"
    assert again.error.startswith(told)
    said = fake_kernel.ok("job").displays[0]["text/plain"]
    took = float(re.search(r"failed after ([\d.]+) s", said)[1])
    assert 0.3 <= took <= round(time.monotonic() - started, 1)
    assert fake_kernel.ok("job.error.ranks").displays == [{"text/plain": "(0, 1, 2, 3)"}]


def test_a_background_cell_can_be_awaited(fake_kernel):
    fake_kernel.ok("%%mesh -a -o job\nsleep(0.3)")
    assert fake_kernel.ok("await job\njob.done").displays == [{"text/plain": "True"}]
    fake_kernel.ok("%%mesh -a -o job\nif rank == 2: 1/0")
    assert fake_kernel.run("await job").error.startswith("rank 2: ZeroDivisionError")


def test_a_result_that_does_not_come_in_time(fake_kernel):
    fake_kernel.ok("%%mesh 0 -a -o job\nsleep(30)")
    cell = fake_kernel.run("job.result(timeout=0.1)")
    assert "TimeoutError: <cell In[" in cell.error
    assert "not ended within 0.1 s" in cell.error
    fake_kernel.ok("job.cancel(); job.wait()")


def test_stop_while_a_cell_waits_for_a_background_cell_ends_both(fake_kernel):
    fake_kernel.ok("%%mesh -a -o job\nsleep(30)")
    cell = fake_kernel.start(
        "import threading; threading.Timer(0.2, print, ['waiting']).start(); job.wait()"
    )
    fake_kernel.until(lambda: "waiting" in cell.text())
    assert fake_kernel.stop_s(cell) < 0.3
    assert cell.status == "error"
    assert cell.error.endswith("KeyboardInterrupt: all ranks have stopped")
    assert fake_kernel.ok("job.done").displays == [{"text/plain": "True"}]


# ---------------------------------------------------------------------------- kept, bounded


def test_out_keeps_a_cell_that_blocks_too(fake_kernel):
    fake_kernel.ok("%%mesh 0,2 --out kept\nprint('x')")
    assert fake_kernel.ok("kept.done, kept.ranks").displays == [{"text/plain": "(True, (0, 2))"}]
    fake_kernel.run("%%mesh -o failed\n1/0")
    assert fake_kernel.ok("failed.error.ranks").displays == [{"text/plain": "(0, 1, 2, 3)"}]


def test_a_timeout_interrupts_the_ranks_that_are_late(fake_kernel):
    begun = time.monotonic()
    cell = fake_kernel.run("%%mesh --timeout 0.5\nif rank > 1: sleep(30)\nrank")
    assert 0.5 <= time.monotonic() - begun < 2
    assert cell.displays == [{"text/plain": "[0] 0\n[1] 1"}]
    assert "ranks 2-3 were interrupted at\n  Cell In[" in cell.error
    assert cell.error.endswith(
        "TimeoutError: ranks 2-3 had not ended after 0.5 s and were interrupted"
    )
    assert fake_kernel.ok("%%mesh --timeout 5\n1").displays == [{"text/plain": "[0-3] 1"}]


@pytest.mark.parametrize("line, told", [
    ("--timeout x", "--timeout must be a number of seconds above 0, not 'x'"),
    ("--timeout -1", "--timeout "),
    ("--timeout inf", "--timeout must be a number of seconds above 0, not 'inf'"),
    ("--progress-after soon", "must be a number of seconds, -1 for never, not 'soon'"),
    ("--out 1x", "must be a word like mesh0, not '1x'"),
    ("--nobolck", "does not know --nobolck; did you mean --noblock?"),
    ("-t 9", "9 is outside the mesh"),
    ("-t 0 1:2", "mixes several ways"),
    ("0 -t 1", "takes ranks once"),
    ("@nosuch", "There is no mesh 'nosuch'. Up: mesh0."),
    ("@mesh0 --name mesh0", "is for one mesh"),
    ("gpus=7", "outside the mesh"),
    ("'0", "No closing quotation"),
])  # fmt: skip
def test_a_wrong_word_is_one_line_and_nothing_runs(fake_kernel, line, told):
    fake_kernel.ok("before = len(fake.calls)")
    cell = fake_kernel.run(f"%%mesh {line}\n1")
    assert cell.status == "error"
    assert told in cell.error
    assert "\n" not in cell.error
    assert fake_kernel.ok("len(fake.calls) - before").displays == [{"text/plain": "0"}]


@pytest.mark.parametrize("line, ranks", [
    ("--targets 1", "[1]"), ("-t 0,2", "[0,2]"), ("-t [0,2]", "[0,2]"), ("-t ::2", "[0,2]"),
    ("-t all", "[0-3]"), ("-t 1-2", "[1-2]"), ("-t -1", "[3]"), ("@mesh0 0", "[0]"),
    ("gpus=1:3", "[1-2]"), ("-b 0", "[0]"),
])  # fmt: skip
def test_ranks_as_ipyparallel_and_as_meshes_name_them(fake_kernel, line, ranks):
    assert fake_kernel.ok(f"%%mesh {line}\n'x'").displays == [{"text/plain": f"{ranks} 'x'"}]


# ------------------------------------------------------------------------ here as well, px


def test_local_runs_in_the_controller_too(fake_kernel):
    cell = fake_kernel.ok("%%mesh --local\nhere = 'rank' in dir()\nprint('said')")
    assert sorted(cell.text().splitlines()) == ["[0-3] said", "said"]
    assert fake_kernel.ok("here").displays == [{"text/plain": "False"}]
    assert fake_kernel.ok("%%mesh\nhere").displays == [{"text/plain": "[0-3] True"}]


def test_local_fails_when_either_side_fails(fake_kernel):
    cell = fake_kernel.run("%%mesh --local\nif 'rank' in dir(): 1/0")
    assert cell.error.startswith("ranks 0-3: ZeroDivisionError")
    cell = fake_kernel.run("%%mesh --local\nif 'rank' not in dir(): 1/0")
    assert "ZeroDivisionError" in cell.error
    assert cell.error.endswith("the cell failed in the controller, see above")


def test_px_is_another_name(fake_kernel):
    assert fake_kernel.ok("%%px 0,2\n'x'").displays == [{"text/plain": "[0,2] 'x'"}]
    assert fake_kernel.ok("%px 1 + 1").displays == [{"text/plain": "[0-3] 2"}]


def test_a_cell_ends_also_when_its_display_cannot_be_sent(fake_kernel):
    unfit = "from tests.notebook.fake_client import Rich\nRich(text_plain='x', image_png=object())"
    fake_kernel.ok(f"%%mesh --noblock -o unfit\n{unfit}")
    assert fake_kernel.ok("unfit.wait(5)").displays == [{"text/plain": "True"}]
    fake_kernel.ok(f"%%mesh\n{unfit}")


# ------------------------------------------------------------------------- the last failure


def test_errors_shows_the_last_failure_in_full(fake_kernel):
    cell = fake_kernel.run("%%mesh\nraise ValueError(f'{rank} ' + 'x' * 400)")
    assert "more characters" in cell.error
    shown = fake_kernel.ok("%mesh errors").text()
    assert "x" * 400 in shown
    assert "ranks 0-3: ValueError, 4 different messages" in shown
    one = fake_kernel.ok("%mesh errors 2").text()
    assert one.startswith("rank 2: ValueError: 2 xxx")
    cell = fake_kernel.run("%mesh errors 7")
    assert cell.error == "rank 7 did not fail in that cell, only ranks 0-3 did"


# --------------------------------------------------------------------------- ending a rank


def test_kill_and_restart_take_ranks_of_the_mesh_only(fake_kernel):
    assert fake_kernel.ok("%mesh interrupt --kill 1,3").text() == (
        "mesh0: ranks 1,3 killed. %mesh heal starts them again\n"
    )
    assert fake_kernel.ok("fake.killed").displays == [{"text/plain": "[1, 3]"}]
    cell = fake_kernel.run("%mesh interrupt --kill 4")
    assert cell.error == "mesh0 has no rank 4; its ranks are 0-3"
    assert fake_kernel.run("%mesh restart 2-9").error == (
        "mesh0 has no ranks 4-9; its ranks are 0-3"
    )
    assert fake_kernel.ok("fake.killed").displays == [{"text/plain": "[1, 3]"}]
    fake_kernel.ok("fake.killed.clear()")  # other tests have the same mesh
