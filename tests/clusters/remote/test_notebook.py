"""Cells, help while typing, output, widgets, logs, the stop button, and code that changes."""

import re

import pytest

from tests.kernel.client import Cell, KernelClient
from tests.support import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
PROMPT_S = 0.3
NAMES = """%%mesh
import socket
if socket.gethostname() == "node2":
    def only_there(x, by=2):
        "Makes it smaller."
        return x / by
"""
GROUP = "%%mesh\nimport time, torch, torch.distributed as dist\ndist.init_process_group('gloo')"
WAITS = """%%mesh
def load():
    time.sleep(60)
if rank == 3:
    load()
dist.all_reduce(torch.ones(4))
"""
SLIDER = """%%mesh
import ipywidgets as widgets
slider = widgets.IntSlider(value=rank, description=f'lr {rank}')
slider
"""


def asked(kernel: KernelClient, kind: str, code: str) -> dict:
    """The answer to Tab or Shift-Tab at the end of the code."""
    ask = kernel.client.complete if kind == "complete" else kernel.client.inspect
    wanted = ask(code, len(code))

    def reply():
        return [m for m in kernel.others if m["parent_header"].get("msg_id") == wanted
                and m["msg_type"] == f"{kind}_reply"]  # fmt: skip

    return kernel.until(reply)[0]["content"]


def line(cell: Cell) -> str:
    """What the line below the cell says now."""
    shown = cell.contents("display_data", "update_display_data")
    return shown[-1]["data"].get("text/plain", "") if shown else ""


def test_names_that_only_ranks_there_have_are_completed_and_explained(kernel):
    kernel.ok(NAMES)
    assert asked(kernel, "complete", "%%mesh 2-3\nonly_th")["matches"] == ["only_there"]
    told = COLOURS.sub("", asked(kernel, "inspect", "%%mesh 2\nonly_there(")["data"]["text/plain"])
    assert "x, by=2" in told
    assert "Makes it smaller." in told
    assert asked(kernel, "complete", "%%mesh 0-1\nonly_th")["matches"] == []


def test_what_ranks_print_and_return_comes_in_their_order(kernel):
    cell = kernel.ok("%%mesh\nimport socket\nprint(socket.gethostname())\nrank // 2")
    assert sorted(cell.text().splitlines()) in (
        ["[0-1] node1", "[2-3] node2"],
        sorted(f"[{rank}] node{1 + rank // 2}" for rank in range(4)),
    )
    assert cell.displays == [{"text/plain": "[0-1] 0\n[2-3] 1"}]


def test_variables_come_and_go(kernel):
    kernel.ok("mesh0['sent'] = list(range(3))\n")
    assert kernel.ok("%%mesh\nsent.append(rank)").status == "ok"
    assert kernel.ok("print(mesh0['sent'].values())").text() == (
        "[[0, 1, 2, 0], [0, 1, 2, 1], [0, 1, 2, 2], [0, 1, 2, 3]]\n"
    )
    assert kernel.ok("%mesh get sent 3").displays == [{"text/plain": "[0, 1, 2, 3]"}]


def test_what_they_write_is_in_the_logs(kernel):
    kernel.ok("%%mesh\nimport os\nprint('to the log', rank)\nos.system('echo from a child')")
    said = kernel.ok("%mesh logs 3").text()
    assert "to the log 3\n" in said
    assert "from a child\n" in said
    *_, folder = said.splitlines()
    assert folder.startswith("whole logs of mesh0: ")


def test_a_widget_of_a_rank_moves_its_variable_and_follows_it(kernel):
    cell = kernel.ok(SLIDER)
    opened = {
        content["data"]["state"]["description"]: content["comm_id"]
        for content in cell.contents("comm_open")
        if content["data"]["state"]["_model_name"] == "IntSliderModel"
    }
    data = {"method": "update", "state": {"value": 42}, "buffer_paths": []}
    content = {"comm_id": opened["lr 3"], "data": data}
    kernel.client.shell_channel.send(kernel.client.session.msg("comm_msg", content))
    assert kernel.ok("%%mesh\nslider.value").displays == [
        {"text/plain": "[0] 0\n[1] 1\n[2] 2\n[3] 42"}
    ]
    changed = kernel.ok("%%mesh 2\nslider.value = 7").contents("comm_msg")
    assert [(c["comm_id"], c["data"]["state"]) for c in changed] == [(opened["lr 2"], {"value": 7})]


# That it has started is told by the line that never ends: the stop finds every rank there.
ENDLESS = """%%mesh
import itertools, time
for _ in print(f'{rank} has started', flush=True) or itertools.repeat(None): CODE
"""


@pytest.mark.parametrize("code", ["time.sleep(600)", "pass"])
def test_the_stop_button_frees_ranks(kernel, code):
    cell = kernel.start(ENDLESS.replace("CODE", code))
    kernel.until(lambda: all(f"{rank} has started" in cell.text() for rank in range(4)))
    assert kernel.stop_s(cell) < PROMPT_S
    assert "ranks 0-3 were interrupted at" in cell.error
    assert kernel.ok("%%mesh\n'free'", timeout_s=5).displays == [{"text/plain": "[0-3] 'free'"}]


@pytest.fixture
def grouped(kernel):
    """Its ranks are in a process group."""
    kernel.ok(GROUP, timeout_s=60)
    yield kernel
    kernel.ok("%%mesh\ndist.destroy_process_group()")


def test_a_hang_between_hosts_is_told_and_ended(grouped):
    kernel = grouped
    cell = kernel.start(WAITS)
    wanted = r"ranks 0-2 in all_reduce #\d+ for \d+ s; rank 3 in Cell In\[\d+\], line 3 load\(\)"
    kernel.until(lambda: re.search(wanted, line(cell)), 10)
    assert kernel.stop_s(cell) < PROMPT_S
    assert "rank 3 was interrupted at\n" in cell.error
    again = kernel.ok("%%mesh\none = torch.ones(1); dist.all_reduce(one); one.item()", timeout_s=20)
    assert again.displays == [{"text/plain": "[0-3] 4.0"}]


def test_stacks_and_collectives_of_ranks_that_wait_for_one_another(grouped):
    kernel = grouped
    kernel.ok(WAITS.replace("%%mesh", "%%mesh --noblock -o job"))
    told = eventually(lambda: waiting(kernel), 20)
    assert re.search(r"^rank 3 +Cell In\[\d+\], line 5, in <module>: load\(\)", told, re.MULTILINE)
    seen = kernel.ok("%mesh collectives").shown
    assert re.search(r"ranks 0-2 wait in all_reduce #\d+ f32\[4\]; rank 3 ", seen)
    kernel.ok("%mesh interrupt\njob.wait(10)\n%mesh regroup", timeout_s=30)


def waiting(kernel: KernelClient) -> str:
    """The stacks, once ranks 0-2 wait in the collective and rank 3 does not come."""
    told = kernel.ok("%mesh stacks").shown
    assert "all_reduce" in told
    return told if "load()" in told else ""


def test_code_that_changes_is_loaded_again_there(kernel, nodes, tmp_path):
    module = tmp_path / "project" / "changing.py"
    module.parent.mkdir()
    module.write_text("def value():\n    return 1\n")
    sync = f"report = await mesh0.sync_workspace({str(module.parent)!r}, auto_reload=True)"
    kernel.ok(f"{sync}\nprint(report)", timeout_s=60)
    assert kernel.ok("%%mesh\nimport changing; changing.value()").displays == [
        {"text/plain": "[0-3] 1"}
    ]
    module.write_text("def value():\n    return 22\n")
    kernel.ok(sync, timeout_s=60)
    assert kernel.ok("%%mesh\nchanging.value()").displays == [{"text/plain": "[0-3] 22"}]
    shown = kernel.ok("%%mesh\nprint(changing.__file__)").text()
    assert str(tmp_path) not in shown, "it is a copy on the hosts"
