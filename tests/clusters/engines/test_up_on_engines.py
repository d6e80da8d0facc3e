"""`%mesh up --on k8s` and `--on ray` in a kernel: a cell on all ranks, and nothing that stays."""

import os
import re
import sys

import pytest

pytest.importorskip("kubernetes", reason="no client of Kubernetes: pip install monarch_nb[k8s]")
pytest.importorskip("ray", reason="no Ray: pip install monarch_nb[ray]")

from tests.clusters.engines.kubelet import python_path
from tests.clusters.engines.test_kubernetes_job import core, kubelet, left, plane
from tests.kernel.client import KernelClient
from tests.kernel.conftest import kernelspec
from tests.support import eventually

__all__ = ["core", "kernelspec", "kubelet", "plane"]

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(180)]


@pytest.fixture
def know_kubernetes(plane, kubelet, tmp_path, monkeypatch):
    """What is started here knows the cluster; `python3` in its pods is ours."""
    python = tmp_path / "bin/python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PATH", f"{python.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("KUBECONFIG", str(plane.config()))
    monkeypatch.setenv("PYTHONPATH", python_path())


@pytest.fixture
def at_kubernetes(know_kubernetes):
    """A kernel to which the cluster is known."""
    with KernelClient("monarch") as client:
        yield client


@pytest.fixture
def at_ray(cluster, no_host_stays, monkeypatch):
    """A kernel to which the cluster is known."""
    for name in ("RAY_ADDRESS", "PYTHONPATH"):
        monkeypatch.setenv(name, cluster.env[name])
    with KernelClient("monarch") as client:
        yield client


def test_pods_have_ranks_and_go(at_kubernetes, core):
    kernel = at_kubernetes
    on = "--on k8s --namespace ml --image registry/ml:1"
    cell = kernel.ok(f"%mesh up {on} --hosts 2 --gpus 2", timeout_s=120)
    assert re.search(r"2/2 hosts -> ranks up in [\d.]+ s\n", cell.shown)
    assert "have dialled in" not in cell.shown  # what was said while they came
    assert "mesh0 is up: 4 ranks (hosts=2 gpus=2) in " in cell.text()
    [data] = kernel.ok("%%mesh\nkept = rank; coords").displays
    assert data["text/plain"].splitlines()[3] == "[3] {'hosts': 1, 'gpus': 1}"
    shell = kernel.ok("%mesh shell 2").text()
    assert re.search(r"\nkubectl exec -it -n ml monarch-mesh0-\w+(-1)?-\w+ -- sh\n$", shell)
    cell = kernel.ok("%mesh scale --hosts 3", timeout_s=120)
    assert (
        "mesh0 has 3 hosts now: 6 ranks (hosts=3 gpus=2). variables of ranks 0-3 are kept"
        in cell.text()
    )
    assert kernel.ok("%%mesh 0-3\nkept").displays
    assert "the hosts of mesh0 are given back" in kernel.ok("%mesh down").text()
    eventually(lambda: not left(core), 20, lambda: f"left: {left(core)}")


@pytest.mark.nightly
def test_nodes_of_ray_have_ranks_and_go(at_ray, cluster):
    kernel = at_ray
    cell = kernel.ok("%mesh up --on ray --hosts 2 --device cpu gpus=2", timeout_s=150)
    assert re.search(r"2/2 hosts -> ranks up in [\d.]+ s\n", cell.shown)
    assert "mesh0 is up: 4 ranks (hosts=2 gpus=2) in " in cell.text()
    [data] = kernel.ok("%%mesh\ncoords").displays
    assert data["text/plain"].splitlines()[3] == "[3] {'hosts': 1, 'gpus': 1}"
    assert "Ray opens no shell; its node is " in kernel.ok("%mesh shell 0").text()
    assert "hello" in kernel.ok("%mesh shell 3 -- echo hello").text()
    assert "the hosts of mesh0 are given back" in kernel.ok("%mesh down").text()
    eventually(lambda: not cluster.hosts(), 20)
