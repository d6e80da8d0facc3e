"""`%%mesh` in a real kernel, over a fake runtime: outputs, results, errors, the stop button."""

import pytest

from tests.kernel.client import KernelClient
from tests.notebook.ranks import stop

# ---------------------------------------------------------- output and results


def test_equal_output_is_one_line(fake_kernel):
    assert fake_kernel.ok("%%mesh\nprint('hello')").text() == "[0-3] hello\n"


def test_different_output_is_labelled(fake_kernel):
    lines = fake_kernel.ok("%%mesh\nprint('I am', rank)").text().splitlines()
    assert sorted(lines) == [f"[{rank}] I am {rank}" for rank in range(4)]


def test_output_comes_while_the_cell_runs(fake_kernel):
    cell = fake_kernel.start("%%mesh\nprint('early'); sleep(20)")
    fake_kernel.until(lambda: "[0-3] early" in cell.text(), timeout_s=2)
    assert cell.reply is None
    fake_kernel.interrupt()
    fake_kernel.finish(cell)


def test_stderr_stays_stderr(fake_kernel):
    assert fake_kernel.ok("%%mesh\nwarn('careful')").text("stderr") == "[0-3] careful\n"


def test_results_of_the_last_expression(fake_kernel):
    assert fake_kernel.ok("%%mesh\n1 + 1").displays == [{"text/plain": "[0-3] 2"}]
    assert fake_kernel.ok("%%mesh\nrank % 2").displays == [{"text/plain": "[0,2] 0\n[1,3] 1"}]
    assert fake_kernel.ok("%%mesh\nNone").displays == []


def test_rich_results_have_a_header(fake_kernel):
    fake_kernel.ok("from tests.notebook.fake_client import Rich")
    fake_kernel.ok("for space in fake.meshes[0].spaces: space['Rich'] = Rich")
    (html,) = fake_kernel.ok("%%mesh\nRich(text_html='<b>x</b>', text_plain='x')").displays
    assert html["text/plain"] == "[0-3] x"
    assert html["text/html"].endswith("[0-3]</div><b>x</b>")
    header, image = fake_kernel.ok("%%mesh 2\nRich(image_png='aGk=', text_plain='fig')").displays
    assert header["text/plain"] == "[2]"
    assert image["image/png"] == "aGk="


def test_displays_on_ranks_arrive_in_order(fake_kernel):
    cell = fake_kernel.ok(
        "%%mesh\nprint('before'); display({'text/plain': 'shown'}); print('after')"
    )
    assert cell.shown == "[0-3] before\n[0-3] shown\n[0-3] after\n"


def test_state_persists_on_ranks(fake_kernel):
    fake_kernel.ok("%%mesh\nkept = rank * 10")
    assert fake_kernel.ok("%%mesh 3\nkept").displays == [{"text/plain": "[3] 30"}]


def test_late_output_goes_to_the_cell_that_caused_it(fake_kernel):
    first = fake_kernel.ok(
        "%%mesh 1\nimport threading\nthreading.Timer(0.4, lambda: print('late')).start()"
    )
    second = fake_kernel.ok("import time; time.sleep(0.8); print('second')")
    fake_kernel.until(lambda: "late" in first.text())
    assert second.text() == "second\n"


def test_capture_takes_the_output_of_ranks(fake_kernel):
    cell = fake_kernel.ok(
        "%%capture taken\nget_ipython().run_cell_magic('mesh', '', 'print(\"x\")')"
    )
    assert cell.text() == ""
    assert fake_kernel.ok("taken.stdout").displays == [{"text/plain": "'[0-3] x\\n'"}]


def test_failures_nobody_waits_for_are_told_once_under_the_next_cell(fake_kernel):
    fake_kernel.ok(
        "import threading\n"
        "class Failure:\n    ended = None\n"
        "    def report(self): return 'rank 2 of mesh0 was killed by SIGKILL'\n"
        "def fail():\n    for tell in fake.client.failures: tell(Failure())\n"
        "threading.Timer(0.3, fail).start()"
    )
    fake_kernel.settle(0.8)
    cell = fake_kernel.ok("'next'")
    assert cell.text("stderr") == "rank 2 of mesh0 was killed by SIGKILL\n"
    assert cell.displays == [{"text/plain": "'next'"}]
    assert fake_kernel.ok("1").text("stderr") == ""


# ------------------------------------------------------------------------------------ errors


def test_one_merged_traceback_with_the_lines_of_the_cell(fake_kernel):
    cell = fake_kernel.run("%%mesh\n\n# a comment\ndef f(x):\n    return 1 / x\n\nf(0)")
    number = cell.reply["content"]["execution_count"]
    assert cell.status == "error"
    assert cell.error == (
        "ranks 0-3: ZeroDivisionError: division by zero\n"
        "Traceback (most recent call last):\n"
        f"  Cell In[{number}], line 7, in <module>\n"
        "    f(0)\n"
        f"  Cell In[{number}], line 5, in f\n"
        "    return 1 / x\n"
        "           ^^^^^\n"
        "ZeroDivisionError: division by zero\n\n"
        "%debug opens pdb where ranks 0-3 failed"
    )
    [error] = cell.contents("error")
    assert error["ename"] == "CellError"
    assert error["evalue"] == "ranks 0-3: ZeroDivisionError: division by zero"


def test_a_traceback_through_an_earlier_cell_names_it(fake_kernel):
    defined = fake_kernel.ok("%%mesh\ndef g():\n    raise KeyError('k')").reply["content"][
        "execution_count"
    ]
    cell = fake_kernel.run("%%mesh\ng()")
    assert f"Cell In[{defined}], line 3, in g\n    raise KeyError('k')" in cell.error


def test_different_errors_are_told_apart_and_results_of_others_are_shown(fake_kernel):
    cell = fake_kernel.run("%%mesh\nif rank == 0: 1/0\nif rank == 1: int('x')\nrank")
    assert cell.displays == [{"text/plain": "[2] 2\n[3] 3"}]
    assert "rank 0: ZeroDivisionError" in cell.error
    assert "rank 1: ValueError: invalid literal" in cell.error
    assert "monarch_nb" not in cell.error


def test_a_syntax_error_points_at_the_line(fake_kernel):
    cell = fake_kernel.run("%%mesh\nx = 1\ny = = 2")
    number = cell.reply["content"]["execution_count"]
    assert f"Cell In[{number}], line 3" in cell.error
    assert "SyntaxError" in cell.error


def test_the_error_can_be_caught_and_asked(fake_kernel):
    code = (
        "try:\n    get_ipython().run_cell_magic('mesh', '0,2', '1/0')\n"
        "except Exception as error:\n    import pickle; again = pickle.loads(pickle.dumps(error))\n"
        "    print(error.ranks, again[2].ename, again)"
    )
    assert fake_kernel.ok(code).text() == (
        "(0, 2) ZeroDivisionError ranks 0,2: ZeroDivisionError: division by zero\n"
    )


def test_who_still_runs_after_others_have_failed_is_told(fake_kernel):
    cell = fake_kernel.start("%%mesh\nif rank == 0: 1/0\nsleep(30)")
    told = (
        "ranks 1-3 are still running after rank 0: ZeroDivisionError: division by zero. "
        "The stop button interrupts them.\n"
    )
    fake_kernel.until(lambda: told in cell.text("stderr"), timeout_s=4)
    fake_kernel.interrupt()
    assert fake_kernel.finish(cell).text("stderr").count("still running") == 1


def test_our_frames_are_hidden_in_the_users_errors(fake_kernel):
    cell = fake_kernel.run("from monarch_nb.core.shape.extent import Extent\nExtent(['a'], [1, 2])")
    assert "ValueError: 1 labels for 2 sizes" in cell.error
    assert "shape.py" not in cell.error


# --------------------------------------------------------------------------- the stop button


def test_stop_interrupts_the_ranks_once_and_shows_where_they_were(fake_kernel):
    cell, waited = stop(fake_kernel, "%%mesh\nprint('started')\nsleep(30)")
    assert waited < 0.3
    assert cell.status == "error"
    assert "ranks 0-3 were interrupted at\n  Cell In[" in cell.error
    assert "line 3, in <module>" in cell.error
    assert cell.error.endswith("sleep(30)\nKeyboardInterrupt: all ranks have stopped")
    assert cell.error.count("KeyboardInterrupt") == 1
    assert fake_kernel.ok("print(fake.runs[-1][1].interrupts)").text() == "1\n"
    assert fake_kernel.ok("%%mesh\n'next'").displays == [{"text/plain": "[0-3] 'next'"}]


@pytest.mark.slow
def test_stop_gives_the_prompt_back_when_ranks_do_not_stop():
    with KernelClient("monarch") as kernel:
        kernel.ok("%load_ext monarch_nb.notebook.extension")
        kernel.ok("from tests.notebook.fake_client import install; fake = install(get_ipython())")
        kernel.ok("%mesh up --gpus 4")
        cell, waited = stop(
            kernel, "%%mesh\nprint('started')\nstuck(6) if rank == 3 else sleep(30)"
        )
        number = cell.reply["content"]["execution_count"]
        assert waited < 0.3
        assert cell.error.endswith(
            "KeyboardInterrupt: interrupted; rank 3 is still at work\n"
            f"  rank 3 is at Cell In[{number}], line 3: stuck(6) if rank == 3 else sleep(30)\n"
            "The next %%mesh waits for it. Stop again interrupts it; "
            "%mesh interrupt --kill 3 ends it"
        )
        # others are free at once
        assert kernel.ok("%%mesh 0-2\nrank").displays == [{"text/plain": "[0] 0\n[1] 1\n[2] 2"}]
        # the next cell on rank 3 waits a while, then says who it is
        cell = kernel.run("%%mesh\nrank")
        assert cell.status == "error"
        assert cell.error.startswith(f"rank 3 is still busy with cell In[{number}], started ")
        assert cell.error.endswith(" s ago; wait, or %mesh interrupt --kill 3")
        # and then runs
        assert len(kernel.ok("%%mesh\nrank * 0").displays) == 1


def test_where_a_rank_is_comes_below_if_it_comes_late(fake_kernel):
    fake_kernel.ok(
        "whole = fake.stacks\n"
        "fake.stacks = lambda *asked, brief=False: {} if brief else whole(*asked)"
    )
    cell, waited = stop(
        fake_kernel, "%%mesh\nprint('started')\nstuck(1) if rank == 3 else sleep(30)"
    )
    assert waited < 0.3
    assert "interrupted; rank 3 is still at work\nThe next %%mesh waits for it." in cell.error
    fake_kernel.until(lambda: "rank 3 is at Cell In[" in cell.text("stderr"))
    fake_kernel.ok("fake.stacks = whole")


def test_a_rank_that_ends_while_others_are_looked_at_is_not_said_to_be_at_work(fake_kernel):
    fake_kernel.ok(
        "before = fake.stacks\ndef late(*args, **options):\n"
        "    fake.runs[-1][1].wait(10)\n    return before(*args, **options)\nfake.stacks = late"
    )
    cell, _ = stop(fake_kernel, "%%mesh\nprint('started')\nstuck(1) if rank == 3 else sleep(30)")
    fake_kernel.ok("fake.stacks = before")
    assert "still at work" not in cell.error
    assert cell.error.endswith("KeyboardInterrupt: all ranks have stopped")


def test_pressing_stop_again_and_again_is_harmless(fake_kernel):
    cell = fake_kernel.start("%%mesh\nprint('started')\nstuck(1) if rank == 3 else sleep(30)")
    fake_kernel.until(lambda: "started" in cell.text())
    for _ in range(5):
        fake_kernel.interrupt()
    assert fake_kernel.finish(cell, timeout_s=1).status == "error"
    fake_kernel.until(lambda: fake_kernel.run("%%mesh 3\n1").status == "ok")
    assert fake_kernel.ok("%%mesh\n'next'").displays == [{"text/plain": "[0-3] 'next'"}]


def test_lost_ranks_are_named_before_anything_runs(fake_kernel):
    fake_kernel.ok("fake.lost_ranks = [1]; before = len(fake.calls)")
    cell = fake_kernel.run("%%mesh 0,1,3\nrank")
    assert cell.error == (
        "rank 1 of mesh0 is lost; %mesh status shows how. "
        "Type: %mesh heal, or %%mesh 0,3 for the others"
    )
    assert fake_kernel.ok("len(fake.calls) - before").displays == [{"text/plain": "0"}]
    assert fake_kernel.ok("%%mesh 0,3\n1").displays == [{"text/plain": "[0,3] 1"}]
    fake_kernel.ok("fake.lost_ranks = []")


def test_stop_works_in_a_plain_ipykernel_too():
    with KernelClient("python3") as kernel:
        kernel.ok("%load_ext monarch_nb.notebook.extension")
        kernel.ok("from tests.notebook.fake_client import install; fake = install(get_ipython())")
        kernel.ok("%mesh up --gpus 4")
        cell, waited = stop(kernel, "%%mesh\nprint('started')\nsleep(30)")
        assert waited < 0.3
        assert "ranks 0-3 were interrupted at\n  Cell In[" in cell.error
        assert kernel.ok("print(fake.runs[-1][1].interrupts)").text() == "1\n"
        assert kernel.ok("%%mesh\n'next'").displays == [{"text/plain": "[0-3] 'next'"}]


def test_stop_reaches_ranks_that_work_for_a_controller_cell(fake_kernel):
    """An actor call in an ordinary cell: the kernel forwards the interrupt under the cell's tag."""
    cell, waited = stop(
        fake_kernel, "import time\nprint('started', fake.client.tag, flush=True)\ntime.sleep(30)"
    )
    assert waited < 0.3
    tag = cell.text().split()[1]
    assert fake_kernel.ok("print(fake.client.interrupted[-1])").text().strip() == tag


def test_cells_work_in_terminal_ipython(tmp_path):
    import subprocess
    import sys

    script = (
        "%load_ext monarch_nb.notebook.extension\n"
        "from tests.notebook.fake_client import install; fake = install(get_ipython())\n"
        "%mesh up --gpus 4\n"
        "get_ipython().run_cell('%%mesh\\nprint(\"said\", rank * 0)\\nrank * 0');\n"
        "get_ipython().run_cell('%%mesh\\n1/0');\n"
        "get_ipython().run_cell('%%mesh 9\\n1');\n"
    )
    (tmp_path / "session.ipy").write_text(script)
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--colors=NoColor", str(tmp_path / "session.ipy")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "[0-3] said 0" in done.stdout
    assert "[0-3] 0" in done.stdout
    assert "ranks 0-3: ZeroDivisionError: division by zero" in done.stdout
    assert "9 is outside the mesh" in done.stdout
