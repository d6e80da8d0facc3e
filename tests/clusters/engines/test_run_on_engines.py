"""`monarch-nb run --on k8s` and `--on ray`."""

import pytest

pytest.importorskip("kubernetes", reason="no client of Kubernetes: pip install monarch_nb[k8s]")
pytest.importorskip("ray", reason="no Ray: pip install monarch_nb[ray]")

from kubernetes.client import BatchV1Api

from monarch_nb.host.rundir import sweep_all
from tests.batch.story import tell_of_runs
from tests.clusters.engines.test_kubernetes_job import core, kubelet, left, plane
from tests.clusters.engines.test_up_on_engines import know_kubernetes
from tests.kernel.conftest import kernelspec
from tests.support import eventually

__all__ = ["core", "kernelspec", "know_kubernetes", "kubelet", "plane"]

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(240)]


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """Keys and runs of this test alone."""
    monkeypatch.setenv("MONARCH_NB_HOME", str(tmp_path / "home"))


def test_runs_on_pods(know_kubernetes, kubelet, core, tmp_path):
    on = ["--on", "k8s", "--namespace", "ml", "--image", "registry/ml:1", "--hosts", 2]
    tell_of_runs(tmp_path, on, lambda: kubelet.is_idle() and not left(core), kubelet.is_idle)
    jobs = BatchV1Api(core.api_client)
    [job] = jobs.list_namespaced_job("ml").items
    eventually(lambda: jobs.read_namespaced_job(job.metadata.name, "ml").status.conditions)
    jobs.delete_namespaced_job(job.metadata.name, "ml")  # as its ttl would


@pytest.mark.nightly
def test_runs_on_nodes_of_ray(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", cluster.env["RAY_ADDRESS"])
    tell_of_runs(tmp_path, ["--on", "ray", "--hosts", 2], lambda: not cluster.hosts())
    sweep_all()  # Ray kills hosts of a program that was killed; the next one to start removes this
