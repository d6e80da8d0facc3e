"""`KubernetesJob` without a cluster: its manifest, and what is said of pods as clusters tell.

With a control plane: `tests/clusters/engines`.
"""

import subprocess
import sys

import pytest

from monarch_nb.control.jobs.kubernetes import pods
from monarch_nb.control.jobs.kubernetes.kubernetes_job import pod_of
from monarch_nb.control.jobs.kubernetes.pods import Seen
from monarch_nb.errors import LaunchError
from monarch_nb.job import ImageSpec, KubeConfig, KubernetesJob, job_loads

IMAGE = ImageSpec("registry/ml:1", {"nvidia.com/gpu": 8})


def new_job(**options):
    job = KubernetesJob("ml", **options)
    job.add_mesh("trainers", 2, image_spec=IMAGE)
    return job


@pytest.mark.parametrize("name", ["", "Trainers", "9lives", "my-mesh", "x" * 41])
def test_a_name_that_kubernetes_would_refuse_is_refused_here(name):
    with pytest.raises(ValueError, match="40 lower-case letters and digits at most"):
        KubernetesJob("ml").add_mesh(name, 1, image_spec=IMAGE)


def test_a_job_without_pods_or_image_says_how_to_name_them():
    with pytest.raises(ValueError, match="add_mesh"):
        KubernetesJob("ml").apply()
    with pytest.raises(ValueError, match="at least one host"):
        KubernetesJob("ml").add_mesh("trainers", 0, image_spec=IMAGE)
    for both in ({}, {"image_spec": IMAGE, "pod_template": {"spec": {}}}):
        with pytest.raises(ValueError, match=r"image_spec=ImageSpec\('registry/image'\)"):
            KubernetesJob("ml").add_mesh("trainers", 1, **both)


def test_without_its_client_it_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(LaunchError, match=r"pip install monarch_nb\[k8s\]"):
        new_job().apply()


def test_the_names_load_no_client():
    program = "import sys, monarch_nb.job; print({'kubernetes', 'ray', 'yaml'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_it_can_be_saved_and_its_hosts_are_not():
    job = new_job(kubeconfig=KubeConfig.from_path("~/kube"), env={"A": "1"})
    found = job_loads(job.dumps())
    assert not found.active
    assert not found.can_run(job)
    assert found.dumps() == job.dumps()
    with pytest.raises(TypeError, match="cannot be saved"):
        new_job(kubeconfig=KubeConfig.from_config(object())).dumps()


def test_the_script_is_a_manifest_without_the_ticket():
    yaml = pytest.importorskip("yaml")
    secret, job = yaml.safe_load_all(new_job().script())
    assert secret["stringData"] == {"ticket": "(made when the job is applied)"}
    spec = job["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (2, 2, "Indexed")
    assert (spec["backoffLimitPerIndex"], spec["activeDeadlineSeconds"]) == (0, 600)
    pod = spec["template"]["spec"]
    [host] = pod["containers"]
    assert host["image"] == "registry/ml:1"
    assert host["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert pod["volumes"][0]["secret"]["secretName"] == secret["metadata"]["name"]
    assert pod["restartPolicy"] == "Never"


def test_a_template_is_kept_and_its_first_container_is_the_host():
    template = {
        "metadata": {"labels": {"team": "ml"}},
        "spec": {
            "tolerations": [{"key": "gpu"}],
            "containers": [
                {"image": "mine", "volumeMounts": [{"name": "m", "mountPath": "/dev/shm"}]},
                {"name": "side", "image": "other"},
            ],
        },
    }
    made = pod_of({"template": template, "image": None}, "secret", "python3")
    host, side = made["spec"]["containers"]
    assert (host["image"], side) == ("mine", {"name": "side", "image": "other"})
    assert host["command"][2].startswith("exec python3 -P -m monarch_nb.host.join --index ")
    assert [each["name"] for each in made["spec"]["volumes"]] == ["ticket"], "it has its /dev/shm"
    assert made["metadata"]["labels"] == {"team": "ml"}
    assert "command" not in template["spec"]["containers"][0], "that of the user is left alone"


def pod(phase="Pending", name="p", index=0, **status):
    about = {"name": name, "annotations": {pods.INDEX: str(index)}}
    return {"metadata": about, "status": {"phase": phase, **status}}


JOB = {"spec": {}, "status": {}}
FULL = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes",
}


def test_equal_reasons_are_one():
    waiting = [pod(conditions=[FULL]) for _ in range(3)]
    assert Seen(JOB, waiting, []).why_waiting == "Unschedulable: 0/3 nodes"
    image = {"state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}
    mixed = Seen(JOB, [*waiting, pod(containerStatuses=[image])], []).why_waiting
    assert mixed == "3 of them: Unschedulable: 0/3 nodes\n1 of them: ErrImagePull: no such image"


def test_a_queue_that_holds_the_job_is_said():
    assert "suspended" in Seen({"spec": {"suspend": True}}, [], []).why_waiting


def test_how_pods_end_is_said():
    killed = {"state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}
    said = pods.why_ended(pod("Failed", containerStatuses=[killed]))
    assert said == "pod p: Failed, OOMKilled with code 137"
    evicted = pod("Failed", reason="Evicted", message="low on memory")
    assert pods.why_ended(evicted) == "pod p: Evicted: low on memory"


def test_a_job_that_is_gone_or_has_failed_is_over():
    failed = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "late"}
    over = {"spec": {}, "status": {"conditions": [failed]}}
    assert Seen(None, [], []).why_over == "its Job was deleted"
    assert Seen(over, [], []).why_over == "DeadlineExceeded: late"
    assert Seen(JOB, [], []).why_over is None


def test_an_answer_that_is_no_json_is_said_all_the_same():
    assert pods.refusal(502, "Bad Gateway", "<html>", "ml") == "Kubernetes says 502: Bad Gateway"
