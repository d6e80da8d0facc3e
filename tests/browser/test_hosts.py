"""A mesh on several hosts in JupyterLab: the live line, the status and the picture."""

import pytest

from tests.browser.lab import picture

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]


def test_a_mesh_on_two_hosts(notebook):
    up = notebook.run("%mesh up --on processes --hosts 2 gpus=2")
    line = up.shows("2/2 hosts -> ranks up in")
    assert line.inner_text().count("hosts ->") == 1, "it was changed in place"
    assert "mesh0 is up: 4 ranks (hosts=2 gpus=2)" in up.text
    assert "waited" not in up.text
    jobs = notebook.run("%mesh jobs")
    assert jobs.shows("processes").locator("table").count() == 1
    notebook.run("%mesh status").shows("hosts=1 gpus=1")
    notebook.start("mesh0").shows("hosts")
    for theme in ("Light", "Dark"):
        notebook.theme(f"JupyterLab {theme}")
        picture(notebook.page, f"hosts-{theme.lower()}")
    assert "hosts of mesh0 are given back" in notebook.run("%mesh down").text
