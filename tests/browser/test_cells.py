"""Cells on the mesh as one reads them in JupyterLab: waits, the background, auto, the stop
button."""

import re
from textwrap import indent

import pytest

from tests.browser.lab import OUTPUTS, STOP, picture
from tests.support import code_until, eventually

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

STUCK = """%%mesh
if rank < 3: print("started")  # a line of the other may leave before C code holds it, or not
if rank == 3:
    open({!r}, "w")
    sum(range(10**10))
else:
    import time; time.sleep(60)"""


def test_a_wait_is_told_and_the_line_goes(notebook, tmp_path):
    told = tmp_path / "told"
    notebook.run("%mesh up --gpus 4")
    cell = notebook.start(f"%%mesh\nif rank == 2:\n{indent(code_until(told), '    ')}rank")
    cell.shows("mesh0: waiting for rank 2 of 4, ")
    picture(notebook.page, "cells-waiting")
    told.touch()
    cell.finish()
    assert cell.text == "[0] 0\n[1] 1\n[2] 2\n[3] 3"
    assert cell.element.locator(OUTPUTS).count() == 1


def test_background_auto_errors_and_stop_read_well(notebook, tmp_path):
    notebook.run("%mesh up --gpus 4")
    job = notebook.run(
        "%%mesh --noblock -o epoch\nimport time\ntime.sleep(1 + rank)\nprint('epoch over')"
    )
    job.shows(re.compile(r"<cell In\[2\] on mesh0 \[0-3\]: \d of 4 ranks done"))
    job.shows("done in ")
    job.shows("[3] epoch over")
    notebook.run("%mesh auto on")
    auto = notebook.run("x = rank ** 2\nx")
    auto.shows("on mesh0 [0-3]")
    notebook.run("%%local\nepoch.ranks").shows("(0, 1, 2, 3)")
    notebook.run("%mesh auto off")
    late = notebook.run("%%mesh --timeout 1\nimport time\nif rank > 1: time.sleep(60)")
    late.shows("TimeoutError: ranks 2-3 had not ended after 1 s and were interrupted")
    held = tmp_path / "held"
    stuck = notebook.start(STUCK.format(str(held)))
    stuck.shows_of(range(3), "started")
    eventually(held.exists, what="C code holds rank 3")
    notebook.page.click(STOP)
    stuck.finish()
    stuck.shows("rank 3 is at Cell In[8], line 5: sum(range(10**10))")
    stuck.shows("%mesh interrupt --kill 3 ends it")
    picture(notebook.page, "cells-stopped")
    notebook.run("%mesh restart 3").shows("rank 3 started again, with an empty namespace")
    notebook.theme("JupyterLab Dark")
    picture(notebook.page, "cells-stopped-dark")
    notebook.theme("JupyterLab Light")
