"""The same cells in every place where notebooks run: nothing hangs, and what is kept is readable
without a kernel."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from tests.kernel.client import KernelClient

pytestmark = pytest.mark.timeout(180)

CELLS = [
    "%mesh up --gpus 2",
    "%%mesh\nimport time\nprint('hi'); time.sleep(1.5 * rank)\nrank",
    "%mesh list",
    "%%mesh --noblock -o job\nprint('later')",
    "job.result()",
    "%mesh down",
]
SAID = ["[0-1] hi\n", "[0] 0\n[1] 1", "* mesh0: 2 ranks (gpus=2)\n"]


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    """A notebook of the cells above."""
    path = tmp_path / "cells.ipynb"
    cells = list(map(nbformat.v4.new_code_cell, CELLS))
    kernel = {"kernelspec": {"name": "monarch", "display_name": "Monarch", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), path)
    return path


def run(*command: str, cwd: Path, **options: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=cwd, capture_output=True, text=True, timeout=120,
        env={**os.environ, "JUPYTER_PLATFORM_DIRS": "1"}, check=False, **options,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def texts(path: Path) -> list[str]:
    """What the outputs say, as one reads them in a notebook without a kernel."""
    found = []
    for cell in nbformat.read(path, 4).cells:
        for output in cell.outputs:
            if output.output_type == "stream":
                found.append(output.text)
            else:
                found.append(output.data["text/plain"])
    return found


def assert_all_is_there(found: list[str]) -> None:
    for said in SAID:
        assert said in found
    # of a cell in the background: one line, or two where the cell itself shows something between
    later = [line for text in found for line in text.splitlines() if line.endswith("] later")]
    assert sorted(later) in (["[0-1] later"], ["[0] later", "[1] later"])


def test_nbconvert_keeps_readable_outputs(notebook):
    run(
        "nbconvert",
        "--to",
        "notebook",
        "--execute",
        "--inplace",
        notebook.name,
        cwd=notebook.parent,
    )
    found = texts(notebook)
    assert_all_is_there(found)
    assert not any("waiting for" in text for text in found)
    nbformat.validate(nbformat.read(notebook, 4))
    page = run("nbconvert", "--to", "html", "--stdout", notebook.name, cwd=notebook.parent)
    assert "[0-1] hi" in page
    assert "done in " in page


def test_papermill_runs_it_with_parameters(notebook):
    source = nbformat.read(notebook, 4)
    wanted = nbformat.v4.new_code_cell("gpus = 1", metadata={"tags": ["parameters"]})
    source.cells.insert(0, wanted)
    source.cells[1].source = "get_ipython().run_line_magic('mesh', f'up --gpus {gpus}')"
    nbformat.write(source, notebook)
    command = ["papermill", notebook.name, "out.ipynb", "-p", "gpus", "2", "--no-progress-bar"]
    run(*command, cwd=notebook.parent)
    found = texts(notebook.parent / "out.ipynb")
    assert_all_is_there(found)


def test_jupyter_console_shows_everything(notebook):
    lines = ["%mesh up --gpus 2", "%px print('hi')", "%px rank", "%px 1 / rank"]
    lines += ["%px import time; time.sleep(1.2)", "%mesh down", "exit"]
    typed = "\n".join(lines) + "\n"
    said = run(
        "jupyter_console",
        "--kernel",
        "monarch",
        "--simple-prompt",
        cwd=notebook.parent,
        input=typed,
    )
    assert "mesh0 is up: 2 ranks (gpus=2)" in said
    assert "[0-1] hi" in said
    assert "[0] 0\n[1] 1" in said
    assert "rank 0: ZeroDivisionError: division by zero" in re.sub(r"\x1b\[[0-9;]*m", "", said)
    assert "mesh0: waiting for ranks 0-1" in said
    assert "mesh0 is down" in said


@pytest.fixture(scope="module")
def plain() -> Iterator[KernelClient]:
    """The kernel that everybody has, with the extension loaded."""
    with KernelClient("python3") as kernel:
        kernel.ok("%load_ext monarch_nb")
        kernel.ok("%mesh up --gpus 2", timeout_s=60)
        yield kernel


@pytest.mark.slow
def test_the_same_in_a_plain_kernel(plain):
    cell = plain.ok("%%mesh\nprint('hi')\nrank")
    assert cell.shown == "[0-1] hi\n[0] 0\n[1] 1\n"
    assert plain.ok("%px 1 + 1").displays == [{"text/plain": "[0-1] 2"}]
    assert plain.run("%%mesh\n1 / rank").error.startswith("rank 0: ZeroDivisionError")
    plain.ok("%%mesh -a -o job\nprint('later')")
    plain.ok("await job")


def test_nobody_waits_for_a_line_that_nobody_types(plain):
    cell = plain.run("%%mesh\ninput('name? ')", timeout_s=10, allow_stdin=False)
    assert cell.status == "error"
    assert "EOFError" in cell.error or "StdinNotImplementedError" in cell.error
