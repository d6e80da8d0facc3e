"""`%mesh` in a real kernel, over a fake runtime: what one reads, and that a mistake stops Run"""

import re

import pytest

from tests.kernel.client import KernelClient
from tests.notebook.conftest import FAKE

COUNT = "must be a whole number of at least 1, not"
INSTEAD = "Type: %mesh use mesh0, or %%mesh --name mesh0"

UP = "mesh0 is up with 4 ranks (gpus=4)"
TYPE = "Type: %%mesh, or %%mesh gpus=0:2, or %%mesh 0,2 --name mesh0"
ENDS = "which ends it and what its ranks hold"
STARTS = "which starts one beside it"
FREE = "%mesh down mesh0, or choose another --name, or --replace"


@pytest.mark.parametrize("code, line", [
    ("%mesh up --gpus 0", f"%mesh up: --gpus {COUNT} '0'. Type: %mesh up --gpus 4"),
    ("%mesh up --gpus x", f"%mesh up: --gpus {COUNT} 'x'. Type: %mesh up --gpus 4"),
    ("%mesh up 2",
     f"{UP}. Type: %mesh up gpus=2 --replace, {ENDS}; or --new instead, {STARTS}"),
    ("%mesh up --gpus 2 --name mesh0",
     f"{UP}. Type: %mesh up gpus=2 --name mesh0 --replace, {ENDS}; or another --name, {STARTS}"),
    ("%mesh up --gpus 4 --name mesh0 --new",
     f"A mesh named 'mesh0' is up already. Type: {FREE}"),
    ("%mesh up 4 --new --replace",
     "%mesh up: --replace not allowed with argument --new. Type: %mesh up --gpus 4"),
    ("%mesh up --gpus 100 --new", "mesh0 could not be started: fork: out of memory"),
    ("%mesh use nope", f"There is no mesh 'nope'. Up: mesh0. {INSTEAD}"),
    ("%%mesh gpus=4\n1", "gpus=4 is outside the mesh: gpus goes from 0 to 3"),
    ("%%mesh nodes=0\n1", "the mesh has no axis 'nodes'; its axes are gpus=4"),
    ("%%mesh 7\n1", "7 is outside the mesh: no rank 7 among its 4, 0 to 3"),
    ("%%mesh --fast\n1",
     f"%%mesh: does not know --fast; did you mean --no-fail-fast? {TYPE}"),
    ("%%mesh --name nope\n1", f"There is no mesh 'nope'. Up: mesh0. {INSTEAD}"),
    ("%mesh interrupt --kill 9", "mesh0 has no rank 9; its ranks are 0-3"),
])  # fmt: skip
def test_a_mistake_is_one_line_stops_run_all_and_harms_nothing(fake_kernel, code, line):
    cell = fake_kernel.run(code)
    assert cell.status == "error"
    [error] = cell.contents("error")
    assert error["traceback"] == [line]
    assert cell.shown == line + "\n"
    assert fake_kernel.ok("%%mesh\nrank * 0").displays == [{"text/plain": "[0-3] 0"}]


def test_a_failing_cell_stops_the_ones_behind_it(fake_kernel):
    first = fake_kernel.start("import time; time.sleep(0.2)\n%mesh use nope")
    second = fake_kernel.start("1")
    assert fake_kernel.finish(first).status == "error"
    assert fake_kernel.until(lambda: second.reply)["content"]["status"] == "aborted"


def test_without_a_mesh():
    with KernelClient("monarch") as kernel:
        kernel.ok(FAKE)
        for code in (
            "%%mesh\n1",
            "%mesh down",
            "%mesh down --all",
            "%mesh heal",
            "%mesh interrupt",
        ):
            cell = kernel.run(code)
            assert (cell.status, cell.error) == ("error", "No mesh is up. Type: %mesh up --gpus 4")
        assert kernel.ok("%mesh").text().startswith("No mesh is up. Type: %mesh up --gpus 4\n")
        assert kernel.ok("%mesh list").text() == "No mesh is up. Type: %mesh up --gpus 4\n"


def test_the_life_of_two_meshes():
    with KernelClient("monarch") as kernel:
        kernel.ok(FAKE)
        said = kernel.ok("%mesh up --gpus 4").text()
        assert said.startswith("mesh0 is up: 4 ranks (gpus=4) in ")
        assert "the variable mesh0 is the mesh" in said
        assert said.partition("\n")[2] == (
            "mesh0 as a cell's last line is a live view; "
            "monarch_nb.log(step, loss=loss) draws curves there.\n"
        )
        again = kernel.ok("%mesh up replicas=2 gpus=2 --name data").text()
        assert len(again.splitlines()) == 1
        listed = kernel.ok("%mesh list").text().splitlines()
        assert listed == ["  mesh0: 4 ranks (gpus=4)", "* data: 4 ranks (replicas=2 gpus=2)"]
        assert kernel.ok("%%mesh replicas=1\nrank").displays == [{"text/plain": "[2] 2\n[3] 3"}]
        assert kernel.ok("%%mesh --name mesh0 0\nrank").displays == [{"text/plain": "[0] 0"}]
        assert kernel.ok("%mesh use mesh0").text() == "%%mesh now means mesh0\n"
        assert kernel.ok("%mesh down").text() == "mesh0 is down\n"
        assert kernel.run("mesh0").status == "error"
        assert kernel.ok("data.sizes").displays == [{"text/plain": "{'replicas': 2, 'gpus': 2}"}]
        assert kernel.ok("%mesh down --all").text() == "data is down\n"


def test_a_mesh_that_is_up_is_found_again():
    with KernelClient("monarch") as kernel:
        kernel.ok(FAKE)
        kernel.ok("%mesh up 4")
        kernel.ok("%%mesh\nkept = rank")
        kernel.ok("%mesh up 2 --name other")
        for again in ("%mesh up 4", "%mesh up --gpus 4", "%mesh up gpus=4 --name mesh0"):
            assert kernel.ok(again).text() == (
                "mesh0 is up already: 4 ranks (gpus=4), with all that they hold. "
                "--replace starts it anew, --new another one\n"
            )
            assert kernel.ok("%%mesh 3\nkept").displays == [{"text/plain": "[3] 3"}]
        assert "other is up already: 2 ranks" in kernel.ok("%mesh up 2").text()
        kernel.ok("%mesh down other")
        kernel.ok("fake.lost_ranks = [2]")
        assert kernel.ok("%mesh up 4").text().endswith("rank 2 is lost: %mesh heal\n")


def test_a_mesh_is_replaced_or_gets_company():
    with KernelClient("monarch") as kernel:
        kernel.ok(FAKE)
        kernel.ok("%mesh up 4 --replace")  # nothing was there
        kernel.ok("%%mesh\nkept = rank")
        kernel.ok("%mesh up 2 --new")
        assert [line[:8] for line in kernel.ok("%mesh list").text().splitlines()] == [
            "  mesh0:",
            "* mesh1:",
        ]
        said = kernel.ok("%mesh up 3 --name mesh0 --replace").text()
        assert said.startswith("mesh0 is up: 3 ranks (gpus=3) in ")
        assert "the variable mesh0 is the mesh" in said
        assert "NameError" in kernel.run("%%mesh --name mesh0\nkept").error
        assert kernel.ok("%mesh list").text().count("\n") == 2


def test_status_is_a_table_in_text_and_html(fake_kernel):
    [data] = fake_kernel.ok("%mesh").displays
    assert data["text/plain"].startswith("mesh0: 4 ranks, 4 idle; gpus=4 (current)")
    assert data["text/html"].count("<tr>") == 5


def test_meshes_made_in_python_are_found():
    with KernelClient("monarch") as kernel:
        kernel.ok(FAKE)
        kernel.ok("pm = fake.spawn({'gpus': 3}, 'own'); half = pm.slice(gpus=slice(0, 2))")
        assert kernel.ok("%%mesh\nrank").displays == [{"text/plain": "[0] 0\n[1] 1\n[2] 2"}]
        assert kernel.ok("%%mesh --name half\nrank").displays == [{"text/plain": "[0] 0\n[1] 1"}]
        assert kernel.ok("%%mesh --name own 2\nrank").displays == [{"text/plain": "[2] 2"}]
        kernel.ok("other = fake.spawn({'gpus': 1}, 'other')")
        cell = kernel.run("%%mesh\nrank")
        assert (
            cell.error
            == "Which mesh? Up: other, own. Type: %mesh use other, or %%mesh --name other"
        )
        kernel.ok("pm.stop().get()")
        assert kernel.ok("%%mesh\nrank").displays == [{"text/plain": "0"}]


def test_a_variable_of_the_user_is_not_overwritten():
    with KernelClient("monarch") as kernel:
        kernel.ok(FAKE + "mesh0 = 'mine'")
        assert "variable" not in kernel.ok("%mesh up --gpus 2").text()
        assert kernel.ok("mesh0").displays == [{"text/plain": "'mine'"}]
        assert kernel.ok("%%mesh 1\nrank").displays == [{"text/plain": "[1] 1"}]


@pytest.mark.parametrize("again", ["%mesh up --gpus 2", "%mesh use mesh0"])
def test_a_mesh_has_its_variable_again_after_a_reset(again):
    with KernelClient("monarch") as kernel:
        kernel.ok(FAKE + "%mesh up --gpus 2")
        kernel.ok("%reset -f")
        assert "NameError" in kernel.run("mesh0").error
        kernel.ok(again)
        assert kernel.ok("len(mesh0)").displays == [{"text/plain": "2"}]
        kernel.ok(f"mesh0 = 'mine'\n{again}")
        assert kernel.ok("mesh0").displays == [{"text/plain": "'mine'"}]


def test_heal_and_shrink(fake_kernel):
    assert fake_kernel.ok("%mesh heal").text() == "mesh0 is whole again: 4 ranks (gpus=4)\n"
    with KernelClient("monarch") as kernel:
        kernel.ok(FAKE + "%mesh up --gpus 4")
        assert "whole" in kernel.ok("%mesh heal --shrink").text()
        kernel.ok("fake.lost_ranks = [3]; fake.moved = ['rank 3 is on node4 now']")
        assert kernel.ok("%mesh heal").text().splitlines()[0] == (
            "mesh0 is whole again: 4 ranks (gpus=4); rank 3 started again, with an empty "
            "namespace; rank 3 is on node4 now"
        )
        assert kernel.ok("%mesh heal --shrink").text() == "mesh0 goes on with 3 ranks (gpus=3)\n"
        assert kernel.ok("len(mesh0)").displays == [{"text/plain": "3"}]


def test_auto_without_a_mesh_says_how_it_ends():
    with KernelClient("monarch") as kernel:
        kernel.ok(FAKE + "%mesh up --gpus 2")
        kernel.ok("%mesh auto on")
        said = kernel.ok("%mesh down").text().splitlines()
        assert said == [
            "mesh0 is down",
            "cells still go to the mesh; %mesh auto off keeps them here",
        ]


def test_a_start_that_fails_leaves_no_mesh(fake_kernel):
    fake_kernel.ok(
        "import monarch_nb.errors\n"
        "def starting(): raise monarch_nb.errors.LaunchError('no python')\n"
        "fake.starting = starting"
    )
    cell = fake_kernel.run("%mesh up --gpus 2 --name broken")
    assert (cell.status, cell.error) == ("error", "no python")
    assert "broken" not in fake_kernel.ok("%mesh list").text()
    fake_kernel.ok("fake.starting = lambda: None")


@pytest.mark.parametrize("code", ["%mesh?", "%%mesh?"])
def test_the_help_reads_well(fake_kernel, code):
    cell = fake_kernel.ok(code)
    page = cell.reply["content"]["payload"][0]["data"]["text/plain"]
    assert re.search(
        r"%mesh up --gpus 4 +start four ranks on this machine, as mesh0; also up 4\n", page
    )
    assert "%%mesh gpus=0:2" in page
    assert "--noblock" in page


@pytest.mark.parametrize("code", ["%mesh help", "%mesh --help", "%%mesh -h\n1/0"])
def test_help_that_is_asked_for_in_words(fake_kernel, code):
    page = fake_kernel.ok(code).text()
    assert page.startswith("Drive a mesh of ranks from the notebook.")
    assert "%mesh up --gpus 4" in page


def test_help_on_one_command(fake_kernel):
    page = fake_kernel.ok("%mesh heal --help").text()
    assert page == (
        "%mesh heal [MESH] [--shrink]  start lost ranks again; --shrink: go on without them\n"
    )


def test_nothing_is_expanded_in_the_line(fake_kernel):
    assert (
        "cannot read gpus={x}"
        in fake_kernel.run("x = 0\nget_ipython().run_cell_magic('mesh', 'gpus={x}', '1')").error
    )
