"""Widgets of ranks, as a Jupyter client sees them: a real kernel, real ranks."""

import os
import re
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from monarch_nb.notebook.output.comm_relay import MANY, WINDOW_S, CommRelay
from tests.kernel.client import Cell, KernelClient
from tests.source import ROOT

FIRST_CELLS = ["%mesh up --gpus 2"]

pytestmark = pytest.mark.timeout(120)

MAKE = (
    "%%mesh\n"
    "import ipywidgets as widgets\n"
    "slider = widgets.IntSlider(value=rank, description=f'lr {rank}')\n"
    "slider"
)


def models(cell: Cell, model: str) -> list[str]:
    """The comm ids of the widgets of that kind which a cell has made, in the order of ranks."""
    opened = [
        content
        for content in cell.contents("comm_open")
        if content["data"]["state"]["_model_name"] == model
    ]
    opened.sort(key=lambda content: content["data"]["state"].get("description", ""))
    return [content["comm_id"] for content in opened]


def tell(
    kernel: KernelClient, comm_id: str, data: dict[str, Any], buffers: Any = None, kind="comm_msg"
) -> Cell:
    """What the page sends when somebody moves a widget; collects what comes as the answer."""
    message = kernel.client.session.msg(kind, {"comm_id": comm_id, "data": data})
    kernel.client.session.send(
        kernel.client.shell_channel.socket, message, buffers=buffers or [], metadata={}
    )
    cell = kernel.cells[message["header"]["msg_id"]] = Cell(message["header"]["msg_id"])
    return cell


def move(kernel: KernelClient, comm_id: str, **state: Any) -> Cell:
    return tell(kernel, comm_id, {"method": "update", "state": state, "buffer_paths": []})


def click(kernel: KernelClient, comm_id: str) -> Cell:
    return tell(kernel, comm_id, {"method": "custom", "content": {"event": "click"}})


def requested(kernel: KernelClient, comm_id: str) -> dict[str, Any]:
    """The state of a widget, as a page that is loaded again asks for it."""
    asked = tell(kernel, comm_id, {"method": "request_state"})
    [answer] = kernel.until(lambda: asked.contents("comm_msg"))
    return answer["data"]["state"]


def test_a_widget_of_each_rank_is_shown_with_its_label(kernel):
    cell = kernel.ok(MAKE)
    sliders = models(cell, "IntSliderModel")
    assert len(sliders) == 2
    views = [d for d in cell.displays if "application/vnd.jupyter.widget-view+json" in d]
    shown = {d["application/vnd.jupyter.widget-view+json"]["model_id"] for d in views}
    assert shown == set(sliders)
    assert views[0]["text/plain"].startswith("[0] IntSlider(value=0")
    assert views[1]["text/plain"].startswith("[1] IntSlider(value=1")


def test_a_slider_that_is_moved_changes_the_variable_of_its_rank(kernel):
    cell = kernel.ok(MAKE)
    _, second = models(cell, "IntSliderModel")
    moved = move(kernel, second, value=42)
    assert kernel.ok("%%mesh\nslider.value").displays == [{"text/plain": "[0] 0\n[1] 42"}]
    echo = kernel.until(lambda: moved.contents("comm_msg"))
    assert echo[0]["data"]["method"] == "echo_update"  # the front end waits for it by its parent


def test_a_variable_that_is_set_on_the_rank_moves_the_slider(kernel):
    cell = kernel.ok(MAKE)
    first, second = models(cell, "IntSliderModel")
    changed = kernel.ok("%%mesh 1\nslider.value = 7")
    updates = changed.contents("comm_msg")
    assert [(u["comm_id"], u["data"]["state"]) for u in updates] == [(second, {"value": 7})]
    assert requested(kernel, second)["value"] == 7
    assert requested(kernel, first)["value"] == 0


def test_a_callback_that_calls_exit_does_not_end_the_rank(kernel):
    cell = kernel.ok(
        "%%mesh\nimport sys, ipywidgets as widgets\n"
        "button = widgets.Button(description=str(rank))\n"
        "button.on_click(lambda _: sys.exit('pressed')); button"
    )
    click(kernel, models(cell, "ButtonModel")[1])
    kernel.until(lambda: "SystemExit: pressed" in cell.text("stderr"))
    assert kernel.ok("%%mesh 1\nrank").shown == "[1] 1\n"


def test_what_a_callback_prints_and_shows_stands_below_the_cell_that_made_the_widget(kernel):
    cell = kernel.ok(
        "%%mesh\nimport ipywidgets as widgets\n"
        "from IPython.display import display, HTML\n"
        "def pressed(button):\n"
        "    print('pressed', button.description); display(HTML('<b>done</b>'))\n"
        "button = widgets.Button(description=str(rank))\n"
        "button.on_click(pressed); button"
    )
    kernel.ok("%%mesh\n1 + 1")
    click(kernel, models(cell, "ButtonModel")[1])
    kernel.until(lambda: "done" in str(cell.displays))
    assert cell.text() == "[1] pressed 1\n"
    assert cell.displays[-1]["text/html"].endswith("[1]</div><b>done</b>")


def test_an_error_in_a_callback_is_shown_with_its_rank(kernel):
    cell = kernel.ok(
        "%%mesh 1\nimport ipywidgets as widgets\nbutton = widgets.Button()\n"
        "button.on_click(lambda _: 1 / 0); button"
    )
    click(kernel, models(cell, "ButtonModel")[0])
    kernel.until(lambda: "ZeroDivisionError" in cell.text("stderr"))
    assert all(line.startswith("[1] ") for line in cell.text("stderr").splitlines())


def test_a_busy_rank_gets_the_last_value_only(kernel, tmp_path):
    free = tmp_path / "free"
    cell = kernel.ok(
        "%%mesh 0\nimport ipywidgets as widgets, time\nseen = []\nslider = widgets.IntSlider()\n"
        "slider.observe(lambda change: seen.append(change['new']), 'value'); slider"
    )
    [slider] = models(cell, "IntSliderModel")
    busy = kernel.start(
        "%%mesh --noblock 0\nimport os\nprint('busy', flush=True)\n"
        f"while not os.path.exists({str(free)!r}):\n    time.sleep(0.01)"
    )
    kernel.until(lambda: "busy" in busy.text())
    for value in range(1, 21):
        move(kernel, slider, value=value)
    assert requested(kernel, slider)["value"] == 20  # from the kernel, however busy the rank is
    free.touch()
    assert kernel.ok("%%mesh 0\nseen").displays == [{"text/plain": "[0] [20]"}]


def test_a_cell_that_awaits_sees_a_slider_move(kernel):
    cell = kernel.ok(MAKE)
    slider = models(cell, "IntSliderModel")[0]
    waits = kernel.ok(
        "%%mesh --noblock 0\nimport asyncio\nprint('waits', flush=True)\n"
        "while slider.value != 77:\n    await asyncio.sleep(0.01)\nprint('seen')"
    )
    kernel.until(lambda: "waits" in waits.text())
    move(kernel, slider, value=77)
    kernel.until(lambda: "seen" in waits.text(), 10)


def test_a_flood_of_updates_is_thinned_and_ends_with_the_last_value(kernel):
    started = time.monotonic()
    cell = kernel.ok(
        "%%mesh\nimport ipywidgets as widgets\nbar = widgets.IntProgress(max=3000)\n"
        "for step in range(3000):\n    bar.value = step + 1\nbar"
    )
    updates = [m["content"] for m in cell.messages if m["msg_type"] == "comm_msg"]
    assert len(updates) <= MANY * ((time.monotonic() - started) / WINDOW_S + 2)
    for bar in models(cell, "IntProgressModel"):
        last = [u for u in updates if u["comm_id"] == bar][-1]
        assert last["data"]["state"] == {"value": 3000}


def test_what_is_no_json_is_text(kernel):
    cell = kernel.ok(
        "%%mesh 0\nimport ipywidgets as widgets, numpy\n"
        "value = widgets.FloatText(value=float('nan')); value.value = numpy.float32(0.5); value"
    )
    assert not cell.text("stderr")
    assert requested(kernel, models(cell, "FloatTextModel")[0])["value"] == 0.5


def test_buffers_travel_both_ways_as_they_are(kernel):
    cell = kernel.ok(
        "%%mesh 0\nimport ipywidgets as widgets\n"
        "image = widgets.Image(value=bytes(range(256)) * 4000); image"
    )
    [opened] = [m for m in cell.messages if m["content"].get("target_name") == "jupyter.widget"
                and m["content"]["data"]["state"]["_model_name"] == "ImageModel"]  # fmt: skip
    assert opened["content"]["data"]["buffer_paths"] == [["value"]]
    [raw] = opened["buffers"]
    assert bytes(raw) == bytes(range(256)) * 4000
    [image] = models(cell, "ImageModel")
    data = {"method": "update", "state": {}, "buffer_paths": [["value"]]}
    tell(kernel, image, data, buffers=[b"\x00new"])
    assert kernel.ok("%%mesh 0\nbytes(image.value)").displays == [{"text/plain": "[0] b'\\x00new'"}]


def test_a_message_that_would_stop_the_browser_fails_where_it_is_made(kernel):
    cell = kernel.run(
        "%%mesh 0\nimport ipywidgets as widgets\nwidgets.Image(value=bytes(40 << 20))"
    )
    assert "a widget message of 40 MB is over the limit of 32 MB" in cell.error


def test_a_page_that_is_loaded_again_finds_every_widget(kernel):
    """By the list of comms, and by the control comm of ipywidgets, as JupyterLab does."""
    cell = kernel.ok(MAKE)
    ids = set(models(cell, "IntSliderModel"))
    asked = kernel.client.session.msg("comm_info_request", {"target_name": "jupyter.widget"})
    kernel.client.shell_channel.send(asked)
    kernel.until(lambda: kernel.has_come("comm_info_reply", asked["header"]["msg_id"]))
    listed = next(m for m in kernel.others if m["msg_type"] == "comm_info_reply")
    assert ids <= set(listed["content"]["comms"])
    kernel.ok("import ipywidgets; here = ipywidgets.IntText(value=5)")
    states = all_states(kernel)
    assert ids <= set(states)
    assert {states[one]["state"]["value"] for one in ids} == {0, 1}
    assert states[kernel.ok("print(here.model_id)").text().strip()]["state"]["value"] == 5


def all_states(kernel: KernelClient) -> dict[str, Any]:
    session = kernel.client.session
    content = {"comm_id": "control", "target_name": "jupyter.widget.control", "data": {}}
    opened = session.msg("comm_open", content, metadata={"version": "1.0.0"})
    kernel.client.shell_channel.send(opened)
    asked = tell(kernel, "control", {"method": "request_states"})
    [answer] = kernel.until(lambda: asked.contents("comm_msg"))
    return answer["data"]["states"]


def test_an_output_widget_takes_what_is_printed_inside_it(kernel):
    cell = kernel.ok(
        "%%mesh 1\nimport ipywidgets as widgets\nfrom IPython.display import display, HTML\n"
        "out = widgets.Output(); display(out)\n"
        "with out:\n    print('inside'); display(HTML('<i>x</i>'))\n"
        "with out:\n    print('one'); print('two')\n    with out:\n        print('three')\n"
        "print('outside')\n"
        "with out:\n    1 / 0\n"
        "with out:\n    out.clear_output(wait=True); print('last')\n"
    )
    [output] = models(cell, "OutputModel")
    said = [
        update["data"]["state"]["outputs"]
        for update in cell.contents("comm_msg")
        if "outputs" in update["data"].get("state", {})
    ]
    assert cell.text() == "[1] outside\n"
    assert [one["output_type"] for one in said[1]] == ["stream", "display_data"]
    assert any("one\ntwo\nthree" in str(each.get("text")) for outputs in said for each in outputs)
    assert any("ZeroDivisionError" in str(outputs) for outputs in said)
    last = requested(kernel, output)["outputs"]
    assert last == [{"output_type": "stream", "name": "stdout", "text": "last\n"}]


def test_closing_a_widget_leaves_nothing(kernel):
    cell = kernel.ok(MAKE)
    ids = models(cell, "IntSliderModel")
    closed = kernel.ok("%%mesh\nslider.close()")
    assert {c["comm_id"] for c in closed.contents("comm_close")} == set(ids)
    left = kernel.ok("print(*get_ipython().kernel.comm_manager.comms)").text()
    assert not set(ids) & set(left.split())


def test_a_callback_that_hangs_is_ended_by_the_stop_button(kernel):
    cell = kernel.ok(
        "%%mesh 0\nimport ipywidgets as widgets, time\nbutton = widgets.Button()\n"
        "def hang(_):\n    print('hangs', flush=True)\n    time.sleep(60)\n"
        "button.on_click(hang); button"
    )
    click(kernel, models(cell, "ButtonModel")[0])
    kernel.until(lambda: "hangs" in cell.text())
    waiting = kernel.start("print('sent')\nget_ipython().run_cell_magic('mesh', '0', '1')")
    kernel.until(lambda: "sent" in waiting.text())
    kernel.interrupt()
    kernel.finish(waiting, 5)
    assert kernel.ok("%%mesh 0\n1 + 1").displays == [{"text/plain": "[0] 2"}]


@pytest.mark.slow
@pytest.mark.fault
def test_a_rank_that_dies_leaves_its_widgets_switched_off():
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh up --gpus 2", timeout_s=50)
        cell = kernel.ok(MAKE)
        first, second = models(cell, "IntSliderModel")
        kernel.run("%%mesh 1\nimport os; os._exit(3)")
        off = kernel.until(lambda: switched_off(kernel))
        assert off == [second]
        kernel.ok("%mesh down")
        assert kernel.until(lambda: set(switched_off(kernel)) == {first, second})
        left = kernel.ok("print(list(get_ipython().kernel.comm_manager.comms))")
        assert left.text() == "[]\n"


@pytest.mark.slow
def test_a_notebook_without_a_browser_keeps_the_state_of_its_widgets(tmp_path):
    cells = ["%mesh up --gpus 2", MAKE, "%%mesh\nslider.value = 9"]
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, cells)))
    NotebookClient(notebook, kernel_name="monarch", timeout=60).execute(cwd=str(tmp_path))
    texts = [output["data"]["text/plain"] for output in notebook.cells[1].outputs]
    assert [text for text in texts if "IntSlider(value=1" in text]
    kept = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    sliders = [one["state"] for one in kept.values() if one["model_name"] == "IntSliderModel"]
    assert [one["value"] for one in sliders] == [9, 9]


@pytest.mark.slow
def test_in_a_terminal_a_widget_is_its_text(tmp_path):
    program = tmp_path / "cells.ipy"
    program.write_text(
        "%load_ext monarch_nb\n%mesh up --gpus 2\n"
        "get_ipython().run_cell_magic('mesh', '', 'import ipywidgets as w\\n"
        "s = w.IntSlider()\\ns.value = 5\\ns')\n"
        "get_ipython().run_cell_magic('mesh', '', 'from IPython.display import clear_output\\n"
        'print("before")\\nclear_output()\\ndisplay("x", display_id="y")\')\n'
        "%mesh down\n"
    )
    command = [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", str(program)]
    env = {**os.environ, "IPYTHONDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert "[0] IntSlider(value=5)" in ran.stdout, ran.stderr
    assert re.search(r"\] before\n(.*\n)?\[0(-1)?\] 'x'\n", ran.stdout), ran.stdout
    assert not ran.stderr


class Event:
    """A comm message of a rank, as the relay gets it."""

    parent = ""

    def __init__(
        self, process: int, kind: str, comm_id: str, target: str = "", **data: Any
    ) -> None:
        self.process, self.kind, self.comm_id, self.tag = process, kind, comm_id, 1
        self.content = {"comm_id": comm_id, "data": data, "target_name": target}
        self.metadata: dict[str, Any] = {}
        self.buffers: list[bytes] = []


def test_a_rank_cannot_speak_for_the_widget_of_another():
    sent: list[str] = []
    sink = SimpleNamespace(comm=lambda message: sent.append(message.kind))
    own = object()
    manager = SimpleNamespace(comms={"of the kernel": own})
    shell = SimpleNamespace(kernel=SimpleNamespace(comm_manager=manager))
    relay = CommRelay(shell, lambda _: sink, lambda *_: None, lambda *_: None)
    relay.receive(Event(1, "comm_open", "a", "some.target"))
    assert sent == ["comm_open"]
    relay.receive(Event(2, "comm_msg", "a", value=1))
    relay.receive(Event(2, "comm_close", "a"))
    relay.receive(Event(2, "comm_open", "a", "some.target"))
    relay.receive(Event(2, "comm_open", "of the kernel", "some.target"))
    relay.receive(Event(2, "comm_close", "of the kernel"))
    assert sent == ["comm_open"]
    assert manager.comms["of the kernel"] is own
    relay.lost(2)
    assert list(manager.comms) == ["of the kernel", "a"]
    relay.lost(1)
    assert sent == ["comm_open", "comm_close"]
    assert list(manager.comms) == ["of the kernel"]


def switched_off(kernel: KernelClient) -> list[str]:
    said = [m["content"] for cell in kernel.cells.values() for m in cell.messages]
    off = {"disabled": True}
    return [c["comm_id"] for c in said if c.get("data", {}).get("state") == off]
