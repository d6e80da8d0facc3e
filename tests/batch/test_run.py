"""`monarch-nb run`: a notebook without a browser, from its start to its exit code."""

import json
import os
import stat
from datetime import datetime
from pathlib import Path

import pytest

from monarch_nb.control.batch import run_record
from monarch_nb.host.rundir import sweep_all
from tests.batch.terminal import (
    executed,
    notebook,
    refused,
    shown,
    start,
    tagged,
    typed,
    until_shown,
)
from tests.support import code_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def test_a_notebook_passes_with_parameters_on_its_ranks(folder):
    path = notebook(
        folder / "train.ipynb",
        "%mesh up --gpus 2",
        tagged("%%mesh\nlr = 0.1\nsteps = 3", "parameters"),
        "%%mesh\nprint(lr, steps)\nrank * 10",
        "print('end')",
    )
    before = path.read_bytes()
    code, out, err = typed("run", path, "-p", "lr=1e-3")
    assert (code, err) == (0, "")
    output = folder / "train.run-1.ipynb"
    first, *lines = out.splitlines()
    assert first == f"train-1 runs and writes {output}. Ctrl-C leaves it running."
    assert lines[0] == "cell 1/5: %mesh up --gpus 2"
    assert lines[lines.index("cell 4/5: %%mesh / print(lr, steps) ...") + 1] == "[0-1] 0.001 3"
    assert lines[-2] == "end"
    assert lines[-1].startswith("passed after ")
    assert lines[-1].endswith(f" s: {output}")
    assert path.read_bytes() == before
    found = executed(output)
    assert found.cells[2].source == "%%mesh\n# Parameters\nlr = 0.001"
    assert found.cells[2].metadata.tags == ["injected-parameters"]
    assert shown(output, 3) == "[0-1] 0.001 3\n[0] 0\n[1] 10\n"
    run = found.metadata.monarch_nb.run
    assert (run.name, run.state, run.parameters) == ("train-1", "passed", {"lr": 0.001})
    assert datetime.fromisoformat(run.began) < datetime.fromisoformat(run.ended)
    for cell in found.cells:
        times = cell.metadata.execution
        assert times["iopub.status.busy"] <= times["iopub.status.idle"]
    assert found.metadata.language_info.name == "python"
    assert typed("follow", "train-1") == (0, "\n".join([*lines, ""]), "")


def test_a_notebook_that_fails_says_where(folder):
    path = notebook(folder / "bad.ipynb", "print('in')", "1 / 0", "print('never')")
    code, out, err = typed("run", path, "--output", "there.ipynb")
    assert (code, err) == (1, "")
    assert "ZeroDivisionError                         Traceback" in out
    assert out.splitlines()[-1].endswith(
        ": cell 2 of 3 (1 / 0) failed: ZeroDivisionError: division by zero"
    )
    assert shown("there.ipynb", 1) == "ZeroDivisionError: division by zero\n"
    assert executed("there.ipynb").cells[2].outputs == []
    assert executed("there.ipynb").metadata.monarch_nb.run.state == "failed"


def test_a_cell_that_is_meant_to_fail_ends_nothing(folder):
    path = notebook(folder / "meant.ipynb", tagged("1 / 0", "raises-exception"), "print('on')")
    assert typed("run", path)[0] == 0
    assert shown(folder / "meant.run-1.ipynb", 1) == "on\n"


def test_a_kernel_that_dies_fails_the_run(folder):
    path = notebook(folder / "dies.ipynb", "print('in', flush=True)\nimport os\nos._exit(3)", "1")
    code, out, _ = typed("run", path)
    assert code == 1
    assert "cell 1 of 2 (print('in', flush=True) ...) failed: DeadKernelError" in out
    assert "DeadKernelError: the kernel has ended while this cell ran" in shown(
        folder / "dies.run-1.ipynb", 0
    )
    sweep_all()  # it may have died before its agent was started: the next one to start does this


def test_what_cells_show_is_in_the_file_while_they_run(folder):
    path = notebook(
        folder / "slow.ipynb",
        "print('first')",
        f"print('one\\rtwo')\nprint('three')\n{code_until(folder / 'go')}print('four')",
        "print('last')",
    )
    run = start(path)
    until_shown(run.output, 1, "three")
    assert shown(run.output, 0) == "first\n"
    assert shown(run.output, 1) == "two\nthree\n"
    assert executed(run.output).metadata.monarch_nb.run.state == "running"
    _, listed, _ = typed("runs")
    assert listed.startswith("slow-1  cell 2/3  ")
    again = start(path)
    until_shown(again.output, 1, "three")
    assert Path(again.output).name == "slow.run-2.ipynb"
    assert f"slow-1 writes {run.output}" in refused("run", path, "--output", run.output)
    (folder / "go").touch()
    for each in (run, again):
        assert typed("follow", each.name)[0] == 0
        assert shown(each.output, 1) == "two\nthree\nfour\n"
    assert not [each.name for each in folder.iterdir() if each.name.startswith(".slow")]
    _, listed, _ = typed("runs")
    assert [line.split()[:2] for line in listed.splitlines()] == [
        ["slow-2", "passed"],
        ["slow-1", "passed"],
    ]
    assert "slow-1 is over (passed): open" in refused("attach", "slow-1")


def test_only_its_user_can_read_what_a_run_keeps(folder):
    path = notebook(folder / "own.ipynb", f"print('in')\n{code_until(folder / 'go')}")
    run = start(path)
    until_shown(run.output, 0, "in")
    kept = [run.folder.parent, run.folder, *run.folder.rglob("*")]
    assert {"record.json", "log", "kernel.json"} <= {each.name for each in kept}
    assert not [each for each in kept if stat.S_IMODE(each.stat().st_mode) & 0o077]
    assert "curve_secretkey" in json.loads((run.connections / "kernel.json").read_text())
    (folder / "go").touch()
    assert typed("follow")[0] == 0
    assert not list(run.connections.iterdir())


def test_runs_are_forgotten_after_a_week(folder):
    assert typed("run", notebook(folder / "old.ipynb", "1"))[0] == 0
    [run] = run_record.all_runs()
    record = run.folder / "record.json"
    said = json.loads(record.read_text())
    record.write_text(json.dumps(said | {"ended_s": said["ended_s"] - 8 * 86_400}))
    assert typed("runs")[1] == "no notebook has run. Type: monarch-nb run NOTEBOOK.ipynb\n"
    assert not run.folder.exists()
    assert Path(run.output).exists()


def test_another_kernel_and_parameters_without_a_cell(folder):
    path = notebook(folder / "plain.ipynb", "print(x, __import__('os').getcwd())", kernel=None)
    assert typed("run", path, "-p", "x=[1]", "--kernel-name", "python3", cwd="/")[0] == 0
    output = folder / "plain.run-1.ipynb"
    assert executed(output).cells[0].source == "# Parameters\nx = [1]"
    assert shown(output, 1) == f"[1] {folder}\n"
    assert executed(output).metadata.kernelspec.name == "python3"
    assert typed("run", output, "-p", "x=2")[0] == 0  # the parameters of another run go
    assert len(executed(folder / "plain.run-1.run-1.ipynb").cells) == 2


def test_mistakes_are_one_line_and_start_nothing(folder):
    path = notebook(folder / "a.ipynb", tagged("lr = 1", "parameters"))
    (folder / "text.ipynb").write_text("no JSON")
    for words, said in [
        (["b.ipynb"], f"there is no notebook {folder}/b.ipynb"),
        (["text.ipynb"], f"{folder}/text.ipynb is no notebook: "),
        ([path, "-p", "lr"], "-p lr: write it as -p lr=1e-3"),
        ([path, "-p", "lrr=1"], "-p lrr: the notebook has no such parameter. Did you mean lr?"),
        ([path, "--output", path], f"--output {path} is the notebook itself: name another file"),
        ([path, "--output", "/nowhere/b.ipynb"], "/nowhere cannot be written to. Type: --output"),
        ([path, "--kernel-name", "morse"], "there is no kernel 'morse'; known: "),
        ([path, "--hosts", "2"], "--hosts is for --on ENGINE"),
        ([path, "--on", "slurn"], "there is no engine or profile 'slurn'"),
        ([path, "--on", "ssh"], "--on ssh needs the names of hosts"),
        ([path, "--", "--x"], "-- is for --on ENGINE"),
    ]:
        assert refused("run", *words).startswith(said)
    assert refused("follow").startswith("no notebook has run. Type: monarch-nb run")
    assert not (folder / "keys/runs").exists()
    assert sorted(os.listdir(folder)) == ["a.ipynb", "text.ipynb"]
    assert typed("run", path)[0] == 0
    assert refused("stop", "b-1").startswith("there is no run 'b-1'; known: a-1. Type:")
