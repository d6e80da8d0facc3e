"""How a run ends, and what does not end it: terminals that go, signals, kills."""

import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import pytest

from monarch_nb.control.batch import run_record
from monarch_nb.control.keeping import kept_record
from tests.batch.terminal import (
    COMMAND,
    READY_S,
    executed,
    notebook,
    shown,
    start,
    typed,
    until_shown,
)
from tests.support import code_until, descendants, eventually, is_running

pytestmark = [pytest.mark.slow, pytest.mark.fault, pytest.mark.timeout(120)]


@pytest.fixture
def path(folder: Path) -> Path:
    """Two ranks that wait until a file is there, then a cell that says so."""
    waits = f"%%mesh\nprint('in')\n{code_until(folder / 'go')}print('out')"
    return notebook(folder / "long.ipynb", "%mesh up --gpus 2", waits, "print('end')")


def at_work(run):
    """All its processes, once its ranks wait."""
    until_shown(run.output, 1, "[0-1] in")
    found = {run.pid, *descendants(run.pid)}
    assert len(found) > 4
    return found


def test_it_goes_on_when_its_terminal_goes(path, folder):
    master, terminal = pty.openpty()
    follower = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *COMMAND, "run", str(path)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    [run] = eventually(run_record.all_runs, READY_S)
    at_work(run)
    run = run.now()
    assert os.getsid(run.pid) == run.pid
    os.close(master)
    follower.wait(20)
    assert follower.returncode
    os.kill(run.pid, signal.SIGHUP)
    (folder / "go").touch()
    code, out, _ = typed("follow")
    assert code == 0
    assert "passed after" in out
    assert shown(run.output, 2) == "end\n"


def test_ctrl_c_leaves_it_running(path, folder):
    follower = subprocess.Popen([*COMMAND, "run", str(path)], stdout=subprocess.PIPE, text=True)
    [run] = eventually(run_record.all_runs, READY_S)
    at_work(run)
    follower.send_signal(signal.SIGINT)
    out, _ = follower.communicate(timeout=20)
    assert follower.returncode == 130
    assert out.endswith(
        "\nlong-1 goes on. Type: monarch-nb follow long-1, or monarch-nb attach long-1, or "
        "monarch-nb stop long-1\n"
    )
    (folder / "go").touch()
    assert typed("follow", "long-1")[0] == 0


def test_it_is_stopped_in_order(path):
    run = start(path)
    there = at_work(run.now())
    follower = subprocess.Popen([*COMMAND, "follow"], stdout=subprocess.PIPE, text=True)
    assert typed("stop") == (0, f"long-1 has ended (stopped): {run.output}\n", "")
    eventually(lambda: not any(map(is_running, there)), 10)
    out, _ = follower.communicate(timeout=20)
    assert follower.returncode == 130
    assert "stopped after" in out.splitlines()[-1]
    assert "it was stopped at cell 2 of 3 (%%mesh / print('in') ...)" in out.splitlines()[-1]
    assert shown(run.output, 1) == "[0-1] in\nCellInterrupted: all ranks have stopped\n"
    assert executed(run.output).metadata.monarch_nb.run.state == "stopped"
    assert executed(run.output).cells[2].outputs == []


def test_a_cell_that_does_not_let_itself_be_stopped_is_marked(folder):
    defies = "print('in')\nwhile True:\n    try:\n        import time\n        time.sleep(9)\n"
    defies += "    except KeyboardInterrupt: print('no')\n"
    run = start(notebook(folder / "defies.ipynb", defies))
    until_shown(run.output, 0, "in")
    began = time.monotonic()
    assert typed("stop")[0] == 0
    assert time.monotonic() - began < 30
    assert shown(run.output, 0).startswith("in\nno\n")
    assert shown(run.output, 0).endswith(
        "Stopped: the run was stopped, and this cell did not end\n"
    )


def test_it_is_stopped_while_its_kernel_starts(path):
    run = start(path)
    os.kill(run.now().pid, signal.SIGTERM)
    code, out, _ = typed("follow")
    assert code == 130
    assert out.splitlines()[-1].startswith("stopped after")


def test_meshes_that_pages_keep_by_default_end_with_it(folder, monkeypatch):
    monkeypatch.setenv("MONARCH_NB_KEEP_S", "600")
    monkeypatch.setenv("JPY_SESSION_NAME", str(folder / "page.ipynb"))
    asks = "import os\nprint(os.environ.get('JPY_SESSION_NAME'))"
    path = notebook(folder / "short.ipynb", "%mesh up --gpus 2", asks)
    assert typed("run", path)[0] == 0
    assert kept_record.all_records() == []
    assert shown(folder / "short.run-1.ipynb", 1) == "None\n"


def test_nothing_is_left_when_its_process_is_killed(path):
    run = start(path)
    there = at_work(run.now())
    os.kill(run.now().pid, signal.SIGKILL)
    eventually(lambda: not any(map(is_running, there)), 10)
    code, out, _ = typed("follow")
    assert code == 137
    said = "killed: its process was killed while cell 2 of 3 ran; "
    assert out.splitlines()[-1] == f"{said}{run.output} is as it was a moment before"
    assert shown(run.output, 1).startswith("[0-1] in\n")
    assert typed("runs")[1].startswith("long-1  killed  ")
    assert not list(run.connections.iterdir())
