"""Meshes on pods that outlive their kernel; those on nodes of Ray do not, which is said."""

import pytest

pytest.importorskip("kubernetes", reason="no client of Kubernetes: pip install monarch_nb[k8s]")

from monarch_nb.control.keeping import kept_record
from tests.clusters.engines.test_kubernetes_job import core, kubelet, left, plane
from tests.clusters.engines.test_up_on_engines import at_kubernetes, know_kubernetes
from tests.kernel.client import KernelClient
from tests.kernel.conftest import kernelspec
from tests.kernel.test_kept import COUNTS, LINES, kill, lines_of
from tests.support import eventually

__all__ = ["at_kubernetes", "core", "kernelspec", "know_kubernetes", "kubelet", "plane"]

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(180)]

UP = "%mesh up --on k8s --namespace ml --image registry/ml:1 --hosts 2 --gpus 2 --keep 1h"


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


def test_ray_keeps_none_and_it_is_said(at_kubernetes):
    refused = at_kubernetes.run("%mesh up --on ray --hosts 2 --gpus 2 --keep 1h").error
    assert "cannot --keep a mesh on ray: its hosts end with the kernel" in refused
    assert "processes, ssh, slurm, k8s" in refused
