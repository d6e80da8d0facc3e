"""Several meshes, slices and names from Python: a command does what it says to the mesh it names,
and nothing to others."""

from collections.abc import Iterator

import pytest

from tests.kernel.client import KernelClient

SLEEP = "%%mesh @{name} --noblock -o of_{name}\nimport time; time.sleep(30)"


@pytest.fixture(scope="module")
def two() -> Iterator[KernelClient]:
    """A kernel with the meshes `a` and `b`."""
    with KernelClient("monarch") as kernel:
        kernel.ok("from monarch_nb import this_host")
        kernel.ok("%mesh up --gpus 2 --name a", timeout_s=50)
        kernel.ok("%mesh up --gpus 2 --name b", timeout_s=50)
        yield kernel


@pytest.fixture
def one() -> Iterator[KernelClient]:
    """A kernel with the mesh `a`, for a test that ends ranks."""
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh up --gpus 2 --name a", timeout_s=50)
        yield kernel


def test_interrupt_reaches_the_named_mesh_only(two):
    for name in ("a", "b"):
        two.ok(SLEEP.format(name=name))
    assert two.ok("%mesh interrupt --name b").text() == "b: interrupted\n"
    assert two.ok("of_b.wait(10), of_a.done").displays == [{"text/plain": "(True, False)"}]
    assert two.ok("%mesh interrupt --name a").text() == "a: interrupted\n"
    assert two.ok("of_a.wait(10)").displays == [{"text/plain": "True"}]
    assert two.ok("%mesh interrupt").text() == (
        "b: nothing to interrupt. %mesh stacks shows where its ranks are\n"
    )


def test_interrupt_reaches_calls_to_actors_of_the_mesh(two, tmp_path):
    two.ok(
        "import pathlib, time\nfrom monarch_nb import Actor, endpoint\n"
        "class Sleeper(Actor):\n"
        "    @endpoint\n"
        f"    def sleep(self):\n        pathlib.Path({str(tmp_path / 'begun')!r}).touch()\n"
        "        time.sleep(30)\n"
        "called = a.spawn('sleepers', Sleeper).sleep.call()"
    )
    two.until((tmp_path / "begun").exists)
    two.ok("%mesh interrupt --name a")
    cell = two.run("called.get(timeout=10)")
    assert "sleepers.sleep was interrupted" in cell.error


def test_any_name_of_python_can_be_typed(two):
    two.ok("odd = this_host().spawn_procs(per_host={'gpus': 1}, name='my-mesh.x y')")
    assert two.ok("%%mesh --name 'my-mesh.x y'\nrank").displays == [{"text/plain": "0"}]
    assert two.run("%%mesh @nope\n1").error == (
        "There is no mesh 'nope'. Up: a, b, my-mesh.x y. Type: %mesh use a, or %%mesh --name a"
    )
    two.ok("%mesh use 'my-mesh.x y'")
    assert two.ok("%mesh down").text() == "my-mesh.x y is down\n"


@pytest.mark.slow
@pytest.mark.fault
def test_a_restart_is_no_failure(one):
    one.ok("%mesh interrupt --kill 1 --name a")
    one.ok("import time\nwhile 1 not in a._state.lost: time.sleep(0.01)")
    assert one.ok("%mesh restart 0 --name a").shown == (
        "a: ranks 0-1 started again, with empty namespaces\n"
    )
    one.settle()
    assert one.ok("%%mesh @a\nrank").shown == "[0] 0\n[1] 1\n"
    cell = one.run("%%mesh @a 1\nimport os; os._exit(3)")
    assert "rank 1: the process exited with code 3" in cell.error
    one.ok("%mesh heal a")


@pytest.mark.slow
@pytest.mark.fault
def test_a_variable_does_not_go_to_lost_ranks(one):
    one.run("%%mesh @a 1\nimport os; os._exit(3)")
    lost = "rank 1 of a is lost; %mesh status shows how. Type: %mesh heal, or %%mesh 0 for the "
    for code in ("x = 1\n%mesh put x @a", "%mesh get rank @a"):
        assert one.run(code).error == lost + "others"
    one.ok("%mesh put x @a 0")
    one.ok("%mesh heal a")


@pytest.mark.slow
def test_a_slice_stands_for_its_mesh_where_the_mesh_is_meant(one):
    one.ok("from monarch_nb import this_host")
    one.ok("q = this_host().spawn_procs(per_host={'gpus': 4}, name='q')")
    one.ok("half = q.slice(gpus=slice(0, 2))\n%mesh use half")
    assert one.ok("%mesh heal").text() == "q is whole again: 4 ranks (gpus=4)\n"
    assert one.ok("%mesh restart 1").text() == "q: rank 1 started again, with an empty namespace\n"
    assert "  q: 4 ranks (gpus=4)\n* half: 2 ranks (gpus=2)" in sorted_list(one)
    cell = one.run("%mesh down")
    assert cell.error == ("half is a slice of q, which has 4 ranks (gpus=4). Type: %mesh down q")
    one.ok("%%mesh\n1")
    assert one.ok("%mesh down q").text() == "q is down\n"
    assert "half" not in sorted_list(one)


@pytest.mark.slow
@pytest.mark.fault
def test_a_mesh_that_cannot_grow_is_not_ended_by_a_restart(one):
    one.run("%%mesh 1\nimport os; os._exit(3)")
    assert one.ok("%mesh heal --shrink").text() == "a goes on with 1 rank (gpus=1)\n"
    one.ok("%%mesh\nkept = 7")
    assert "has been shrunk" in one.run("%mesh restart").error
    assert one.ok("%%mesh\nkept").displays == [{"text/plain": "7"}]


@pytest.mark.slow
def test_down_all_ends_each_mesh_once(one):
    one.ok("part = a.slice(gpus=0)\n%mesh use part")
    one.ok("%mesh up --gpus 1 --name b")
    assert one.ok("%mesh down --all").text() == "a, b are down\n"
    assert one.ok("%mesh list").text() == "No mesh is up. Type: %mesh up --gpus 4\n"


def sorted_list(kernel: KernelClient) -> str:
    return "\n".join(sorted(kernel.ok("%mesh list").text().splitlines()))
