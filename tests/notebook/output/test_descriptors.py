"""What C code and children of ranks write to descriptors 1 and 2 stands below the cell that caused
it, and is there when the cell has ended. Nothing can be read there."""

import pytest

from tests.kernel.client import KernelClient

FIRST_CELLS = ["%mesh up --gpus 4"]


@pytest.fixture(autouse=True, scope="module")
def imported(kernel: KernelClient) -> None:
    """What the cells use."""
    kernel.ok("%%mesh\nimport ctypes, os, subprocess, sys\nlibc = ctypes.CDLL(None)")


@pytest.mark.parametrize("is_headless", [False, True])
def test_it_is_there_when_the_cell_has_ended(kernel, is_headless):
    for number in range(25):
        code = f"%%mesh\n_ = os.write(1, b'line {number}\\n')"
        assert kernel.ok(code, allow_stdin=not is_headless).text() == f"[0-3] line {number}\n"


def test_a_line_of_printf_is_not_kept_back(kernel):
    cell = kernel.ok("%%mesh 0\n_ = libc.printf(b'not the end of a line, %d', 7)")
    assert cell.text() == "[0] not the end of a line, 7\n"


def test_a_child_and_its_errors_are_there(kernel):
    child = "subprocess.run('echo out; echo err >&2; seq 300', shell=True)"
    cell = kernel.ok(f"%%mesh 2\n_ = {child}")
    lines = cell.text().splitlines()
    assert lines[0] == "[2] out"
    assert lines[-1] == "[2] 300"
    assert "[2] err" in cell.text("stderr")


def test_a_child_that_goes_on_does_not_hold_the_cell(kernel):
    # it prints nothing itself: that might come behind a flood, and be hidden with most of it
    cell = kernel.ok("%%mesh 1\nforever = subprocess.Popen(['yes'])", timeout_s=10)
    kernel.until(lambda: cell.text().startswith("[1] y\n"))
    assert kernel.ok("%%mesh 1\nforever.kill()\nforever.wait()", timeout_s=10).status == "ok"


def test_a_rank_that_has_other_descriptors_runs_cells(kernel):
    kernel.ok("%%mesh 3\nsaved = os.dup(1)\nnull = os.open('/dev/null', os.O_WRONLY)")
    kernel.ok("%%mesh 3\n_ = os.dup2(null, 1), os.write(1, b'to nowhere')")
    kernel.ok("%%mesh 3\nos.close(1)")
    assert kernel.ok("%%mesh 3\n_ = os.dup2(saved, 1), os.write(1, b'back')").text() == "[3] back\n"
