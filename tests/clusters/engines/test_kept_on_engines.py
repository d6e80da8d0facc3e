"""Meshes on pods and on nodes of Ray that outlive their kernel."""

import os
import signal

import psutil
import pytest

pytest.importorskip("kubernetes", reason="no client of Kubernetes: pip install monarch_nb[k8s]")

pytest.importorskip("ray", reason="no Ray: pip install monarch_nb[ray]")

from monarch_nb.control.keeping import kept_record
from tests.clusters.engines.test_kubernetes_job import core, kubelet, left, plane
from tests.clusters.engines.test_ray_job import run
from tests.clusters.engines.test_up_on_engines import at_kubernetes, at_ray, know_kubernetes
from tests.kernel.client import KernelClient
from tests.kernel.conftest import kernelspec
from tests.kernel.test_kept import COUNTS, LINES, kill, lines_of
from tests.support import describe_process, eventually

__all__ = [
    "at_kubernetes", "at_ray", "core", "kernelspec", "know_kubernetes", "kubelet",
    "plane",
]  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(180)]

UP = "%mesh up --on k8s --namespace ml --image registry/ml:1 --hosts 2 --gpus 2 --keep 1h"

UP_RAY = "%mesh up --on ray --hosts 2 --device cpu --gpus 1 --keep {}"


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """Keys and records of this test alone."""
    monkeypatch.setenv("MONARCH_NB_HOME", str(tmp_path / "keys"))


def test_a_kernel_is_killed_and_its_mesh_on_two_pods_comes_back(at_kubernetes, core, tmp_path):
    told = tmp_path / "told"
    kernel = at_kubernetes
    assert "kept for 60 min" in kernel.ok(UP, timeout_s=120).text()
    running = kernel.start(COUNTS.format(str(told)))
    kernel.until(lambda: "line 5" in running.text())
    kill(kernel)
    with KernelClient("monarch") as kernel:
        attach = kernel.ok("%mesh attach", timeout_s=30)
        assert "cell In[2] still runs on ranks 0-3" in attach.text()
        told.touch()
        assert "[0, 100, 200, 300]" in kernel.ok("cell2.result().values()").shown
        kernel.until(lambda: len(lines_of(attach.text())) == 4 * LINES)
        assert set(lines_of(attach.text()).values()) == {1}, "none lost, none doubled"
        assert "2/2" in kernel.ok("%mesh jobs").shown
        assert "kubectl exec -it -n ml monarch-mesh0-" in kernel.ok("%mesh shell 2").text()
        assert "the hosts of mesh0 are given back" in kernel.ok("%mesh down").text()
        eventually(lambda: not left(core), 20, lambda: f"left: {left(core)}")
    assert not kept_record.all_records()


# ------------------------------------------------------------------------------------------- Ray


def known_to(cluster) -> list[str]:
    """The names of actors and placement groups of ours that Ray has."""
    said = run(
        cluster,
        """
        import os, ray
        from ray.util.placement_group import placement_group_table
        ray.init(os.environ["RAY_ADDRESS"], log_to_driver=False)
        named = ray.util.list_named_actors(all_namespaces=True)
        groups = [g["name"] for g in placement_group_table().values() if g["state"] != "REMOVED"]
        say(known=[each["name"] for each in named] + groups)
        """,
    )
    return said["known"]


def processes(cluster, called: str) -> list[int]:
    """The processes on the nodes whose command has this in it."""
    nodes = [psutil.Process(pid) for pid in cluster.pids]
    below = [each for node in nodes for each in node.children(recursive=True)]
    return [each.pid for each in below if called in describe_process(each.pid)]


def nothing_left(cluster) -> None:
    eventually(lambda: not cluster.hosts(), 20, lambda: f"hosts: {cluster.hosts()}")
    eventually(lambda: not known_to(cluster), 30, lambda: f"left in Ray: {known_to(cluster)}")


@pytest.mark.nightly
def test_a_kernel_is_killed_and_its_mesh_on_nodes_of_ray_comes_back(
    at_ray, cluster, tmp_path, monkeypatch
):
    told = tmp_path / "told"
    kernel = at_ray
    assert "kept for 60 min" in kernel.ok(UP_RAY.format("1h"), timeout_s=150).text()
    kernel.ok("%%mesh\nx = rank + 1")
    running = kernel.start(COUNTS.format(str(told)))
    kernel.until(lambda: "line 5" in running.text())
    kill(kernel)
    monkeypatch.delenv("RAY_ADDRESS")  # the record knows it
    with KernelClient("monarch") as kernel:
        assert "2 ranks busy (cell In[3])" in kernel.ok("%mesh list").text()
        attach = kernel.ok("%mesh attach", timeout_s=30)
        assert "cell In[3] still runs on ranks 0-1" in attach.text()
        told.touch()
        assert "[0, 100]" in kernel.ok("cell3.result().values()").shown
        kernel.until(lambda: len(lines_of(attach.text())) == 2 * LINES)
        assert set(lines_of(attach.text()).values()) == {1}, "none lost, none doubled"
        assert "[0] 1\n[1] 2" in kernel.ok("%%mesh\nx").shown
        assert "3 hosts now" in kernel.ok("%mesh scale --hosts 3", timeout_s=90).text()
        assert "[0] 1\n[1] 2" in kernel.ok("%%mesh 0-1\nx").shown
        kill(kernel)
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh attach", timeout_s=30)
        assert "3/3" in kernel.ok("%mesh jobs").shown
        first, *_ = processes(cluster, "monarch_nb.host.join")
        os.kill(first, signal.SIGKILL)
        kernel.until(lambda: "lost" in kernel.run("%%mesh\n1").error)
        kernel.ok("%mesh heal", timeout_s=90)
        assert "[0-2] 1" in kernel.ok("%%mesh\n1").shown
        assert "the hosts of mesh0 are given back" in kernel.ok("%mesh down").text()
    nothing_left(cluster)
    assert not kept_record.all_records()


@pytest.mark.nightly
def test_a_mesh_on_nodes_of_ray_is_ended_without_being_attached(at_ray, cluster):
    at_ray.ok(UP_RAY.format("1h"), timeout_s=150)
    kill(at_ray)
    [sweeper] = processes(cluster, "ray::Sweeper")
    os.kill(sweeper, signal.SIGKILL)  # Ray starts it again
    with KernelClient("monarch") as kernel:
        assert "mesh0 is ended" in kernel.ok("%mesh down --kept mesh0").text()
    nothing_left(cluster)
    assert not kept_record.all_records()


@pytest.mark.nightly
def test_nobody_comes_and_all_ends_on_nodes_of_ray(at_ray, cluster):
    at_ray.ok(UP_RAY.format("3s"), timeout_s=150)
    kill(at_ray)
    nothing_left(cluster)


@pytest.mark.nightly
def test_a_kernel_is_killed_while_its_hosts_are_awaited_and_nothing_stays(at_ray, cluster):
    up_later = "%mesh up --on ray --hosts 2 --gpus 64 --keep 1h"
    up = at_ray.start(up_later)
    at_ray.until(lambda: "each host wants 1 CPU, 64 GPU" in up.shown)
    at_ray.interrupt()
    at_ray.finish(up)
    nothing_left(cluster)
    up = at_ray.start(up_later)
    at_ray.until(lambda: "each host wants 1 CPU, 64 GPU" in up.shown)
    assert known_to(cluster)
    kill(at_ray)
    nothing_left(cluster)


@pytest.mark.nightly
def test_what_was_not_said_at_the_start_cannot_be_kept_later(at_ray, cluster):
    at_ray.ok(UP_RAY.partition(" --keep")[0], timeout_s=150)
    refused = at_ray.run("%mesh keep mesh0 1h").error
    assert "Say it then: %mesh up --on ray ... --keep 8h" in refused
    at_ray.ok("%mesh down")
    nothing_left(cluster)


@pytest.mark.nightly
def test_another_kernel_takes_a_mesh_on_nodes_of_ray_away(at_ray, cluster):
    at_ray.ok(UP_RAY.format("1h"), timeout_s=150)
    at_ray.ok("%%mesh\nx = rank + 1")
    with KernelClient("monarch") as second:
        second.ok("%mesh attach --fence", timeout_s=30)
        assert "[0] 1\n[1] 2" in second.ok("%%mesh\nx").shown
        assert "taken it over" in at_ray.run("%%mesh\nx").error
        assert "the hosts of mesh0 are given back" in second.ok("%mesh down").text()
    nothing_left(cluster)
