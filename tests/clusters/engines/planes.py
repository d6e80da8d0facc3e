"""A Kubernetes for tests: the control plane where its programs are, else what stands in for it.

In both there are two nodes of 8 GPUs and the namespace `ml`; `kubelet.py` runs what is on them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from kubernetes import client

from tests.clusters.engines import control_plane
from tests.clusters.engines.control_plane import ControlPlane
from tests.clusters.engines.stand_in import StandIn


@contextmanager
def plane() -> Iterator[ControlPlane | StandIn]:
    """`plane.config()` is a kubeconfig of its administrator."""
    programs = control_plane.programs()
    with StandIn() if programs is None else ControlPlane(programs) as made:
        if programs is not None:
            _furnish(core_of(made))
        yield made


def core_of(made: ControlPlane | StandIn) -> client.CoreV1Api:
    """Return a client of it, as its administrator."""
    return client.CoreV1Api(control_plane.client_of(made.config()))


def left(core: client.CoreV1Api) -> list[str]:
    """Return what is in the namespace that a job has made."""
    jobs = client.BatchV1Api(core.api_client).list_namespaced_job("ml").items
    found = [*jobs, *core.list_namespaced_pod("ml").items, *core.list_namespaced_secret("ml").items]
    return [each.metadata.name for each in found]


def _furnish(core: client.CoreV1Api) -> None:
    core.create_namespace({"metadata": {"name": "ml"}})
    has = {"cpu": "8", "memory": "32Gi", "pods": "20", "nvidia.com/gpu": "8"}
    ready = [{"type": "Ready", "status": "True"}]
    for name in ("node0", "node1"):
        core.create_node({"metadata": {"name": name}})
        status = {"capacity": has, "allocatable": has, "conditions": ready}
        core.patch_node_status(name, {"status": status})
