"""Meshes that are shown in real kernels: what pages get while cells run, and what a file keeps."""

import contextlib
import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from monarch_nb.notebook.view.browser.showing import MESH, VIEW
from tests.kernel.client import Cell, KernelClient
from tests.notebook.conftest import FAKE
from tests.source import ROOT

pytestmark = pytest.mark.timeout(120)

DRESS = "from tests.notebook.view.shown import dress\nhub = dress(get_ipython(), {!r})"
CONTROL = "jupyter.widget.control"
WIDGET = "%mesh show --widget"
BLOCK = "__import__('threading').Event().wait(30)"


@pytest.fixture(scope="module")
def kernel(fake_kernel, tmp_path_factory) -> KernelClient:
    """A kernel with a fake mesh of four ranks, and widgets with a front end of two lines."""
    fake_kernel.ok(DRESS.format(str(tmp_path_factory.mktemp("front"))))
    return fake_kernel


def send(
    kernel: KernelClient, kind: str, subshell: str, metadata: Any = None, **content: Any
) -> None:
    """What a page sends on the shell channel."""
    message = kernel.client.session.msg(kind, content, metadata=metadata)
    message["header"]["subshell_id"] = subshell
    kernel.client.shell_channel.send(message)


def comm_messages(kernel: KernelClient, comm_id: str) -> list[Any]:
    """The data of all messages of a comm, in the order of their coming."""
    everything = [*kernel.others, *(m for cell in kernel.cells.values() for m in cell.messages)]
    return [
        message["content"]["data"]
        for message in everything
        if message["msg_type"] == "comm_msg" and message["content"]["comm_id"] == comm_id
    ]


def model(cell: Cell) -> str:
    return cell.displays[-1][VIEW]["model_id"]


# --------------------------------------------------------------------------- magics, last lines


def test_a_mesh_as_the_last_expression_is_text_and_picture(kernel):
    [data] = kernel.ok("mesh0").displays
    assert set(data) == {"text/plain", "text/html", MESH}
    assert data["text/plain"].startswith("<FakeMesh mesh0>\nmesh0: 4 ranks (gpus=4): 4 idle")


def test_show_is_the_same_and_has_no_value(kernel):
    cell = kernel.ok("%mesh show")
    assert cell.contents("execute_result") == []
    [data] = cell.displays
    for same in ("mesh0", "%mesh show mesh0", "%mesh show @mesh0 all"):
        again = kernel.ok(same).displays[0]
        assert set(again) == set(data)
        assert again[MESH]["snapshot"]["meshes"] == data[MESH]["snapshot"]["meshes"]


@pytest.mark.parametrize("typed, ranks", [
    ("1-2", [1, 2]), ("gpus=0:2", [0, 1]), ("mesh0 3", [3]), ("0,2-3", [0, 2, 3]), ("half", [0, 1]),
    ("half 1", [1]),
])  # fmt: skip
def test_show_takes_ranks_and_slices(kernel, typed, ranks):
    kernel.ok("half = mesh0.slice(gpus=slice(0, 2))")
    [data] = kernel.ok(f"%mesh show {typed}").displays
    assert data[MESH]["ranks"] == ranks


@pytest.mark.parametrize("typed, told", [
    ("mesh9", "There is no mesh 'mesh9'"),
    ("9", "9 is outside the mesh"),
    ("mesh0 rows=1", "the mesh has no axis 'rows'"),
    ("--all", "%mesh show: does not know --all"),
])  # fmt: skip
def test_show_refuses_what_is_not_there(kernel, typed, told):
    cell = kernel.run(f"%mesh show {typed}")
    assert told in cell.error
    assert len(cell.error.splitlines()) == 1


def test_show_is_completed_and_explained(kernel):
    def complete(text: str) -> list[str]:
        return kernel.client.complete(text, reply=True, timeout=20)["content"]["matches"]

    assert "show" in complete("%mesh s")
    assert {"mesh0", "gpus=", "all", "0", "3"} <= set(complete("%mesh show "))
    assert "gpus=0:" in complete("%mesh show mesh0 gpus=")
    assert "%mesh show [MESH] [RANKS]" in kernel.ok("%mesh help").text()


def test_two_displays_are_two_views_of_one_model(kernel):
    first, second = kernel.ok(WIDGET), kernel.ok(f"{WIDGET} all")
    assert model(first) == model(second)
    assert second.contents("comm_open") == []
    assert kernel.ok("len(hub.channels) <= 8").displays[0]["text/plain"] == "True"


# ------------------------------------------------------------------------ while a cell blocks


@contextlib.contextmanager
def running(kernel: KernelClient, code: str) -> Iterator[Cell]:
    """A cell that has not ended when the block ends."""
    cell = kernel.start(code)
    yield cell
    assert cell.reply is None
    kernel.interrupt()
    kernel.finish(cell)


@pytest.fixture
def subshell(kernel: KernelClient) -> Iterator[str]:
    """Where JupyterLab sends comm messages."""
    asked = kernel.control("create_subshell_request", {})
    kernel.until(lambda: kernel.has_come("create_subshell_reply", asked))
    [reply] = [m for m in kernel.others if m["parent_header"].get("msg_id") == asked
               and m["msg_type"] == "create_subshell_reply"]  # fmt: skip
    name = reply["content"]["subshell_id"]
    yield name
    asked = kernel.control("delete_subshell_request", {"subshell_id": name})
    kernel.until(lambda: kernel.has_come("delete_subshell_reply", asked))


def test_a_page_that_is_loaded_again_gets_the_state_of_now_while_a_cell_blocks(kernel, subshell):
    shown, page = kernel.ok(WIDGET), uuid.uuid4().hex
    with running(kernel, "%%mesh 2\nprint('started'); sleep(30)") as cell:
        kernel.until(lambda: "started" in cell.text())
        send(
            kernel, "comm_open", subshell, comm_id=page, target_name=CONTROL, data={},
            metadata={"version": "1.0.0"},
        )  # fmt: skip
        send(kernel, "comm_msg", subshell, comm_id=page, data={"method": "request_states"})
        [answer] = kernel.until(lambda: comm_messages(kernel, page), timeout_s=5)
    assert answer["method"] == "update_states"
    mesh = answer["states"][model(shown)]["state"]["snapshot"]["meshes"]["mesh0"]
    assert [row[:2] for row in mesh["ranks"]] == [["2", "busy"], ["0-1,3", "idle"]]


def test_updates_come_while_a_cell_blocks(kernel):
    comm_id = model(kernel.ok(WIDGET))
    with running(kernel, f"hub.tell({{'type': 'delta'}}, 0.05, 5)\n{BLOCK}"):
        kernel.until(lambda: len(comm_messages(kernel, comm_id)) >= 5, timeout_s=10)
    numbers = [each["content"]["n"] for each in comm_messages(kernel, comm_id)]
    assert numbers == [0, 1, 2, 3, 4]


def test_what_a_page_says_arrives_while_a_cell_blocks(kernel, subshell):
    comm_id = model(kernel.ok(WIDGET))
    kernel.ok("hub.channels[0].heard.clear()")
    cell = kernel.start(
        "print('started', flush=True)\n"
        "while not hub.channels[0].heard: gap = __import__('time').sleep(0.01)"
    )
    kernel.until(lambda: "started" in cell.text())
    data = {"method": "custom", "content": {"v": 1, "type": "ping", "from": "me"}}
    send(kernel, "comm_msg", subshell, comm_id=comm_id, data=data)
    assert kernel.finish(cell).status == "ok"
    heard = kernel.ok("hub.channels[0].heard").displays[0]["text/plain"]
    assert heard == "[{'v': 1, 'type': 'ping', 'from': 'me'}]"


def test_nobody_is_told_anything_that_nobody_asked_for(kernel):
    comm_id = model(kernel.ok(WIDGET))
    before = len(comm_messages(kernel, comm_id))
    kernel.ok("%%mesh\nrank")
    kernel.ok("mesh0")
    kernel.settle()
    assert len(comm_messages(kernel, comm_id)) == before


@pytest.mark.slow
def test_anywidget_is_imported_with_the_first_widget():
    with KernelClient("monarch") as kernel:
        kernel.ok(FAKE)
        kernel.ok("%mesh up --gpus 2\n%mesh\nmesh0")
        loaded = kernel.ok("import sys; 'anywidget' in sys.modules").displays[0]
        assert loaded == {"text/plain": "False"}


@pytest.mark.fault
@pytest.mark.slow
def test_real_ranks_are_shown_with_what_failed_and_what_is_lost():
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh up --gpus 4", timeout_s=50)
        assert "mesh0: 4 ranks (gpus=4): 4 idle" in kernel.ok("mesh0").shown
        kernel.run("%%mesh 2\nx = 1\nbad = 1 / 0")
        failed = "✕ rank 2: ZeroDivisionError: division by zero (Cell In[3], line 3"
        kernel.until(lambda: failed in kernel.ok("%mesh show").shown)
        kernel.ok("%mesh interrupt --kill 1")
        lost = "✕ exited rank 1: was killed by signal 9"
        kernel.until(lambda: lost in kernel.ok("mesh0").shown)
        [data] = kernel.ok("%mesh show --widget 0-1").displays
        assert set(data) == {"text/plain", "text/html", VIEW, MESH}
        assert "2 ranks (rank=2): 1 idle, 1 exited" in data["text/html"]


# -------------------------------------------------------------------------- saved notebooks


def run_notebook(folder: Path, *cells: str) -> Any:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
    NotebookClient(notebook, kernel_name="monarch", timeout=60).execute(cwd=str(folder))
    return notebook


@pytest.mark.slow
def test_a_program_leaves_a_picture_and_no_widget_in_the_notebook(tmp_path):
    dress = DRESS.format(str(tmp_path))
    notebook = run_notebook(tmp_path, FAKE, "%mesh up --gpus 3", dress, WIDGET)
    [output] = notebook.cells[-1].outputs
    assert list(output.data) == ["text/plain", "text/html", MESH]
    assert output.data["text/plain"].startswith("<FakeMesh mesh0>\nmesh0: 3 ranks")
    assert "widgets" not in notebook.metadata
    assert page_of(notebook, tmp_path).count("<svg") == 1


def test_a_notebook_saved_by_a_page_shows_the_picture_elsewhere(kernel, tmp_path):
    [data] = kernel.ok("mesh0").displays
    output = nbformat.v4.new_output("display_data", data)
    cell = nbformat.v4.new_code_cell("mesh0", outputs=[output])
    page = page_of(nbformat.v4.new_notebook(cells=[cell]), tmp_path)
    assert page.count("<svg") == 1
    assert re.search(r"as of \d\d:\d\d:\d\d", page)


def page_of(notebook: Any, folder: Path) -> str:
    """As `nbconvert --to html` makes it."""
    path = folder / "saved.ipynb"
    nbformat.write(notebook, path)
    command = [sys.executable, "-m", "jupyter", "nbconvert", "--to", "html", "--template", "basic"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([*command, str(path)], check=True, capture_output=True, env=environment)
    return (folder / "saved.html").read_text()


def test_what_is_kept_in_a_file_is_json(kernel):
    [data] = kernel.ok("mesh0").displays
    assert json.loads(json.dumps(data[MESH]))["snapshot"]["type"] == "state"
