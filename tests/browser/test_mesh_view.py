"""The mesh in JupyterLab, with real ranks: brought up, watched, stopped, healed, found again."""

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.browser.lab import RESTART, Notebook, Server
from tests.browser.mesh_page import DEAD, MeshPage, View
from tests.support import code_until, eventually

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

MESH = "application/vnd.monarch-nb.mesh+json"
SOON_S = 0.5  # from a death to its pixel

WAITING = """%%mesh
import time
time.sleep(60)"""

LAST_WORDS = """%%mesh --noblock
import time
print("the last words of", rank)
time.sleep(60)"""

FAILING = """%%mesh
import time
if rank == 2:
    1 / 0
time.sleep(60)"""

TRAINING = """%%mesh hosts=1
import monarch_nb
for step in range(40):
    monarch_nb.log(step, loss=1 / (step + 1) + 0.1 * rank, lr=1e-3)"""

HOSTILE = r"""%%mesh
text = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>\x1b[31mred\x1b[0m"
if rank == 0:
    print(text)
    print("A" * 10_000_000)
    raise ValueError(text + " lone \ud800 " + "B" * 10_000_000)"""


CAN_HEAL = "() => window.jupyterapp.commands.isEnabled('monarch-nb:heal')"


@pytest.fixture
def lab(notebook: Notebook) -> MeshPage:
    """A new notebook with the panel open."""
    mesh_page = MeshPage(notebook)
    mesh_page.open()
    return mesh_page


def test_a_mesh_is_brought_up_watched_and_stopped(lab: MeshPage, tmp_path: Path) -> None:
    lab.panel.get_by_text("No mesh is up yet.").wait_for()
    lab.pictures("empty", checked=True)
    lab.bring_up("hosts=2 gpus=4")
    view = lab.view()
    view.says("8 ranks: 8 idle")
    lab.status("8 ranks: 8 idle")
    lab.notebook.start(WAITING)
    view.says("8 ranks: 8 busy")
    view.tells("cell In[1] is running")
    lab.pictures("busy")
    view.press("interrupt")
    lab.notebook.cell(0).finish().shows("ranks 0-7 were interrupted at")
    view.says("8 ranks: 8 idle")

    ranks_end, kernel_ends = tmp_path / "ranks_end", tmp_path / "kernel_ends"
    lab.notebook.start(f"%%mesh --noblock\n{code_until(ranks_end)}").finish()
    view.says("8 ranks: 8 busy")
    plain = lab.notebook.start(code_until(kernel_ends))
    ranks_end.touch()
    view.says("8 ranks: 8 idle")
    assert plain.prompt == "[*]:"  # the kernel itself can say nothing
    view.click(6)
    assert plain.prompt == "[*]:"
    kernel_ends.touch()

    view.press("stop")
    lab.panel.get_by_text("No mesh is up yet.").wait_for()
    lab.status("no mesh")


@pytest.mark.fault
def test_a_failure_a_death_and_healing(lab: MeshPage) -> None:
    lab.notebook.run("%mesh up --gpus 4")
    view = lab.view()
    view.says("4 ranks: 4 idle")
    failing = lab.notebook.start(FAILING)
    view.says("4 ranks: 3 busy, 1 failed")
    lab.status("4 ranks: 3 busy, 1 failed")
    assert not lab.page.evaluate(CAN_HEAL), "none has exited"
    view.tells("ZeroDivisionError: division by zero").click()
    view.tells("1 / 0")
    view.root.locator(".mnb-title", has_text="rank 2").wait_for()
    assert view.root.locator(".mnb-failures .mnb-where").inner_text() == "Cell In[2], line 4"
    lab.pictures("failed")
    view.press("interrupt")
    failing.finish().shows("ranks 0-1,3 were interrupted at")

    lab.notebook.start(LAST_WORDS).finish()
    view.says("4 ranks: 4 busy")
    pid = view.pid(1)
    took = view.turns(1, DEAD, lambda: kill(pid))
    print(f"from SIGKILL to a red pixel: {took * 1000:.0f} ms")
    assert 0 < took < SOON_S
    view.says("4 ranks: 3 busy, 1 exited")
    assert lab.page.evaluate(CAN_HEAL)
    lab.pictures("dead")
    view.press("heal")
    view.says("4 ranks: 3 busy, 1 idle")
    view.tells("rank 1 started again, with an empty namespace")
    assert view.colour(1) != DEAD
    assert view.pid(1) != pid

    past = view.root.locator(".mnb-history [role=listitem]", has_text="killed by signal 9")
    past.get_by_text(re.compile(r"^healed \S+ s later: a new process$")).wait_for()
    assert re.search(r"rank 1\n\d\d:\d\d:\d\d, \d+ s ago\n", past.inner_text())
    head = past.locator(".mnb-failure-head")
    head.press("Enter")
    past.locator("pre", has_text="killed by signal 9").wait_for()
    past.get_by_text("what it had written").click()
    past.locator("pre", has_text="the last words of 1").wait_for()
    assert head.get_attribute("aria-expanded") == "true"
    lab.pictures("history", checked=True)
    past.get_by_role("button", name="cell In[3]").click()
    lab.notebook.cell(2).element.and_(lab.page.locator(".jp-mod-active")).wait_for()
    past.get_by_role("button", name="dismiss what failed on rank 1").press("Enter")
    past.wait_for(state="detached")
    view.tells("1 dismissed")
    view.tells("ZeroDivisionError: division by zero")


def kill(pid: int) -> float:
    """End a process; when that was."""
    at = time.time()
    os.kill(pid, signal.SIGKILL)
    return at


def test_slices_curves_and_hostile_texts(lab: MeshPage) -> None:
    lab.notebook.run("%mesh up hosts=2 gpus=2")
    view = lab.view()
    lab.notebook.run("mesh0.slice(hosts=1)")
    part = lab.output(1)
    part.says("2 ranks: 2 idle")
    assert part.corner(3)
    lab.notebook.run(TRAINING)
    for where in (view, part):
        curves = where.root.locator(".mnb-of-curves")
        curves.get_by_text("loss", exact=True).wait_for()
        curves.get_by_text("step 39").first.wait_for()
    lab.pictures("curves", checked=True)

    lab.notebook.run(HOSTILE)
    view.says("4 ranks: 3 idle, 1 failed")
    view.tells("ValueError: <img src=x onerror=").click()
    view.root.locator(".mnb-failures pre").first.wait_for()
    view.click(0).get_by_text("last output").wait_for()
    lab.pictures("hostile")
    assert lab.page.evaluate("() => window.hacked") is None
    assert view.root.locator("img, script").count() == 0
    assert "\x1b" not in view.root.inner_text()
    assert len(view.root.inner_text()) < 300_000


def test_pages_that_come_and_go(new_notebook: Notebook, server: Server) -> None:
    lab = MeshPage(new_notebook)
    lab.open()
    lab.notebook.run("%mesh up --gpus 4")
    lab.notebook.run("mesh0")
    lab.notebook.run(WIDGET)
    lab.notebook.run("%%mesh --noblock\nimport time\ntime.sleep(600)")
    path = lab.notebook.save()
    views = [lab.view(), lab.output(1), lab.output(2)]
    for view in views:
        view.says("4 ranks: 4 busy")

    again = opened(lab.page, server, path)
    for view in (again.view(), again.output(1), again.output(2)):
        view.says("4 ranks: 4 busy")
    other = opened(lab.page.context.new_page(), server, path)
    other.view().says("4 ranks: 4 busy")
    other.view().press("interrupt")
    again.view().says("4 ranks: 4 idle")
    again.output(2).says("4 ranks: 4 idle")
    other.page.close()

    again.page.click(RESTART)
    again.page.locator(".jp-Dialog button", has_text=re.compile("Restart")).click()
    again.panel.get_by_text("The kernel was restarted: its mesh is gone.").wait_for()
    again.pictures("restarted")
    again.notebook.run("%mesh up --gpus 2")
    again.view().says("2 ranks: 2 idle")
    still(again.output(1))
    again.notebook.save()

    server.end_kernels()
    late = opened(again.page, server, path)
    still(late.output(1))
    assert "Error displaying" not in late.notebook.cell(1).text
    late.pictures("saved")


def test_the_last_state_of_a_mesh_is_kept(new_notebook: Notebook, server: Server) -> None:
    lab = MeshPage(new_notebook)
    lab.notebook.run("%mesh up hosts=2 gpus=2")
    lab.notebook.run("mesh0")
    view = lab.output(1)
    view.says("4 ranks: 4 idle")
    lab.notebook.run(TRAINING)
    lab.notebook.run("%%mesh 2\nraise KeyError('this batch')")
    view.says("4 ranks: 3 idle, 1 failed")
    view.tells("KeyError: 'this batch'")
    view.tells("step 39")

    def saved() -> dict[str, Any]:
        [output] = json.loads((server.files / lab.notebook.save()).read_text())["cells"][1][
            "outputs"
        ]
        return output["data"]

    def kept() -> dict[str, Any]:
        return saved()[MESH]["snapshot"]["meshes"]["mesh0"]

    eventually(lambda: "e" in kept()["strips"][2], 10)  # the second has ended
    data, mesh, path = saved(), kept(), lab.notebook.save()
    assert [failure["headline"] for failure in mesh["failures"]] == ["KeyError: 'this batch'"]
    assert len(mesh["curves"]["loss"]["points"]) == 40
    for mime in ("text/plain", "text/html"):
        told = "".join(data[mime])
        assert "4 ranks: 3 idle, 1 failed" in told
        assert "KeyError: " in told
    assert '<img alt="mesh0: 4 ranks' in told
    assert lab.output(1).root.count() == 1, "a save draws nothing again"

    lab.notebook.run("%%mesh 1\nraise ValueError('not saved yet')")
    view.tells("ValueError: not saved yet")
    lab.page.click(RESTART)
    lab.page.locator(".jp-Dialog button", has_text=re.compile("Restart")).click()
    as_it_was(view)
    lab.pictures("restarted-output")
    lab.notebook.save()

    server.end_kernels()
    late = opened(lab.page, server, path)
    as_it_was(late.output(1))


def as_it_was(view: View) -> None:
    """With all that there was."""
    still(view)
    for told in ("KeyError: 'this batch'", "ValueError: not saved yet", "step 39"):
        view.tells(told)
    view.root.locator(".mnb-timeline canvas").wait_for()


WIDGET = """from IPython.display import display
from monarch_nb.notebook.session import session_of
view = "application/vnd.jupyter.widget-view+json"
data, _ = session_of(get_ipython()).showing.bundle(mesh0, widget=True)
display({view: data[view]}, raw=True)"""


def opened(page: Page, server: Server, path: str) -> MeshPage:
    """The notebook in a page that is loaded anew."""
    page.goto(server.url(f"lab/tree/{path}"), wait_until="domcontentloaded")
    mesh_page = MeshPage(Notebook(page))
    mesh_page.open()
    return mesh_page


def still(view: View) -> None:
    """It shows how the mesh was, and says so."""
    then = re.compile("as of .*; the kernel of then is gone")
    view.root.locator(".mnb-summary", has_text=then).wait_for()
