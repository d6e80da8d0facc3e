"""Meshes on hosts of ssh that outlive their kernel, with a real sshd in each machine."""

import sys

import pytest

from monarch_nb.control.keeping import kept_record
from tests.clusters.test_sshd import joined
from tests.kernel.client import KernelClient
from tests.kernel.conftest import kernelspec
from tests.kernel.test_kept import COUNTS, LINES, kill, lines_of
from tests.support import eventually

__all__ = ["kernelspec"]

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """Keys and records of this test alone."""
    monkeypatch.setenv("MONARCH_NB_HOME", str(tmp_path / "keys"))


@pytest.fixture
def nodes(machines, sshd):
    """Two machines and what to type for them."""
    both = machines(2, home=True)
    on = "%mesh up --on ssh:node1,node2 --gpus 2 --device cpu --keep {} --python {} -- -F {}"
    config = sshd(both).config
    return both, lambda time: on.format(time, sys.executable, config)


def test_a_kernel_is_killed_and_its_mesh_on_two_machines_comes_back(nodes, tmp_path):
    both, up = nodes
    told = tmp_path / "told"
    with KernelClient("monarch") as kernel:
        assert "kept for 60 min" in kernel.ok(up("1h"), timeout_s=90).text()
        running = kernel.start(COUNTS.format(str(told)))
        kernel.until(lambda: "line 5" in running.text())
        kill(kernel)
    with KernelClient("monarch") as kernel:
        attach = kernel.ok("%mesh attach")
        assert "cell In[2] still runs on ranks 0-3" in attach.text()
        told.touch()
        assert "[0, 100, 200, 300]" in kernel.ok("cell2.result().values()").shown
        kernel.until(lambda: len(lines_of(attach.text())) == 4 * LINES)
        assert set(lines_of(attach.text()).values()) == {1}, "none lost, none doubled"
        assert "2/2" in kernel.ok("%mesh jobs").shown
        kernel.ok("%mesh down")
    eventually(lambda: not any(map(joined, both)))
    assert not kept_record.all_records()


def test_another_notebook_looks_on_at_ranks_of_two_machines(nodes):
    both, up = nodes
    with KernelClient("monarch") as kernel, KernelClient("monarch") as other:
        kernel.ok(up("1h"), timeout_s=90)
        look = other.ok("%mesh attach --view", timeout_s=40)
        kernel.ok("%%mesh\nprint('hello', rank)\nimport monarch_nb; monarch_nb.log(loss=rank)")
        other.until(lambda: all(f"[{rank}] hello {rank}" in look.text() for rank in range(4)))
        assert "4 idle" in other.ok("%mesh status").shown
        assert "idle" in other.ok("%mesh stacks").text() + other.ok("%mesh stacks").shown
        kernel.ok("%mesh down")
        other.until(lambda: "mesh0 was stopped" in look.text("stderr"))
    eventually(lambda: not any(map(joined, both)))


def test_a_network_that_fails_counts_as_a_kernel_that_has_gone(nodes, monkeypatch):
    monkeypatch.setenv("MONARCH_NB_OUTAGE_S", "3")
    both, up = nodes
    with KernelClient("monarch") as kernel:
        kernel.ok(up("1h"), timeout_s=90)
        kernel.ok("%%mesh\nx = rank")
        for each in both:
            each.cut()
        kernel.until(lambda: "lost" in kernel.run("%%mesh\nx").error, timeout_s=40)
        said = " ".join(kernel.ok("%mesh status").shown.split())
        assert "runs there is kept. When the network is back, %mesh attach brings it" in said
        for each in both:
            each.join()
        assert all(map(joined, both)), "the ranks go on"
        assert "is back" in kernel.ok("%mesh attach", timeout_s=40).text()
        assert "[0] 0\n[1] 1\n[2] 2\n[3] 3" in kernel.ok("%%mesh\nx").shown
        assert "2/2" in kernel.ok("%mesh jobs").shown
        for each in both:
            each.cut()
        kernel.until(lambda: "lost" in kernel.run("%%mesh\nx").error, timeout_s=40)
        for each in both:
            each.join()
        kill(kernel)
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh attach", timeout_s=40)
        assert "[0] 0\n[1] 1\n[2] 2\n[3] 3" in kernel.ok("%%mesh\nx").shown
        kernel.ok("%mesh down")
    eventually(lambda: not any(map(joined, both)))


@pytest.mark.nightly
def test_it_is_ended_from_elsewhere_and_when_nobody_comes(nodes):
    both, up = nodes
    with KernelClient("monarch") as kernel:
        kernel.ok(up("1h"), timeout_s=90)
        kill(kernel)
    with KernelClient("monarch") as kernel:
        assert "mesh0 is ended" in kernel.ok("%mesh down --kept").text()
        eventually(lambda: not any(map(joined, both)))
        kernel.ok(up("2s"), timeout_s=90)
        kill(kernel)
    eventually(lambda: not any(map(joined, both)), 30.0)


@pytest.mark.nightly
def test_one_host_that_was_lost_is_attached_again_or_given_up(nodes, monkeypatch):
    monkeypatch.setenv("MONARCH_NB_OUTAGE_S", "3")
    both, up = nodes
    with KernelClient("monarch") as kernel:
        kernel.ok(up("1h"), timeout_s=90)
        kernel.ok("%%mesh\nx = rank")
        both[1].cut()
        kernel.until(lambda: "ranks 2-3" in kernel.run("%%mesh\nx").error, timeout_s=40)
        assert "[0] 0\n[1] 1" in kernel.ok("%%mesh 0-1\nx").shown
        both[1].join()
        kernel.ok("%mesh attach", timeout_s=40)
        assert "[0] 0\n[1] 1\n[2] 2\n[3] 3" in kernel.ok("%%mesh\nx").shown
        left = joined(both[1])
        both[1].cut()
        kernel.until(lambda: "ranks 2-3" in kernel.run("%%mesh\nx").error, timeout_s=40)
        both[1].join()
        assert set(left) <= set(joined(both[1])), "they go on"
        kernel.ok("%mesh heal", timeout_s=60)
        eventually(lambda: not set(left) & set(joined(both[1])))
        assert "[0] 0\n[1] 1" in kernel.ok("%%mesh 0-1\nx").shown
        assert "[0-3] 1" in kernel.ok("%%mesh\n1").shown
        kernel.ok("%mesh down")
    eventually(lambda: not any(map(joined, both)))
