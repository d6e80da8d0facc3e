"""The extension's tools in JupyterLab with real ranks, by mouse and by keys."""

import os
import re
import signal
import statistics
import time
from pathlib import Path

import pytest
from playwright.sync_api import Page, WebSocket

from tests import support
from tests.browser.front_page import heard
from tests.browser.lab import Notebook, Server, picture
from tests.browser.tools_page import Log, Tools
from tests.support import code_until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

FROZEN_MS = 1_000
"""A page that does not react for so long is felt as frozen. The notebook draws these lines too."""

AT_ONCE_S = 0.5
"""0.05 s where nothing else runs. What is no news of this kind comes once a second."""

FAILING = """# a comment
x = rank
if x == 2:
    y = 1 / 0"""

SPEAKING = r"""%%mesh
import logging
print("<img src=x onerror='window.hacked=1'> \x1b[31mred\x1b[0m of", rank)
for i in range(5):
    print("step", i, "of", rank)
if rank == 1:
    logging.basicConfig()
    logging.getLogger("train").warning("the loss is nan")"""

FLOOD = """%%mesh --noblock
if rank == 0:
    for i in range(19_999):
        print("flood", i, flush=True)
    print("it has ended")"""

TRAINER = """from monarch_nb import Actor, endpoint
class Trainer(Actor):
    @endpoint
    def step(self, n):
        if n > 1:
            raise ValueError("no batch")
        return n
trainer = mesh0.spawn("trainer", Trainer)
trainer.step.call(0).get()
trainer.step.call(1).get()
trainer.step.call(2).get()"""

HANGING = """%%mesh --noblock
import time
def wait_for_the_others():
    time.sleep(600)
def step():
    if rank == 2:
        raise ValueError("no batch")
    wait_for_the_others()
step()"""


@pytest.fixture
def tools(notebook: Notebook) -> Tools:
    """A new notebook with a mesh of four ranks."""
    notebook.run("%mesh up --gpus 4")
    return Tools(notebook)


@pytest.fixture
def sent(page: Page) -> list[str]:
    """What the page says to kernels."""
    frames: list[str] = []

    def keep(frame: str | bytes) -> None:
        frames.append(frame if isinstance(frame, str) else frame.decode(errors="replace"))

    def listen(socket: WebSocket) -> None:
        socket.on("framesent", keep)

    page.on("websocket", listen)
    return frames


def test_a_cell_is_sent_to_the_ranks_that_are_chosen(tools: Tools, server: Server) -> None:
    cell = tools.notebook.type("rank * 10")
    tools.button(cell, "run").click()
    tools.tag(cell.finish(), "runs on the mesh")
    assert cell.prompt == "[2]:"
    assert cell.text.endswith("[0] 0\n[1] 10\n[2] 20\n[3] 30")
    assert tools.notebook.model()[1]["source"] == "rank * 10"

    tools.rewrite(cell, FAILING)
    tools.page.keyboard.press("Control+Alt+Enter")
    cell.shows("ZeroDivisionError")
    assert "line 4" in cell.text
    assert "y = 1 / 0" in cell.text
    tools.pictures("traceback")

    tools.rewrite(cell, "rank")
    axis = [f"gpus={i}" for i in range(4)]
    ends = ["other ranks…", "in the controller again"]
    assert tools.choices(cell) == ["all ranks", *axis, *ends]
    picture(tools.page, "tools-choices")
    tools.choose("gpus=1")
    tools.tag(cell, "runs on gpus=1")
    assert cell.finish().text.endswith("[1] 1")
    for ranks in ("0-2", "gpus=9"):
        tools.choices(cell)
        tools.choose("other ranks…")
        tools.type_ranks(ranks)
        tools.tag(cell, f"runs on {ranks}")
        cell.finish()
    cell.shows("gpus=9 is outside the mesh: gpus goes from 0 to 3")
    assert tools.choices(cell) == ["all ranks", *axis, "gpus=9", "0-2", *ends]
    tools.choose("other ranks…")
    tools.type_ranks("gpus;9")
    tools.said('"gpus;9" is no choice of ranks; write 0-3, or gpus=0:4, or all')

    prompt = cell.prompt
    tools.rewrite(cell, "%%bash\nls")
    tools.page.keyboard.press("Control+Alt+Enter")
    tools.said("The cell begins with %%bash, which says where it runs: run it as usual.")
    assert cell.prompt == prompt


def test_a_cell_keeps_the_ranks_that_were_chosen(tools: Tools, server: Server) -> None:
    cell = tools.notebook.type("rank * 10")
    tools.choices(cell)
    tools.choose("gpus=1")
    tools.tag(cell.finish(), "runs on gpus=1")
    tools.pictures("tag", checked=True)
    assert tools.notebook.model()[1]["metadata"]["monarch"] == {"mesh": "gpus=1"}
    tools.press(cell, "Shift+Enter", "[3]:")
    assert cell.text.endswith("[1] 10")

    tools = tools.opened_again(server)
    cell = tools.notebook.cell(1)
    tools.tag(cell, "runs on gpus=1")
    assert cell.prompt == "[3]:"  # nothing has run
    tools.press(cell, "Control+Enter", "[4]:")
    assert cell.text.endswith("[1] 10")

    tools.take_tag(cell, "gpus=2")  # chosen anew, which runs nothing
    tools.tag(cell, "runs on gpus=2")
    assert cell.prompt == "[4]:"
    tools.notebook.menu("Run", "Run Selected Cell")
    cell.shows("[2] 20")

    tools.rewrite(cell, "%%bash\necho here")  # its own magic says where it runs
    tools.no_tag(cell)
    tools.press(cell, "Control+Enter", "[6]:")
    assert cell.text == "here"
    tools.rewrite(cell, "'rank' in dir()")
    tools.take_tag(cell, "in the controller again")
    tools.no_tag(cell)
    tools.press(cell, "Control+Enter", "[7]:")
    assert cell.text == "False"
    assert "monarch" not in tools.notebook.model()[1]["metadata"]


def test_actors_stacks_and_the_list_of_ranks(tools: Tools) -> None:
    tools.open()
    tools.notebook.run(TRAINER).shows("no batch")
    tools.panel.get_by_text("Actors (1)").click()
    row = tools.panel.locator(".mnb-lab-table tbody tr", has_text="trainer")
    row.locator("td:text-is('12')").wait_for()
    assert row.locator("td").all_inner_texts() == ["12", "4", "0"]

    tools.notebook.start(HANGING).finish()
    tools.summary("4 ranks: 3 busy, 1 failed")
    tools.palette("Show Stacks of the Mesh")
    stacks = tools.page.locator(".mnb-lab-stacks")
    stacks.get_by_text("wait_for_the_others").first.wait_for()
    assert stacks.locator("h4").all_inner_texts() == ["ranks 0-1,3", "rank 2"]
    assert "line 4, in wait_for_the_others" in stacks.locator("pre").first.inner_text()
    tools.page.get_by_text(re.compile(r"^taken \d\d:\d\d:\d\d$")).wait_for()

    tools.panel.get_by_text("Ranks", exact=True).click()
    search = tools.panel.get_by_label("Find ranks of mesh0")
    rows = tools.panel.locator(".mnb-rankrow")
    search.fill("failed")
    tools.panel.get_by_text("1 of 4 ranks").wait_for()
    assert rows.inner_text().startswith("2\nValueError: no batch")
    tools.pictures("stacks", checked=True)
    search.fill("0-1")
    tools.panel.get_by_text("2 of 4 ranks").wait_for()
    rows.first.click()
    tools.panel.locator(".mnb-title", has_text=re.compile("^rank 0$")).wait_for()
    tools.palette("Interrupt the Mesh")
    tools.said("mesh0: ranks 0-3: interrupted")
    tools.summary("4 ranks: 3 idle, 1 failed")


def test_without_a_mouse(notebook: Notebook) -> None:
    tools, keys = Tools(notebook), notebook.page.keyboard
    tools.open()
    tools.panel.get_by_label("Sizes").wait_for()
    for label in ("Where", "Sizes"):
        keys.press("Tab")
        tools.panel.locator(f"[aria-label='{label}']:focus").wait_for()
    keys.press("Control+a")
    keys.insert_text("hosts=2 gpus=2")
    keys.press("Enter")
    tools.summary("4 ranks: 4 idle")
    tools.panel.focus()
    keys.press("Tab")
    while not tools.panel.locator("canvas:focus").count():
        keys.press("Tab")
    assert heard(tools.page).startswith("rank 0, hosts 0, gpus 0, idle")
    for key, said in (
        ("ArrowRight", "rank 1, hosts 0, gpus 1, idle"),
        ("ArrowDown", "rank 3, hosts 1, gpus 1, idle"),
    ):
        keys.press(key)
        assert heard(tools.page).startswith(said)
    keys.press("Enter")
    tools.panel.locator(".mnb-title", has_text=re.compile("^rank 3$")).wait_for()
    tools.panel.locator(".mnb-of-details > summary:focus").wait_for()
    tools.pictures("keys", checked=True)


def test_the_log_is_followed_filtered_and_searched(new_notebook: Notebook) -> None:
    new_notebook.run("%mesh up --gpus 4")
    tools = Tools(new_notebook)
    tools.open()
    tools.panel.get_by_role("button", name="logs").click()
    log = Log(tools)
    log.counts("0 lines")
    tools.notebook.run(SPEAKING)
    log.counts("25 lines")
    log.shows("<img src=x onerror='window.hacked=1'> red of")
    assert tools.page.evaluate("() => window.hacked") is None
    log.field("Ranks").fill("1-2")
    log.counts("13 of 25 lines")
    log.field("Level").select_option("warnings")
    log.counts("1 of 25 lines")
    assert log.lines() == ["[1]\nWARNING:train:the loss is nan"]
    tools.settings()
    tools.setting("logTimes").check()
    tools.palette("Show Logs of the Mesh")
    log.root.locator(".mnb-log-time").wait_for()
    timed = r"\d\d:\d\d:\d\d\.\d{3}\n\[1\]\nWARNING:train:the loss is nan"
    assert re.fullmatch(timed, *log.lines())
    tools.pictures("log-times")
    log.field("Level").select_option("all levels")
    log.field("Ranks").fill("")
    log.field("Search").fill(r"step [34]")
    log.counts("8 found in 25 lines")
    log.press("next match")  # from the first line in sight
    log.counts(re.compile("^[1-8] of 8 found in 25 lines$"))
    place = int(log.root.locator(".mnb-log-count").inner_text()[0])
    log.press("next match")
    log.counts(f"{place % 8 + 1} of 8 found in 25 lines")
    log.press("previous match")
    log.counts(f"{place} of 8 found in 25 lines")
    tools.pictures("log", checked=True)
    download(log)
    log.press("times")
    log.root.locator(".mnb-log-time").first.wait_for(state="detached")
    log.field("Search").fill("step [")
    assert log.field("Search").get_attribute("aria-invalid") == "true"
    log.field("Search").fill("")
    flood(tools, log)


def download(log: Log) -> None:
    """The whole log of two ranks, also what the page has forgotten."""
    log.press("clear")
    log.counts("0 found in 0 lines")
    log.field("Ranks").fill("1-2")
    with log.page.expect_download() as downloads:
        log.press("download")
    saved = downloads.value
    assert saved.suggested_filename == "mesh0.1-2.log.txt"
    lines = Path(saved.path()).read_text().splitlines()
    timed = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \[(\d)\] (.*)"
    found = [match for line in lines if (match := re.fullmatch(timed, line))]
    assert len(found) == len(lines) == 13
    assert [match[1] for match in found] == ["1"] * 7 + ["2"] * 6
    assert found[-1][2] == "step 4 of 2"
    log.field("Ranks").fill("")


def flood(tools: Tools, log: Log) -> None:
    """20 000 lines at once, as many as the kernel keeps."""
    tools.palette("Show Logs of the Mesh")
    log.press("clear")
    log.counts("0 lines")
    tools.watch_tasks()
    tools.notebook.start(FLOOD)
    log.shows("it has ended")
    log.counts("20000 lines")
    longest_ms = tools.longest_task_ms()
    print(f"the longest task while 20 000 lines came: {longest_ms:.0f} ms")
    assert longest_ms < FROZEN_MS

    log.root.locator(".mnb-log-box").hover()
    tools.page.mouse.wheel(0, -2000)
    log.pill.wait_for()
    assert log.pill.inner_text() == "↓ newest"
    before = log.lines()
    tools.notebook.run("%%mesh 1\nprint('more')")
    log.counts("20001 lines")
    assert log.pill.inner_text() == "↓ 1 new line"
    assert log.lines() == before
    tools.pictures("pill")
    log.pill.click()
    log.shows("more")
    log.pill.wait_for(state="hidden")


def test_the_current_mesh_and_the_settings(
    sent: list[str], new_notebook: Notebook, tmp_path: Path
) -> None:
    new_notebook.run("%mesh up --gpus 4")
    tools = Tools(new_notebook)
    tools.open()
    tools.notebook.run("%mesh up --gpus 2 --name other")
    tools.summary("2 ranks: 2 idle", "other")
    tools.mesh("other").get_by_role("button", name="%%mesh runs here").wait_for()
    tools.pictures("two")
    tools.mesh("mesh0").get_by_role("button", name="use for %%mesh").click()
    tools.said("%%mesh now means mesh0")
    tools.mesh("mesh0").get_by_role("button", name="%%mesh runs here").wait_for()
    tools.notebook.menu("Kernel", "Stop the Mesh…")
    dialog = tools.page.locator(".jp-Dialog")
    dialog.get_by_text("Stop mesh0?").wait_for()
    dialog.get_by_role("button", name="Stop").click()
    tools.said("mesh0")
    tools.status("2 ranks: 2 idle")

    found = tmp_path / "found"
    running = tools.notebook.start(code_until(found))
    tools.notebook.cell(0).element.click()
    is_running = re.compile(r"cell In ?\[3\] is running", re.IGNORECASE)
    tools.panel.get_by_role("button", name=is_running).click()
    lit = running.element.and_(tools.page.locator(".mnb-mod-lit.jp-mod-active"))
    lit.wait_for()
    found.touch()

    assert any('"period_ms":100,' in frame for frame in sent)
    tools.settings()
    tools.setting("period").fill("1000")
    slowly = '"period_ms":1000,'
    support.eventually(lambda: tools.setting("period").is_visible() and slowly in "".join(sent))
    tools.setting("statusBar").uncheck()
    tools.page.locator(".mnb-lab-status").wait_for(state="hidden")
    tools.setting("cellButton").uncheck()
    hidden = tools.page.locator(".lm-mod-hidden[data-jp-item-name='monarch-nb-run']")
    hidden.wait_for(state="attached")
    tools.page.get_by_role("button", name="Restore to Defaults").click()
    tools.status("2 ranks: 2 idle")
    hidden.wait_for(state="detached")


def test_a_plain_kernel_is_left_alone_until_it_loads_the_extension(
    page: Page, server: Server
) -> None:
    said: list[str] = []
    page.on("console", lambda line: said.append(f"{line.type}: {line.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.goto(server.url("lab"), wait_until="domcontentloaded")
    page.click(".jp-LauncherCard[data-category='Notebook'][title^='Python 3']")
    tools = Tools(Notebook(page))
    tools.open()
    tools.panel.get_by_text("This notebook's kernel has no mesh.").wait_for()
    assert not tools.button(tools.notebook.cell(0), "run").is_visible()
    assert not page.locator(".mnb-lab-status").is_visible()
    cell = tools.notebook.run("get_ipython().kernel.comm_manager.comms")
    assert cell.text == "{}"
    assert not [line for line in said if line.startswith(("error", "warn"))]
    tools.pictures("plain")
    tools.panel.get_by_role("button", name="Load monarch_nb here").click()
    tools.panel.get_by_text("No mesh is up yet.").wait_for()
    assert not tools.panel.get_by_role("button", name="Load monarch_nb here").is_visible()
    outline = "el => getComputedStyle(el).outlineStyle"
    tools.panel.evaluate("el => el.focus()")
    assert tools.panel.evaluate(outline) == "none"
    tools.status("no mesh")
    tools.button(tools.notebook.cell(-1), "run").wait_for()


def test_the_status_bar_tells_of_a_new_mesh_and_of_deaths_at_once(notebook: Notebook) -> None:
    tools = Tools(notebook)
    tools.status("no mesh")
    tools.watch_status()
    up = tools.notebook.run("%mesh up --gpus 10\nimport time\nprint(time.time())")
    tools.status("10 ranks: 10 idle")
    assert tools.said_at("10 ranks: 10 idle") - float(up.text.split()[-1]) < AT_ONCE_S
    ranks = tools.notebook.run("%%mesh\nimport os\nos.getpid()")
    took = []
    for dead, pid in enumerate(re.findall(r"\] (\d+)", ranks.text), 1):
        at = time.time()
        os.kill(int(pid), signal.SIGKILL)
        tools.page.locator(".mnb-lab-status", has_text=f"{dead} exited").wait_for()
        took.append(tools.said_at(f"{dead} exited") - at)
    print(f"from SIGKILL to the status bar: {statistics.median(took) * 1000:.0f} ms")
    assert statistics.median(took) < AT_ONCE_S


def test_a_panel_that_could_not_be_loaded_is_loaded_when_it_is_shown_again(
    new_notebook: Notebook,
) -> None:
    page, scripts = new_notebook.page, "**/later-views*"
    page.route(scripts, lambda route: route.abort())
    tools = Tools(new_notebook)
    tools.open()
    page.get_by_text("The Mesh panel could not be loaded: ").wait_for()
    page.unroute(scripts)
    page.evaluate("() => window.jupyterapp.shell.activateById('filebrowser')")
    tools.open()
    tools.panel.get_by_label("Sizes").wait_for()
    assert tools.panel.locator("form").count() == 1
