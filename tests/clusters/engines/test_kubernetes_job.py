"""Hosts that are pods: they come, train, wait with a reason, are evicted, and leave nothing.

The control plane is a real one where MONARCH_NB_KUBERNETES names its programs (`control_plane.py`);
else a stand-in answers (`stand_in.py`). In both there are no nodes: `kubelet.py` runs the commands
of the pods as processes here.
"""

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("kubernetes", reason="no client of Kubernetes: pip install monarch_nb[k8s]")

from kubernetes import client

from monarch_nb import Actor, RankUnreachable, current_rank, endpoint, shutdown_context
from monarch_nb.control.jobs.kubernetes import kubernetes_job as ours
from monarch_nb.control.jobs.kubernetes.pods import Api
from monarch_nb.control.jobs.status import Stage
from monarch_nb.errors import LaunchError
from monarch_nb.host import rundir
from monarch_nb.job import ImageSpec, KubeConfig, KubernetesJob
from monarch_nb.spmd import setup_torch_elastic_env
from tests import inside
from tests.clusters.actors import Where
from tests.clusters.engines import control_plane, planes
from tests.clusters.engines.control_plane import ADMIN, GUEST, STRANGER, ControlPlane
from tests.clusters.engines.kubelet import Kubelet, python_path
from tests.clusters.engines.planes import left
from tests.clusters.engines.stand_in import StandIn
from tests.support import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
IMAGE = ImageSpec("registry/ml:1", {"nvidia.com/gpu": 8})
SMALL = ImageSpec("registry/ml:1", {"nvidia.com/gpu": 1})
QUOTA = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "0"}}}


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane | StandIn]:
    """The cluster, with two nodes of 8 GPUs and the namespace `ml`."""
    with planes.plane() as made:
        yield made


@pytest.fixture
def core(plane) -> client.CoreV1Api:
    return planes.core_of(plane)


@pytest.fixture
def kubelet(core, tmp_path) -> Iterator[Kubelet]:
    """A node; nothing of the job is in the cluster or runs after the test."""
    made = Kubelet(core, "ml", tmp_path)
    yield made
    shutdown_context().get(20)
    try:
        eventually(lambda: made.is_idle() and not left(core), 20, lambda: f"left: {left(core)}")
    finally:
        made.close()


@pytest.fixture
def new_job(plane, kubelet) -> Iterator[Callable[..., KubernetesJob]]:
    """`new_job()`: two hosts, as `trainers`; killed after the test."""
    made = []

    def new(image=IMAGE, namespace="ml", user=ADMIN, spares=0, **options) -> KubernetesJob:
        reached = KubeConfig.from_path(str(plane.config(user)))
        asked = {"python_exe": sys.executable, **options}
        made.append(KubernetesJob(namespace, kubeconfig=reached, **asked))
        made[-1].add_mesh("trainers", 2, image_spec=image, spares=spares)
        return made[-1]

    yield new
    for each in made:
        each.kill()


def hosts_of(job):
    return job.state(cached_path=None).trainers


class Trainer(Actor):
    """A member of one process group of all ranks."""

    @endpoint
    def sum(self) -> float:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        mine = torch.tensor([current_rank().rank + 1.0])
        dist.all_reduce(mine)
        dist.destroy_process_group()
        return mine.item()


def test_hosts_come_train_together_and_go(new_job, core):
    job = new_job(env={"FROM_THE_JOB": "yes"})
    hosts = hosts_of(job)
    hosts.initialized.get(60)
    assert job.status()[:4] == ("k8s", Stage.UP, 2, 2)
    [secret] = core.list_namespaced_secret("ml").items
    assert [owner.kind for owner in secret.metadata.owner_references] == ["Job"]
    ticket = secret.data["ticket"]
    assert all(ticket not in str(pod) for pod in core.list_namespaced_pod("ml").items)
    procs = hosts.spawn_procs(per_host={"gpus": 2})
    where = procs.spawn("where", Where)
    assert where.variable.call("FROM_THE_JOB").get(60).values() == ["yes"] * 4
    setup_torch_elastic_env(procs)
    assert procs.spawn("trainer", Trainer).sum.call().get(60).values() == [10.0] * 4
    job.kill()
    eventually(lambda: not left(core), 20, lambda: f"nothing stays: {left(core)}")
    assert job.status().stage is Stage.GONE


def test_hosts_that_come_while_the_cluster_is_asked_are_counted(new_job, monkeypatch):
    job = new_job()
    hosts = hosts_of(job)
    asked = Api.list

    def list_late(self, kind, **which):
        found = asked(self, kind, **which)
        if threading.current_thread() is threading.main_thread():
            hosts.initialized.get(60)
        return found

    monkeypatch.setattr(Api, "list", list_late)
    assert job.status()[:4] == ("k8s", Stage.UP, 2, 2)


def test_what_no_node_has_is_queued_with_the_words_of_the_scheduler(new_job, core):
    job = new_job(image=ImageSpec("registry/ml:1", {"nvidia.com/gpu": 16}))
    hosts = hosts_of(job)
    said = "Unschedulable: 0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    eventually(lambda: job.status().reason == said, 10, lambda: str(job.status()))
    assert job.status().stage is Stage.QUEUED
    job.kill()
    with pytest.raises(RuntimeError, match=r"trainers-\w+-0 did not join: the job was ended"):
        hosts.initialized.get(10)
    eventually(lambda: not left(core), 20)


def test_a_quota_is_said(new_job, core):
    core.create_namespaced_resource_quota("ml", QUOTA)
    try:
        eventually(lambda: _is_in_force(core), 10)
        job = new_job()
        job.apply()
        eventually(lambda: "exceeded quota: few" in job.status().reason, 10)
        assert job.status().stage is Stage.QUEUED
    finally:
        core.delete_namespaced_resource_quota("few", "ml")


def _is_in_force(core) -> bool:
    status = core.read_namespaced_resource_quota("few", "ml").status
    return status is None or status.hard is not None  # the stand-in has none


def test_an_image_that_cannot_be_had_is_said(new_job, kubelet):
    kubelet.holds = True
    job = new_job()
    job.apply()
    pods = eventually(lambda: len(kubelet.pods()) == 2 and kubelet.pods())
    words = 'Back-off pulling image "registry/ml:1"'
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": words}}
    state = {"name": "host", "image": "", "imageID": "", "ready": False, "restartCount": 0}
    for pod in pods:
        kubelet.say(pod.metadata.name, containerStatuses=[{**state, "state": waiting}])
    assert job.status()[1:] == (
        Stage.QUEUED, 0, 2, job.status().id, f"ImagePullBackOff: {words}", None, None,
    )  # fmt: skip


def test_pods_that_end_before_they_join_are_told_with_their_last_lines(new_job, plane):
    job = new_job(python_exe="/nowhere/python")
    hosts = hosts_of(job)
    with pytest.raises(
        RuntimeError, match=r"did not join: pod .*: Failed, Error with code 127"
    ) as e:
        hosts.initialized.get(30)
    assert isinstance(plane, ControlPlane) or "/nowhere/python: not found" in str(e.value)
    assert job.status().stage is Stage.GONE


def test_pods_that_do_not_reach_this_program_are_named_with_what_to_check(new_job):
    job = new_job(address="tcp://127.0.0.1:9@tcp://127.0.0.1:0")
    job.apply()
    eventually(lambda: job.status().stage is Stage.JOINING, 20)
    eventually(lambda: "2 pods run" in job.status().reason, 10)
    assert "0 have dialled in" in job.status().reason
    assert f"kubectl logs -n ml job/{job.status().id}" in job.status().reason


def test_hosts_that_do_not_come_in_time_are_given_up_with_the_reason(new_job):
    hosts = hosts_of(new_job(image=ImageSpec("image", {"nvidia.com/gpu": 16}), timeout=1))
    with pytest.raises(RuntimeError, match="not within 1 s: Unschedulable: 0/2 nodes"):
        hosts.initialized.get(20)


@pytest.mark.fault
def test_an_evicted_pod_is_told_and_the_other_goes_on(new_job, kubelet, monkeypatch):
    told = []
    monkeypatch.setattr("monarch_nb.unhandled_fault_hook", told.append, raising=False)
    job = new_job()
    where = hosts_of(job).spawn_procs().spawn("where", Where)
    where.machine.call().get(60)
    [first] = [pod for pod in kubelet.pods() if ours.place_of(_json(pod)) == 0]
    kubelet.evict(first.metadata.name, "The node was low on resource: memory.")
    eventually(lambda: told, 20)
    assert told[0].crashed_ranks == [0]
    with pytest.raises(RankUnreachable):
        where.slice(hosts=0).machine.call_one().get(20)
    assert where.slice(hosts=1).machine.call_one().get(20)
    found = job.status()
    assert (found.stage, found.joined) == (Stage.UP, 1)
    assert "Evicted: The node was low on resource: memory." in found.reason


@pytest.mark.fault
def test_a_spare_pod_takes_the_place_of_a_lost_host_then_one_more_pod_does(
    new_job, kubelet, monkeypatch
):
    monkeypatch.setattr("monarch_nb.unhandled_fault_hook", lambda _: None, raising=False)
    job = new_job(spares=1, image=SMALL)
    hosts = hosts_of(job)
    hosts.initialized.get(60)
    eventually(lambda: job.status()[1:4] == (Stage.UP, 3, 3), 30)
    procs = hosts.spawn_procs()
    where = procs.spawn("where", Where)
    assert counts(where) == [1, 1]
    evict(kubelet, place=1)
    eventually(lambda: inside.lost(procs) == [1], 20)
    procs.heal()
    assert counts(where) == [2, 1]
    [moved] = inside.state(procs).moves
    assert re.fullmatch(r"rank 1 is on monarch-trainers-\w+-2 now", moved)
    evict(kubelet, place=2)
    eventually(lambda: inside.lost(procs) == [1], 20)
    procs.heal()
    assert counts(where) == [3, 1]
    names = [pod.metadata.name for pod in kubelet.pods() if pod.status.phase == "Running"]
    assert len(names) >= 2, "one more for each that is lost"
    assert job.status().stage is Stage.UP


def counts(actors):
    return list(actors.count.call().get(60).values())


def evict(kubelet, place):
    [pod] = [pod for pod in kubelet.pods() if ours.place_of(_json(pod)) == place]
    kubelet.evict(pod.metadata.name, "The node was low on resource: memory.")


def python_that(tmp_path, lines):
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\n{lines}\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize("how", ["exit 3", "exec sleep 1000"], ids=["fails", "waits"])
def test_pods_that_come_are_used_where_they_are_enough(new_job, tmp_path, core, how):
    python = python_that(tmp_path, f'test "$JOB_COMPLETION_INDEX" = 1 && {how}')
    job = new_job(image=SMALL, python_exe=python, min_hosts=1)
    job.apply()
    eventually(job.has_enough, 60)
    if how != "exit 3":
        assert job.status()[1:4] == (Stage.JOINING, 1, 2)
        job.settle()
    hosts = hosts_of(job)
    assert hosts.sizes == {"hosts": 1}
    assert counts(hosts.spawn_procs().spawn("where", Where)) == [1]
    assert job.status()[1:4] == (Stage.UP, 1, 2)
    name, batch = job.status().id, client.BatchV1Api(core.api_client)
    deadline = lambda: batch.read_namespaced_job(name, "ml").spec.active_deadline_seconds
    eventually(lambda: deadline() is None, 20, "it is not ended while it is used")


@pytest.mark.nightly
def test_more_pods_are_a_job_of_their_own_which_goes_with_them(new_job, core):
    job = new_job(image=SMALL)
    hosts = hosts_of(job)
    procs = hosts.spawn_procs()
    where = procs.spawn("where", Where)
    assert counts(where) == [1, 1]
    jobs = client.BatchV1Api(core.api_client)
    more = job.scale("trainers", 3)
    procs = procs.resize(more)
    assert procs.initialized.get(60)
    assert job.status()[1:4] == (Stage.UP, 3, 3)
    assert len(jobs.list_namespaced_job("ml").items) == 2
    assert counts(where) == [2, 2]
    assert counts(procs.spawn("all", Where)) == [1, 1, 1]
    host = inside.state(procs).agents[2] >> 48
    shell = job.shell_command(host)
    assert re.fullmatch(
        r"kubectl --kubeconfig \S+ exec -it -n ml monarch-trainers-\w+-1(-0)?-\w+ -- sh", shell
    )
    procs = procs.resize(more.slice(hosts=slice(2)))
    job.scale("trainers", 2)
    eventually(lambda: len(jobs.list_namespaced_job("ml").items) == 1, 20)
    assert job.status()[1:4] == (Stage.UP, 2, 2)
    assert counts(where) == [3, 3]


def _json(pod):
    return client.ApiClient().sanitize_for_serialization(pod)


@pytest.mark.parametrize(
    "user, namespace, said",
    [
        (STRANGER, "ml", "401: Unauthorized\nYour login has expired or is not known there"),
        (GUEST, "ml", '403: secrets is forbidden: User "guest" cannot create resource "secrets"'),
        (ADMIN, "nope", '404: namespaces "nope" not found\nType: kubectl get namespaces'),
    ],
)
def test_what_the_cluster_refuses_is_one_message(new_job, user, namespace, said):
    with pytest.raises(LaunchError) as error:
        new_job(user=user, namespace=namespace).apply()
    assert said in str(error.value)


def test_a_cluster_that_does_not_answer_is_said(new_job, tmp_path):
    gone = control_plane.write_config(tmp_path, "http://127.0.0.1:9")
    job = KubernetesJob("ml", kubeconfig=KubeConfig(local=gone))
    job.add_mesh("trainers", 1, image_spec=IMAGE)
    with pytest.raises(LaunchError, match="the cluster does not answer"):
        job.apply()


def test_a_job_that_nobody_waits_for_ends_and_one_that_is_waited_for_does_not(
    new_job, core, monkeypatch
):
    monkeypatch.setattr(ours, "_LOOK_S", 0.1)
    monkeypatch.setattr(ours, "_RENEW_S", 0.2)
    monkeypatch.setattr(ours, "_LEASE_S", 3)
    batch = client.BatchV1Api(core.api_client)

    def deadline(job):
        return batch.read_namespaced_job(job.status().id, "ml").spec.active_deadline_seconds

    waited = new_job(image=ImageSpec("registry/ml:1", {"nvidia.com/gpu": 16}))
    waited.apply()
    eventually(lambda: deadline(waited) > 6, 15, "the deadline moves")
    assert waited.status().stage is Stage.QUEUED
    waited.kill()
    monkeypatch.setattr(ours, "_RENEW_S", 1e9)
    left_alone = new_job(image=ImageSpec("registry/ml:1", {"nvidia.com/gpu": 16}))
    hosts = hosts_of(left_alone)
    with pytest.raises(RuntimeError, match="did not join: DeadlineExceeded"):
        hosts.initialized.get(30)
    assert left_alone.status().stage is Stage.GONE
    here = new_job()
    hosts_of(here).initialized.get(60)
    eventually(lambda: deadline(here) is None, 10, "hosts that are here have no deadline")


@pytest.mark.fault
def test_hosts_end_when_their_controller_was_killed(plane, kubelet, core):
    program = f"""
        import signal
        from monarch_nb.job import ImageSpec, KubeConfig, KubernetesJob
        reached = KubeConfig.from_path({str(plane.config())!r})
        job = KubernetesJob("ml", kubeconfig=reached, python_exe={sys.executable!r})
        job.add_mesh("trainers", 2, image_spec=ImageSpec("image", {{"nvidia.com/gpu": 1}}))
        hosts = job.state(cached_path=None).trainers
        procs = hosts.spawn_procs(per_host={{"gpus": 1}})  # dropped, they would end
        procs.initialized.get(60)
        print(job.status().id, flush=True)
        signal.pause()
    """
    env = {**os.environ, "PYTHONPATH": python_path(), "MONARCH_NB_OUTAGE_S": "3"}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as controller:
        name = controller.stdout.readline().strip()
        controller.send_signal(signal.SIGKILL)
    eventually(kubelet.is_idle, 60, "the pods end by themselves")
    batch = client.BatchV1Api(core.api_client)
    ended = eventually(
        lambda: batch.read_namespaced_job(name, "ml").status.conditions,
        20,
        lambda: "\n".join(map(str, kubelet.pods())),  # what they have written is with them
    )
    assert [each.type for each in ended] == ["Complete"]
    batch.delete_namespaced_job(name, "ml", propagation_policy="Background")  # as its ttl would
    eventually(lambda: not left(core), 20, "its Secret goes with it")
    rundir.sweep_all()  # a process that was killed leaves its folder to the next one to start
