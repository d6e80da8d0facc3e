"""`RayJob` without a cluster: what is refused before Ray is asked, and what is said of a wait.

With a real cluster: `tests/clusters/engines`.
"""

import sys

import pytest

from monarch_nb.control.jobs.ray.groups import why_queued
from monarch_nb.control.jobs.status import Stage
from monarch_nb.errors import LaunchError
from monarch_nb.job import RayJob, job_loads


def test_a_job_that_wants_nothing_says_what_it_may_want():
    with pytest.raises(ValueError, match="trainers=0: a mesh has at least one host"):
        RayJob({"trainers": 0})
    with pytest.raises(ValueError, match="num_cpus=, num_gpus= or resources="):
        RayJob({"trainers": 1}, num_cpus=0)
    with pytest.raises(ValueError, match="ray start --head"):
        RayJob({"trainers": 1}, address="local")
    with pytest.raises(ValueError, match=r"RayJob\({'trainers': 2}\)"):
        RayJob({}).apply()


def test_without_its_client_it_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(LaunchError, match=r"pip install monarch_nb\[ray\]"):
        RayJob({"trainers": 1}).apply()


class Ray:
    """A stand-in for Ray's module, as far as it is asked before there is a cluster."""

    init = None

    def is_initialized(self):
        return False


@pytest.fixture
def ray(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name in ("ray", "ray.util", "ray.util.scheduling_strategies"):
        monkeypatch.setitem(sys.modules, name, Ray())


def test_a_cluster_that_does_not_answer_is_said_at_once(ray, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(
        LaunchError, match="no Ray cluster can be had at 127.0.0.1:9: .*refused"
    ) as e:
        RayJob({"trainers": 1}, address="127.0.0.1:9").apply()
    assert "ray status --address 127.0.0.1:9" in str(e.value)
    assert "asks for a token wants RAY_AUTH_MODE=token" in str(e.value)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with pytest.raises(LaunchError) as e:
        RayJob({"trainers": 1}, address="127.0.0.1:9").apply()
    assert "token" not in str(e.value)


def test_without_a_cluster_it_is_said_and_none_is_started(ray):
    with pytest.raises(LaunchError, match=r"RAY_ADDRESS=HOST:6379 .* type: ray start --head"):
        RayJob({"trainers": 1}).apply()


def test_it_can_be_saved_and_its_hosts_are_not():
    job = RayJob({"trainers": 2}, num_gpus=8, env={"A": "1"})
    found = job_loads(job.dumps())
    assert not found.active
    assert not found.can_run(job)
    assert found.dumps() == job.dumps()
    assert found.status()[1:4] == (Stage.GONE, 0, 2)


def test_the_script_has_the_bundles():
    text = RayJob({"trainers": 2, "loaders": 1}, num_gpus=8).script()
    assert "[{'CPU': 1, 'GPU': 8}] * 3" in text
    assert "trainers[0], trainers[1], loaders[0]" in text


@pytest.mark.parametrize(
    "wanted, nodes, free, said",
    [
        ({"GPU": 8}, [{"CPU": 4}], {"CPU": 4}, "0 of 1 nodes have that; 0 GPU are free, 16 are"),
        ({"GPU": 8}, [{"GPU": 8}] * 2, {"GPU": 9}, "2 of 2 nodes have that; 9 GPU are free, 16"),
        ({"CPU": 0.5}, [{"CPU": 1}], {"CPU": 1}, "each host wants 0.5 CPU: 1 of 1 nodes have that"),
    ],
)
def test_what_a_cluster_lacks_is_said(wanted, nodes, free, said):
    text = why_queued(wanted, 2, nodes, free)
    assert said in text
    assert ("free" in text) == any(free.get(k, 0) < 2 * v for k, v in wanted.items())
